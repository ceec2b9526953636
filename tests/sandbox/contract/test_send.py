"""POST /v1/transfers/{transfer_id}/send: once, and only when everything allows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from support.timeouts import eventually

pytestmark = pytest.mark.rule("R36")

ANN = {"email": "ann@example.com"}
BOB = {"email": "bob@example.com"}


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def ready(api: Any) -> str:
    """The id of a draft with a file."""
    transfer_id = api.draft()["id"]
    api.attached(transfer_id)
    return str(transfer_id)


@pytest.mark.rule("R18: send")
def test_a_send_bills_once_and_emails_each_recipient(api: Any, control: Any) -> None:
    control.patch_account(delivery_window_days=3)
    transfer = api.sent(recipients=[ANN, BOB, ANN])
    assert transfer["status"] == "pending"
    assert [file["name"] for file in transfer["files"]] == ["0.txt"]
    assert when(transfer["expires_at"]) - when(transfer["sent_at"]) == timedelta(days=3)
    assert transfer == api.get(transfer["id"])
    rows = [(row["kind"], row["transfer_id"], row["recipient"], row["timestamp"]) for row in control.ledger()]
    assert rows == [
        (kind, transfer["id"], recipient, transfer["sent_at"])
        for kind, recipient in [
            *[("billed", None), ("emailed", "ann@example.com")],
            *[("emailed", "bob@example.com"), ("emailed", "ann@example.com")],
        ]
    ]


@pytest.mark.rule("R20, R21; R36: once; R37: the two causes of invalid_state")
def test_a_sent_transfer_is_fixed_and_a_second_send_sends_nothing(
    api: Any, control: Any, refused: Any, ready: str
) -> None:
    empty = api.draft()["id"]
    no_files = refused(api.send(empty), 409, "invalid_state")
    assert api.get(empty)["status"] == "draft"
    first = api.send(ready).json()
    assert refused(api.send(ready), 409, "invalid_state") != no_files
    path = f"/v1/transfers/{ready}"
    refused(api.attach(ready, "b.txt"), 409, "invalid_state")
    refused(api.attach(ready, "a.txt"), 409, "invalid_state")
    refused(api.http.delete(f"{path}/files/{first['files'][0]['id']}"), 409, "invalid_state")
    refused(api.http.delete(path), 409, "invalid_state")
    assert len(control.ledger()) == 2
    assert api.get(ready) == first
    refused(api.send("tr_none"), 404, "not_found")


@pytest.mark.rule("R37, R54")
@pytest.mark.parametrize(
    ("settings", "recipients", "allowed"),
    [
        *[({"plan": "trial"}, 1, True), ({"plan": "trial"}, 2, False)],
        *[({"plan": "free"}, 1, True), ({"plan": "free"}, 2, False), ({"plan": "business"}, 250, True)],
        *[({"recipients_per_transfer": 3}, 3, True), ({"recipients_per_transfer": 3}, 4, False)],
    ],
)
def test_recipient_limit(
    api: Any, control: Any, refused: Any, settings: dict[str, Any], recipients: int, allowed: bool
) -> None:
    control.patch_account(**settings)
    transfer_id = api.draft(recipients=[ANN] * recipients)["id"]
    api.attached(transfer_id)
    if allowed:
        assert api.send(transfer_id).status_code == 200
    else:
        refused(api.send(transfer_id), 409, "recipient_limit_exceeded")
        assert api.get(transfer_id)["status"] == "draft"
        assert control.ledger() == []


@pytest.mark.rule("R57")
@pytest.mark.parametrize("freed_by", ["pickup", "cancel", "expiry"])
def test_outstanding_limit(api: Any, control: Any, refused: Any, ready: str, freed_by: str) -> None:
    control.patch_account(outstanding_transfer_limit=1, delivery_window_days=1)
    first = api.sent()["id"]
    assert control.state()["outstanding_transfers"] == 1
    refused(api.send(ready), 409, "transfer_limit_reached")
    assert api.get(ready)["status"] == "draft"
    if freed_by == "pickup":
        control.pickup(first, "ann@example.com")
    elif freed_by == "cancel":
        control.cancel(first)
    else:
        control.advance_clock(86_401)
    assert control.state()["outstanding_transfers"] == 0
    assert api.send(ready).status_code == 200


@pytest.mark.rule("R37")
def test_credit(api: Any, control: Any, refused: Any, ready: str) -> None:
    control.patch_account(billing="per_transfer", credits=1)
    api.sent()
    assert control.state()["account"]["credits"] == 0
    refused(api.send(ready), 403, "no_credit")
    assert api.get(ready)["status"] == "draft"
    assert len(control.ledger()) == 2
    control.patch_account(billing="included")
    assert api.send(ready).status_code == 200
    assert control.state()["account"]["credits"] == 0


@pytest.mark.rule("R38")
def test_overlapping_sends_both_succeed_and_count_once(
    api: Any, control: Any, wire: Callable[[], Any], ready: str
) -> None:
    control.patch_account(billing="per_transfer", credits=5)
    connections = [wire() for _ in range(4)]
    control.plan_faults(*[{"kind": "hold", "path": "*/send"}] * len(connections))
    for connection in connections:
        connection.request("POST", f"/v1/transfers/{ready}/send", "Content-Length: 0")
    eventually(lambda: {fault["state"] for fault in control.faults()} == {"held"})
    control.release_held_calls()
    answers = [connection.answer() for connection in connections]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.content for answer in answers}) == 1
    assert [row["kind"] for row in control.ledger()] == ["billed", "emailed"]
    assert control.state()["account"]["credits"] == 4
    assert api.events().text.count("transfer_sent") == 1
