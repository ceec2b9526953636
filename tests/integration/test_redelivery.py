"""A transfer delivered again to those who have not picked it up: never to anybody else, and never twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.exceptions import MalformedResponse, outcome_of
from outbound_transfer.operators.draft import CreateTransferOperator
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import ATTACH, SEND, ProcessCrashed, after, dying_after
from support.deliveries import BOTH_MODES
from support.keyed_tasks import sqlite_connection
from support.provider import Upload, build_new_transfer
from support.tasks import (
    FakeTaskInstance,
    SimulatedClock,
    again,
    task_instance,
)

ANN, BOB, EVE = "ann@example.com", "bob@example.com", "eve@example.com"

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path in paths:
        path.write_text(path.name * 100)
    return [str(path) for path in paths]


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def first(files, time) -> Any:
    """A transfer to Ann, Bob and Eve."""
    recipients = [EVE, {"email": ANN, "name": "Ann"}, BOB]
    task = task_instance(
        DeliverFilesOperator, time, files=files, subject="Report", message="Hello", recipients=recipients
    )
    return task.run()


@pytest.fixture
def redeliver(files, time, first) -> Callable[..., FakeTaskInstance]:
    def make(**arguments: Any) -> FakeTaskInstance:
        given = {"transfer_id": first, "files": files, "security": None, **arguments}
        return task_instance(RedeliverFilesOperator, time, **given)

    return make


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


def test_addresses_that_differ_are_two_people(redeliver, sandbox, hook) -> None:
    with_ss, with_eszett = "strauss@example.com", "strauß@example.com"
    first = hook.create_transfer(build_new_transfer(subject="Report", recipients=[with_ss, with_eszett, BOB]))
    hook.attach_file(first.id, Upload("a.csv", 500, lambda: iter([b"a.csv" * 100])))
    hook.attach_file(first.id, Upload("b.csv", 500, lambda: iter([b"b.csv" * 100])))
    hook.send_transfer(first.id)
    sandbox.pickup(first.id, with_ss)

    second = redeliver(transfer_id=first.id).run()

    assert received(sandbox, second["id"]) == sorted([BOB, with_eszett])


def test_a_canceled_transfer_is_not_delivered_again(redeliver, sandbox, first) -> None:
    sandbox.cancel(first["id"])
    with pytest.raises(AirflowFailException, match="was canceled"):
        redeliver().run()


def test_a_draft_is_not_delivered_again(redeliver, time) -> None:
    draft = task_instance(CreateTransferOperator, time, subject="Draft", recipients=[ANN]).run()
    with pytest.raises(AirflowFailException, match="was never sent"):
        redeliver(transfer_id=draft).run()


@pytest.mark.parametrize("wrong", ["missing", "additional", "changed"])
def test_other_files_are_not_delivered(redeliver, sandbox, first, files, tmp_path, wrong) -> None:
    if wrong == "missing":
        files.pop()
    elif wrong == "additional":
        (tmp_path / "c.csv").write_text("c")
        files.append(str(tmp_path / "c.csv"))
    else:
        Path(files[0]).write_text("other")
    with pytest.raises(AirflowFailException, match="The files are not those of transfer .*csv'"):
        redeliver().run()
    assert [call["path"] for call in sandbox.requests() if call["method"] == "POST"].count("/v1/transfers") == 1


def test_who_picks_up_after_the_send_changes_nothing(redeliver, sandbox, first) -> None:
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


def test_other_bytes_of_the_same_size_are_not_delivered(redeliver, sandbox, first, files) -> None:
    Path(files[0]).write_text("A" * 500)
    with pytest.raises(AirflowFailException, match=r"'a.csv': other content"):
        redeliver().run()
    assert sandbox.sent() == [first["id"]]


def test_no_address_is_stored(redeliver, first) -> None:
    task = redeliver()
    task.run()
    assert "example.com" not in memory.remembered(task)


def test_phones_come_from_recipients(redeliver, sandbox, first, tmp_path, monkeypatch) -> None:
    sandbox.pickup(first["id"], BOB)
    with closing(sqlite3.connect(tmp_path / "crm.db")) as database, database:
        database.execute("CREATE TABLE people (email, phone)")
        people = [(ANN.upper(), "+1 555 010 4477"), (EVE, "+1 555 010 4478"), ("zoe@example.com", "1")]
        database.executemany("INSERT INTO people VALUES (?, ?)", people)
    monkeypatch.setenv("AIRFLOW_CONN_CRM", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "crm.db")}))
    query = RecipientsFromSql(sql="SELECT email, phone FROM people", conn_id="crm")
    second = redeliver(security="sms", recipients=query).run()
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


def do_on_second_wait(time: SimulatedClock, then: Callable[[], None]) -> None:
    sleep, waits = time.sleep, []

    def sleep_and_act(seconds: float) -> None:
        sleep(seconds)
        waits.append(seconds)
        if len(waits) == 2:
            then()

    time.sleep = sleep_and_act  # type: ignore[method-assign]


@BOTH_MODES
@pytest.mark.parametrize("why", ["no slot", "in doubt"])
def test_who_picks_up_while_the_send_waits_gets_nothing(redeliver, sandbox, first, time, why, deferrable) -> None:
    fault = {"kind": "error", "method": "POST", "path": "*/send", "status": 500}

    def free_a_slot() -> None:
        sandbox.pickup(first["id"], ANN)
        sandbox.patch_account(outstanding_transfer_limit=1000)

    if why == "no slot":
        sandbox.patch_account(outstanding_transfer_limit=1)
    else:
        sandbox.plan_faults(*[fault] * 2)
    do_on_second_wait(time, free_a_slot)
    second = redeliver(deferrable=deferrable).run()
    assert received(sandbox, second["id"]) == [BOB, EVE]
    assert (second["subject"], second["message"]) == ("Once more: Report", "Hello")
    assert sandbox.sent() == [first["id"], second["id"]]


@pytest.mark.parametrize(("change", "error"), [("picked up", None), ("all", "Everybody has"), ("canceled", "canceled")])
def test_what_changes_during_the_upload_is_seen(redeliver, sandbox, first, change, error) -> None:
    def once_filled() -> None:
        if change == "canceled":
            sandbox.cancel(first["id"])
        for recipient in {"picked up": [ANN], "all": [ANN, BOB, EVE]}.get(change, []):
            sandbox.pickup(first["id"], recipient)

    task = redeliver()
    with after(ATTACH, once_filled, skip=1):
        if error:
            with pytest.raises((AirflowFailException, AirflowSkipException), match=error):
                task.run()
            assert sandbox.sent() == [first["id"]]
        else:
            assert received(sandbox, task.run()["id"]) == [BOB, EVE]
    filled = [call["path"].split("/")[3] for call in sandbox.requests() if call["path"].endswith("/files")]
    removed = [call["path"].rpartition("/")[2] for call in sandbox.requests() if call["method"] == "DELETE"]
    assert removed == filled[2:3], "the draft for whom it was filled; the first two files are of the first transfer"


WITHOUT_PICKUPS = [{"email": email, "name": email} for email in (ANN, BOB, EVE)]
NOBODY = [{**one, "picked_up_at": None} for one in WITHOUT_PICKUPS]
EVERYBODY = [{**one, "picked_up_at": "2026-01-01T00:00:00Z"} for one in WITHOUT_PICKUPS]


@pytest.mark.parametrize(
    ("collected", "expired", "recipients"),
    [
        (3, False, WITHOUT_PICKUPS),
        (3, False, NOBODY),
        (1, False, NOBODY),
        (1, False, EVERYBODY),
        (0, False, EVERYBODY),
        (0, True, EVERYBODY),
        (0, True, WITHOUT_PICKUPS),
        (0, False, WITHOUT_PICKUPS),
        (0, False, []),
        (3, False, []),
        (0, False, None),
    ],
)
def test_nothing_follows_from_silence(redeliver, sandbox, first, collected, expired, recipients) -> None:
    """A response that contradicts itself, or does not say who has picked up: nothing is sent, nothing is skipped."""
    for recipient in (ANN, BOB, EVE)[:collected]:
        sandbox.pickup(first["id"], recipient)
    if expired:
        sandbox.set_expiry(first["id"], 0)
    path = f"/v1/transfers/{first['id']}"
    fault = {
        "kind": "field_value",
        "method": "GET",
        "path": path,
        "field": "recipients",
        "json": json.dumps(recipients),
    }
    sandbox.plan_faults(*[fault] * 8)
    with pytest.raises(MalformedResponse, match="contradicts itself about who|not as documented"):
        redeliver().run()
    sandbox.assert_all_faults_triggered()
    assert sandbox.sent() == [first["id"]]


def test_an_address_in_other_case_is_the_same_person(redeliver, sandbox, first) -> None:
    sandbox.pickup(first["id"], BOB)
    twins = [{"email": BOB.upper(), "name": "Bob", "picked_up_at": None}, *(one for one in first["recipients"])]
    for one in twins[1:]:
        one["picked_up_at"] = "2026-01-01T00:00:00Z" if one["email"] == BOB else None
    path = f"/v1/transfers/{first['id']}"
    fault = {"kind": "field_value", "method": "GET", "path": path, "field": "recipients", "json": json.dumps(twins)}
    sandbox.plan_faults(*[fault] * 2)
    assert received(sandbox, redeliver().run()["id"]) == [ANN, EVE]
    sandbox.assert_all_faults_triggered()


def test_the_first_transfer_is_no_twin_of_its_second_delivery_under_the_same_subject(redeliver, sandbox, first) -> None:
    """It is what is to be delivered again, also where a task looks for others that have sent the same."""
    again = redeliver(subject=first["subject"])
    again.map_index = 0
    again.run()
    assert len(sandbox.sent()) == 2


def test_under_a_delivery_key_another_transfer_is_not_delivered_again(
    redeliver, sandbox, first, files, time, tmp_path, monkeypatch
) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    second = redeliver(delivery_key="k").run()["id"]
    assert redeliver(delivery_key="k").run()["id"] == second
    other = task_instance(DeliverFilesOperator, time, files=files, subject="Other", recipients=[ANN]).run()
    with pytest.raises(AirflowFailException, match=second):
        redeliver(delivery_key="k", transfer_id=other).run()
    assert sandbox.sent() == [first["id"], second, other["id"]]
