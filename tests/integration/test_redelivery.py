"""A transfer delivered again to those who have not picked it up: never to anybody else, and never twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.exceptions import MalformedResponse, outcome_of
from outbound_transfer.operators.draft import CreateTransferOperator
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import memory, transfers
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import ATTACH, SEND, ProcessCrashed, after, dying_after
from support.deliveries import BOTH_MODES
from support.tasks import FakeTaskInstance, SimulatedClock, again, at_the_next_wait, task_instance

ANN, BOB, EVE = "ann@example.com", "bob@example.com", "eve@example.com"

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def first(files, time) -> Any:
    """A transfer to Ann, Bob and Eve."""
    given = {"subject": "Report", "message": "Hello", "recipients": [EVE, {"email": ANN, "name": "Ann"}, BOB]}
    return task_instance(DeliverFilesOperator, time, files=files, **given).run()


@pytest.fixture
def redeliver(files, time, first) -> Callable[..., FakeTaskInstance]:
    given = {"transfer_id": first, "files": files, "security": None}
    return lambda **arguments: task_instance(RedeliverFilesOperator, time, **{**given, **arguments})


def received(sandbox: Sandbox, transfer_id: str) -> list[str]:
    return sorted(
        row["recipient"] for row in sandbox.ledger() if (row["transfer_id"], row["kind"]) == (transfer_id, "emailed")
    )


@BOTH_MODES
@pytest.mark.parametrize("expired", [True, False])
def test_those_who_have_not_picked_up_get_the_files_again(redeliver, sandbox, first, expired, deferrable) -> None:
    sandbox.pickup(first["id"], BOB)
    if expired:
        sandbox.set_expiry(first["id"], 0)
    second = redeliver(deferrable=deferrable).run()
    assert received(sandbox, second["id"]) == [ANN, EVE]
    assert (second["subject"], second["message"], second["not_picked_up"]) == ("Once more: Report", "Hello", [ANN, EVE])
    assert [one["name"] for one in second["recipients"] if one["email"] == ANN] == ["Ann"]
    assert {one["name"]: one["size"] for one in second["files"]} == {one["name"]: one["size"] for one in first["files"]}


def test_addresses_that_differ_are_two_people(redeliver, sandbox, tmp_path) -> None:
    with_ss, with_eszett = "strauss@example.com", "strauß@example.com"
    (sent,) = transfers.send(sandbox, 1, with_ss, with_eszett, BOB)
    sandbox.pickup(sent, with_ss)
    second = redeliver(transfer_id=sent, files={"name": "report.csv", "content": "a,b\n"}).run()
    assert received(sandbox, second["id"]) == sorted([BOB, with_eszett])


def test_a_draft_is_not_delivered_again(redeliver, time) -> None:
    draft = task_instance(CreateTransferOperator, time, subject="Draft", recipients=[ANN]).run()
    with pytest.raises(AirflowFailException, match="was never sent"):
        redeliver(transfer_id=draft).run()


@pytest.mark.parametrize(
    ("missing", "written", "error"),
    [
        (1, {}, r"The files are not those of transfer .*'b\.csv'"),
        (0, {"c.csv": "c"}, r"The files are not those of transfer .*'c\.csv'"),
        (0, {"a.csv": "other"}, r"The files are not those of transfer .*'a\.csv'"),
        (0, {"a.csv": "A" * 1_000}, r"'a\.csv': same size, but different content"),
    ],
    ids=["missing", "additional", "changed", "other bytes of the same size"],
)
def test_other_files_are_not_delivered(redeliver, sandbox, first, files, tmp_path, missing, written, error) -> None:
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    given = {*files[: 2 - missing], *(str(tmp_path / name) for name in written)}
    with pytest.raises(AirflowFailException, match=error):
        redeliver(files=sorted(given)).run()
    assert sandbox.sent() == [first["id"]]


def test_a_pickup_after_the_send_does_not_change_the_redelivery(redeliver, sandbox, first) -> None:
    """The send is applied, and its process dies; Ann picks up the first transfer before the retry, and a clear."""
    task = redeliver()
    task.retries = task.max_tries = task.try_number = 1
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        task.run_once()
    sandbox.pickup(first["id"], ANN)
    second = task.run()
    assert received(sandbox, second["id"]) == [ANN, BOB, EVE]
    for recipient in (BOB, EVE):
        sandbox.pickup(first["id"], recipient)
    assert again(task)["id"] == second["id"]
    assert sandbox.sent() == [first["id"], second["id"]]
    assert "example.com" not in memory.remembered(task), "no address is stored"


def test_phones_come_from_recipients(redeliver, sandbox, first, monkeypatch) -> None:
    sandbox.pickup(first["id"], BOB)
    monkeypatch.setenv("AIRFLOW_CONN_CRM", "sqlite:///%3Amemory%3A")
    people = ((ANN.upper(), "+1 555 010 4477"), (EVE, "+1 555 010 4478"), ("zoe@example.com", "1"))
    sql = " UNION ALL ".join(f"SELECT '{email}' AS email, '{phone}' AS phone" for email, phone in people)
    second = redeliver(security="sms", recipients=RecipientsFromSql(sql=sql, conn_id="crm")).run()
    assert [one.lower() for one in received(sandbox, second["id"])] == [ANN, EVE]


def test_recipients_must_have_all_who_are_left(redeliver, sandbox, first) -> None:
    with pytest.raises(AirflowFailException, match=f"recipients lacks {BOB}, {EVE}"):
        redeliver(recipients=[ANN]).run()


def test_an_error_is_about_the_second_transfer(redeliver, sandbox, first) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    with pytest.raises(AirflowFailException) as raised:
        redeliver().run()
    outcome = outcome_of(raised.value)
    assert outcome.transfer_id != first["id"]
    assert (outcome.status, outcome.not_picked_up) == ("draft", [ANN, BOB, EVE])


@BOTH_MODES
@pytest.mark.parametrize("why", ["no slot", "in doubt"])
def test_a_pickup_while_the_send_waits_excludes_the_recipient(redeliver, sandbox, first, time, why, deferrable) -> None:
    sleep = time.sleep

    def sleep_and_free_a_slot_at_the_second_wait(seconds: float) -> None:
        sleep(seconds)
        if len(time.waits) == waited + 2:
            sandbox.pickup(first["id"], ANN)
            sandbox.patch_account(outstanding_transfer_limit=1000)

    if why == "no slot":
        sandbox.patch_account(outstanding_transfer_limit=1)
    else:
        sandbox.plan_faults(*[{"kind": "error", "method": "POST", "path": "*/send", "status": 500}] * 2)
    time.sleep, waited = sleep_and_free_a_slot_at_the_second_wait, len(time.waits)
    second = redeliver(deferrable=deferrable).run()
    assert received(sandbox, second["id"]) == [BOB, EVE]
    assert (second["subject"], second["message"]) == ("Once more: Report", "Hello")
    assert sandbox.sent() == [first["id"], second["id"]]


@pytest.mark.parametrize(("change", "error"), [("picked up", None), ("all", "Everybody has"), ("canceled", "canceled")])
def test_a_pickup_or_cancellation_during_the_upload_is_noticed(redeliver, sandbox, first, change, error) -> None:
    def once_filled() -> None:
        if change == "canceled":
            sandbox.cancel(first["id"])
        for recipient in {"picked up": [ANN], "all": [ANN, BOB, EVE]}.get(change, []):
            sandbox.pickup(first["id"], recipient)

    with after(ATTACH, once_filled, skip=1):
        if error:
            with pytest.raises((AirflowFailException, AirflowSkipException), match=error):
                redeliver().run()
            assert sandbox.sent() == [first["id"]]
        else:
            assert received(sandbox, redeliver().run()["id"]) == [BOB, EVE]
    filled = [call["path"].split("/")[3] for call in sandbox.requests() if call["path"].endswith("/files")]
    removed = [call["path"].rpartition("/")[2] for call in sandbox.requests() if call["method"] == "DELETE"]
    assert removed == filled[2:3], "the draft for whom it was filled; the first two files are of the first transfer"


WITHOUT_PICKUPS = [{"email": email, "name": email} for email in (ANN, BOB, EVE)]
NOBODY = [{**one, "picked_up_at": None} for one in WITHOUT_PICKUPS]
EVERYBODY = [{**one, "picked_up_at": "2026-01-01T00:00:00Z"} for one in WITHOUT_PICKUPS]


@pytest.mark.parametrize(
    ("collected", "expired", "recipients"),
    [
        *((3, False, silence) for silence in (WITHOUT_PICKUPS, NOBODY, [])),
        *((1, False, silence) for silence in (NOBODY, EVERYBODY)),
        *((0, False, silence) for silence in (EVERYBODY, WITHOUT_PICKUPS, [], None)),
        *((0, True, silence) for silence in (EVERYBODY, WITHOUT_PICKUPS)),
    ],
)
def test_nothing_follows_from_silence(redeliver, sandbox, first, collected, expired, recipients) -> None:
    """A response that contradicts itself, or does not say who has picked up: nothing is sent, nothing is skipped."""
    for recipient in (ANN, BOB, EVE)[:collected]:
        sandbox.pickup(first["id"], recipient)
    if expired:
        sandbox.set_expiry(first["id"], 0)
    sandbox.plan_faults(*[wrong_recipients(first, recipients)] * 8)
    with pytest.raises(MalformedResponse, match="contradicts itself about pickups|not as documented"):
        redeliver().run()
    sandbox.assert_all_faults_triggered()
    assert sandbox.sent() == [first["id"]]


def wrong_recipients(transfer: Any, recipients: Any) -> dict[str, Any]:
    fault = {"kind": "field_value", "method": "GET", "path": f"/v1/transfers/{transfer['id']}", "field": "recipients"}
    return {**fault, "json": json.dumps(recipients)}


def test_an_address_in_other_case_is_the_same_person(redeliver, sandbox, first) -> None:
    sandbox.pickup(first["id"], BOB)
    bob = {"email": BOB, "name": "Bob", "picked_up_at": "2026-01-01T00:00:00Z"}
    others = [{"email": email, "name": email, "picked_up_at": None} for email in (BOB.upper(), ANN, EVE)]
    sandbox.plan_faults(*[wrong_recipients(first, [others[0], bob, *others[1:]])] * 2)
    assert received(sandbox, redeliver().run()["id"]) == [ANN, EVE]
    sandbox.assert_all_faults_triggered()


def test_a_redelivery_under_the_same_subject_is_not_taken_for_the_first_transfer(redeliver, sandbox, first) -> None:
    again = redeliver(subject=first["subject"])
    again.map_index = 0  # of a task that looks for others that have sent the same
    again.run()
    assert len(sandbox.sent()) == 2


def test_a_draft_that_a_person_changed_and_sent_while_a_recipient_picked_up_is_noticed(
    redeliver, sandbox, first
) -> None:
    ti = redeliver()
    sandbox.plan_faults({"kind": "error", "status": 429, "path": "*/send", "retry_after": "30"})

    def meddle() -> None:
        transfers.replace_file(sandbox, ti.xcoms["transfer_id"], "a.csv", b"other")
        transfers.send_draft(sandbox, ti.xcoms["transfer_id"])
        sandbox.pickup(first["id"], ANN)

    at_the_next_wait(ti.time, meddle)
    with pytest.raises(AirflowFailException, match="was sent, but .* can be canceled"):
        ti.run()
