"""A person between the draft and the send: what was approved is sent, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.exceptions import DeliveryKeyInUse, DraftChanged, DraftInUse, InvalidDelivery
from outbound_transfer.operators.approval import ApproveTransferOperator
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support import memory
from support.airflow_names import AirflowFailException, AirflowSkipException, BaseNotifier
from support.calls import ApiCall, ProcessCrashed, after, before, die, process
from support.keyed_tasks import sqlite_connection
from support.people import TIMEOUT, Person, answering, rejects
from support.tasks import FakeTaskInstance, again

DELIVERY = {"subject": "Report *for* | Q1", "recipients": [{"email": "ann@example.com", "name": "Ann [x](y)"}]}


@pytest.fixture
def person() -> Iterator[Person]:
    with answering(Person()) as person:
        yield person


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "report.csv"
    file.write_text("a,b\n")
    return file


@pytest.fixture
def deliver(task, report) -> FakeTaskInstance:
    """A task that fills a draft."""
    return task(DeliverFilesOperator, "deliver", files=str(report), send=False, **DELIVERY)


@pytest.fixture
def approve(task, deliver, person) -> FakeTaskInstance:
    """A task that asks a person about that draft."""
    ti = task(ApproveTransferOperator, "approve", transfer_id="later", retries=2)
    make = ti.make

    def made() -> Any:
        operator = make()
        operator.transfer_id = deliver.result
        return operator

    ti.make, ti.person = made, lambda: person.answer("approve")
    return ti


@pytest.fixture
def send(task, deliver, approve) -> FakeTaskInstance:
    """A task that sends it."""
    ti = task(SendTransferOperator, "send", transfer_id="later", approval="{{ later }}")
    make = ti.make

    def made() -> Any:
        operator = make()
        operator.transfer_id, operator.approval = deliver.result, approve.result
        return operator

    ti.make = made
    return ti


# send=False


def test_a_draft_is_returned_as_a_sent_transfer_is(deliver, task, sandbox, report) -> None:
    draft = deliver.run()
    assert (draft["status"], draft["security"], draft["approval"]) == ("draft", None, None)
    digest = hashlib.sha256(report.read_bytes()).hexdigest()
    assert [(file["name"], file["size"], file["sha256"]) for file in draft["files"]] == [("report.csv", 4, digest)]
    sandbox.assert_nothing_sent()

    sent = task(SendTransferOperator, "send", transfer_id=draft).run()
    assert sent.keys() == draft.keys()
    assert sent["files"] == draft["files"]
    assert [sent["id"]] == sandbox.sent()


def test_a_query_and_a_redelivery_fill_drafts(task, sandbox, report, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "s.db")}))
    query = {"sql_conn_id": "sales", "sql": "SELECT 1 AS a", "file_name": "a.csv"}
    draft = task(SqlToOutboundTransferOperator, "query", **query, send=False, **DELIVERY).run()
    assert (draft["status"], [file["name"] for file in draft["files"]]) == ("draft", ["a.csv"])

    first = task(DeliverFilesOperator, "first", files=str(report), **DELIVERY).run()
    more = {"transfer_id": first, "files": str(report), "security": None}
    second = task(RedeliverFilesOperator, "second", **more, send=False).run()
    assert (second["status"], sandbox.sent()) == ("draft", [first["id"]])


@pytest.mark.parametrize(
    ("given", "words"), [({"send": "no"}, "True or False"), ({"send": False, "wait": True}, "wait")]
)
def test_what_contradicts_a_draft_is_refused_when_the_dag_is_parsed(given, words) -> None:
    with pytest.raises(InvalidDelivery, match=words):
        DeliverFilesOperator(task_id="deliver", files="a.csv", **DELIVERY, **given)


def test_another_run_does_not_take_a_key_whose_draft_waits(task, sandbox, report, monkeypatch, tmp_path) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    arguments = {"files": str(report), "delivery_key": "k", "send": False, **DELIVERY}
    one, other = (task(DeliverFilesOperator, name, **arguments) for name in ("one", "other"))
    draft = one.run()
    other.upstream = {"one": one}
    with pytest.raises(DeliveryKeyInUse):
        other.run()
    other.run_state = "failed"
    assert other.run()["id"] != draft["id"]


# Approval


def test_what_a_person_approves_is_sent(deliver, approve, send, person, sandbox, report) -> None:
    draft = deliver.run()

    def look(shown: SimpleNamespace) -> str:
        sandbox.assert_nothing_sent()
        report.write_text("other content\n")
        return str(shown.options[0])

    person.does = look
    approval = approve.run()
    assert approval == {
        "transfer_id": draft["id"], "state": "approved", "by": "ann", "at": approval["at"], "files": approval["files"]
    }  # fmt: skip
    assert person.shown[0].options == [f"{word} {draft['id']} ({approval['files']})" for word in ("Approve", "Reject")]
    sent = send.run()
    assert sent["approval"] == {"by": "ann", "at": approval["at"]}
    sandbox.assert_delivered(sandbox.assert_sent_once(), {"report.csv": b"a,b\n"}, "ann@example.com")
    assert approve.deferrals == 0
    assert again(approve) == approval, "it was sent"


def test_the_request_shows_everything_as_plain_text(task, approve, person, report) -> None:
    arguments = {**DELIVERY, "message": "Dear\n<b>all</b>", "security": "email"}
    approve.make = lambda: ApproveTransferOperator(task_id="approve", transfer_id=draft)
    draft = task(DeliverFilesOperator, "deliver", files=str(report), send=False, **arguments).run()
    approve.run()
    (shown,) = person.shown
    assert shown.subject == "Send 'Report *for* | Q1' to 1 recipient?"
    digest = hashlib.sha256(report.read_bytes()).hexdigest()
    for text in (
        "**Subject:** ` Report *for* | Q1 `",
        "**To 1 recipient**\n- ` Ann [x](y) <ann@example.com> `",
        "**Security:** ` email `",
        "> ` Dear `\n>\n> ` <b>all</b> `",
        f"| ` report.csv ` | 4 | {digest} |",
        draft["id"],
    ):
        assert text in shown.body


def test_names_are_not_shown_where_they_are_not_stored(deliver, approve, person, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    deliver.run()
    approve.run()
    assert "To 1 recipient" in person.shown[0].body
    assert "example" not in person.shown[0].body


def test_many_files_are_shown_as_one_digest(task, approve, person, tmp_path) -> None:
    for number in range(51):
        (tmp_path / f"{number:02}.txt").write_text(f"{number}")
    draft = task(DeliverFilesOperator, "deliver", files=str(tmp_path / "*.txt"), send=False, **DELIVERY).run()
    approve.make = lambda: ApproveTransferOperator(task_id="approve", transfer_id=draft)
    approve.run()
    listed = "".join(f"{file['sha256']}  {file['name']}\n" for file in draft["files"])
    assert "**51 files**, 92 bytes" in person.shown[0].body
    assert hashlib.sha256(listed.encode()).hexdigest() in person.shown[0].body
    assert draft["files"][0]["sha256"] not in person.shown[0].body


def test_a_rejection_skips_and_the_draft_stays_unsent_until_it_is_discarded(
    deliver, approve, send, task, person, sandbox, hook
) -> None:
    draft = deliver.run()["id"]
    person.does = rejects
    with pytest.raises(AirflowSkipException, match="ann rejected"):
        approve.run()
    with pytest.raises(DraftChanged, match="ann rejected"):  # its trigger rule runs it nevertheless
        send.run()
    assert hook.get_transfer(draft).is_draft
    assert task(DiscardTransferOperator, "discard", transfer_id=draft).run() is True
    sandbox.assert_nothing_sent()


def test_a_send_waits_for_the_answer(deliver, approve, send, task, person, sandbox) -> None:
    deliver.run()

    def try_to_send(shown: SimpleNamespace) -> str:
        eager = task(SendTransferOperator, "eager", transfer_id=deliver.result, slot_timeout=timedelta(minutes=1))
        with pytest.raises(DraftInUse, match="Nobody has approved"):
            eager.run()
        return str(shown.options[0])

    person.does = try_to_send
    approve.run()
    send.run()
    sandbox.assert_sent_once()


def test_a_send_whose_approval_is_missing_is_refused(deliver, approve, send, task, sandbox) -> None:
    deliver.run()
    with pytest.raises(DraftChanged, match="not approved"):
        send.run()  # the task that approves was left out
    plain = task(SendTransferOperator, "plain", transfer_id=deliver.result)
    with pytest.raises(DraftChanged, match="not approved"):
        plain.run()  # it was asked for once
    approve.run()
    again(plain)
    sandbox.assert_sent_once()


@pytest.mark.parametrize("is_shown_anew", [False, True], ids=["the first request stays", "each request is shown"])
def test_an_answer_about_other_files_is_refused(deliver, approve, send, person, sandbox, report, is_shown_anew) -> None:
    person.is_shown_anew = is_shown_anew
    deliver.run()
    approve.run()
    report.write_text("changed")
    again(deliver)
    with pytest.raises(DraftChanged, match="not approved"):
        send.run()
    if not is_shown_anew:
        with pytest.raises(AirflowFailException, match="other files.*new DAG run"):
            again(approve)
        with pytest.raises(DraftInUse, match="Nobody"):
            again(send)
        return
    again(approve)
    again(send)
    sandbox.assert_delivered(sandbox.assert_sent_once(), {"report.csv": b"changed"}, "ann@example.com")


def test_files_that_change_while_a_person_thinks_are_not_sent(task, person, sandbox, tmp_path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("shown")
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=str(file))
    attach.run()

    def change(shown: SimpleNamespace) -> str:
        file.write_text("changed")
        again(attach)
        return str(shown.options[0])

    person.does = change
    approve = task(ApproveTransferOperator, "approve", transfer_id=draft)
    approve.person = lambda: person.answer("approve")
    with pytest.raises(AirflowFailException, match="other files"):
        approve.run()
    with pytest.raises(DraftInUse):
        task(SendTransferOperator, "send", transfer_id=draft).run()
    sandbox.assert_nothing_sent()


def test_nobody_is_asked_while_a_task_attaches_files(task, person, sandbox, tmp_path) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=str(tmp_path / "missing.csv"))
    with pytest.raises(Exception, match="missing"):
        attach.run()
    approve = task(ApproveTransferOperator, "approve", transfer_id=draft)
    with pytest.raises(DraftInUse, match="attaching files"):
        approve.run()
    assert person.shown == []


def test_nobody_answers_in_time(deliver, approve, send, person, sandbox) -> None:
    deliver.run()
    person.does = lambda shown: TIMEOUT
    with pytest.raises(AirflowFailException, match="Nobody answered within 7 days"):
        approve.run()
    with pytest.raises(DraftChanged, match="not approved"):
        send.run()
    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("days", [1, 29.5, 29.99])
def test_the_wait_ends_before_the_draft_expires(deliver, approve, person, sandbox, monkeypatch, days) -> None:
    from outbound_transfer.operators import approval

    deliver.run()
    now = approval.names.timezone.utcnow() + timedelta(days=days)
    monkeypatch.setattr(approval.names, "timezone", SimpleNamespace(utcnow=lambda: now))
    person.does = lambda shown: TIMEOUT
    reason = {1: "within 7 days", 29.5: r"within 7 days|within 1\d:\d\d", 29.99: "expires"}[days]
    with pytest.raises((AirflowFailException, DraftChanged), match=reason):
        approve.run()


class Notifier(BaseNotifier):
    def __init__(self, calls: list[Any]) -> None:
        super().__init__()
        self.calls = calls

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """There are none."""

    def notify(self, context: Any) -> None:
        self.calls.append(context["approval"])
        if len(self.calls) == 1:
            raise RuntimeError("mail server away")


def test_notifiers_are_called_before_anybody_can_answer(deliver, task, person, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow")
    deliver.run()
    calls: list[Any] = []
    approve = task(
        ApproveTransferOperator, "approve", transfer_id=deliver.result, notifiers=[Notifier(calls), Notifier(calls)]
    )
    asked = person.request

    def request(**given: Any) -> None:
        assert len(calls) == 2
        asked(**given)

    person.request = request
    with answering(person):
        approve.person = lambda: person.answer("approve")
        approve.run()
    assert calls[0]["subject"] == person.shown[0].subject
    assert calls[1]["url"] == "http://airflow/dags/dag/runs/run/tasks/approve/required_actions?map_index=-1"


def test_somebody_else_than_those_assigned_does_not_approve(deliver, task, person, send, sandbox) -> None:
    deliver.run()
    approve = task(
        ApproveTransferOperator, "approve", transfer_id=deliver.result, assigned_users={"id": "2", "name": "bob"}
    )
    approve.person = lambda: person.answer("approve")
    with pytest.raises(AirflowFailException, match="assigned_users"):
        approve.run()
    with pytest.raises(DraftInUse):
        send.run()


def test_a_rehearsal_asks_nobody(deliver, approve, send, person, sandbox, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__REHEARSE", "True")
    deliver.run()
    approve.run()
    with pytest.raises(AirflowSkipException, match="Rehearsal"):
        send.run()
    assert person.shown == []
    sandbox.assert_nothing_sent()


# What dies, and what is cleared meanwhile


def test_an_answer_is_not_lost_if_another_task_is_cleared_meanwhile(deliver, approve, send, person, sandbox) -> None:
    deliver.run()

    def answer_after_a_clear() -> dict[str, Any]:
        approve.clear_number += 1  # of the run: Airflow counts the clears of all its tasks
        return person.answer("approve")

    approve.person = answer_after_a_clear
    approve.run()
    assert send.run()["approval"]["by"] == "ann"
    assert (approve.try_number, len(person.shown)) == (1, 1)
    sandbox.assert_sent_once()


def test_a_task_that_attaches_no_more_holds_up_no_approval(task, person, sandbox, tmp_path) -> None:
    """It attached to an earlier draft, and is skipped this time."""
    create = task(CreateTransferOperator, "create", **DELIVERY)

    def attach(name: str) -> FakeTaskInstance:
        (tmp_path / name).write_text("x")
        ti = task(AttachFilesOperator, name, transfer_id=create.result, files=str(tmp_path / name))
        ti.upstream = {"create": create}
        ti.run()
        return ti

    create.run()
    attach("a")
    skipped = attach("b")
    again(create)
    kept = attach("a")
    skipped.state = skipped.final_state = "skipped"
    approve = task(ApproveTransferOperator, "approve", transfer_id=create.result)
    approve.upstream, approve.person = {"a": kept, "b": skipped}, lambda: person.answer("approve")
    assert approve.run()["state"] == "approved"


@pytest.mark.parametrize("is_rejected", [False, True])
def test_an_answer_that_airflow_took_is_not_lost_if_the_worker_dies(
    deliver, approve, send, person, sandbox, is_rejected
) -> None:
    deliver.run()
    person.does = rejects if is_rejected else person.does

    def die_as_it_takes_up() -> dict[str, Any]:
        person.answer("approve")
        approve.person = lambda: person.answer("approve")
        raise ProcessCrashed

    approve.person = die_as_it_takes_up
    with pytest.raises(AirflowSkipException, match="ann rejected") if is_rejected else nullcontext():
        approve.run()
    assert (approve.try_number, len(person.shown)) == (2, 1)
    if not is_rejected:
        assert send.run()["approval"]["by"] == "ann"
        sandbox.assert_sent_once()


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("when", [before, after], ids=["before", "after"])
def test_a_kill_at_each_call_neither_sends_twice_nor_without_approval(
    deliver, approve, send, person, sandbox, at, when
) -> None:
    deliver.run()
    everything = ApiCall("[A-Z]+", ".*")
    with when(everything, die, skip=at - 1):
        for ti in (approve, send):
            ti.retries = ti.max_tries = 2
            ti.run()
    process.is_dead = False
    assert sandbox.assert_sent_once() == deliver.result["id"]
    assert send.result["approval"]["by"] == "ann"
