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


def test_sends_the_draft(api: Any, control: Any, ready: str) -> None:
    control.patch_account(delivery_window_days=3)
    response = api.send(ready)
    assert response.status_code == 200
    transfer = response.json()
    assert transfer["status"] == "pending"
    assert [file["name"] for file in transfer["files"]] == ["a.txt"]
    assert when(transfer["expires_at"]) - when(transfer["sent_at"]) == timedelta(days=3)
    assert transfer == api.get(ready)


@pytest.mark.rule("R18: send")
def test_bills_once_and_emails_each_recipient(api: Any, control: Any) -> None:
    transfer = api.sent(recipients=[ANN, BOB, ANN])
    rows = [(row["kind"], row["transfer_id"], row["recipient"], row["timestamp"]) for row in control.ledger()]
    assert rows == [
        ("billed", transfer["id"], None, transfer["sent_at"]),
        ("emailed", transfer["id"], "ann@example.com", transfer["sent_at"]),
        ("emailed", transfer["id"], "bob@example.com", transfer["sent_at"]),
        ("emailed", transfer["id"], "ann@example.com", transfer["sent_at"]),
    ]


@pytest.mark.rule("R36: once")
def test_a_second_send_is_refused_and_sends_nothing(api: Any, control: Any, refused: Any, ready: str) -> None:
    first = api.send(ready).json()
    refused(api.send(ready), 409, "invalid_state")
    assert len(control.ledger()) == 2
    assert api.get(ready) == first


@pytest.mark.rule("R37: the two causes of invalid_state")
def test_a_draft_without_files(api: Any, control: Any, refused: Any, ready: str) -> None:
    empty = api.draft()["id"]
    no_files = refused(api.send(empty), 409, "invalid_state")
    api.send(ready)
    assert refused(api.send(ready), 409, "invalid_state") != no_files
    assert api.get(empty)["status"] == "draft"
    assert len(control.ledger()) == 2


@pytest.mark.rule("R37, R54")
@pytest.mark.parametrize(
    ("settings", "recipients", "allowed"),
    [
        ({"plan": "trial"}, 1, True),
        ({"plan": "trial"}, 2, False),
        ({"plan": "free"}, 1, True),
        ({"plan": "free"}, 2, False),
        ({"plan": "business"}, 250, True),
        ({"plan": "business", "recipients_per_transfer": 3}, 3, True),
        ({"plan": "business", "recipients_per_transfer": 3}, 4, False),
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


def test_unknown_transfer(api: Any, refused: Any) -> None:
    refused(api.send("tr_none"), 404, "not_found")


@pytest.mark.rule("R20, R21")
def test_a_sent_transfer_is_fixed(api: Any, refused: Any) -> None:
    transfer = api.sent()
    path = f"/v1/transfers/{transfer['id']}"
    refused(api.attach(transfer["id"], "b.txt"), 409, "invalid_state")
    refused(api.attach(transfer["id"], "0.txt"), 409, "invalid_state")
    refused(api.http.delete(f"{path}/files/{transfer['files'][0]['id']}"), 409, "invalid_state")
    refused(api.http.delete(path), 409, "invalid_state")
    assert api.get(transfer["id"]) == transfer
