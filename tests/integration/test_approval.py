"""A person between the draft and the send: what was approved is sent, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.exceptions import DeliveryKeyInUse, DraftChanged, DraftInUse, InvalidDelivery
from outbound_transfer.operators import approval
from outbound_transfer.operators.approval import ApproveTransferOperator
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support import memory
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import ProcessCrashed
from support.keyed_tasks import sqlite_connection
from support.people import TIMEOUT, Person, answering, rejects
from support.tasks import FakeTaskInstance, again, changed

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
    return task(DeliverFilesOperator, "deliver", files=str(report), send=False, **DELIVERY)


@pytest.fixture
def approving(task, person) -> Callable[..., FakeTaskInstance]:
    def make(transfer_id: Any, **arguments: Any) -> FakeTaskInstance:
        ti = task(ApproveTransferOperator, "approve", transfer_id=transfer_id, retries=2, **arguments)
        ti.person = lambda: person.answer("approve")
        return ti

    return make


def taking(ti: FakeTaskInstance, **results: FakeTaskInstance) -> FakeTaskInstance:
    """Let a task take results of others, whatever they are by then."""
    make = ti.make
    ti.make = lambda: changed(make(), {name: other.result for name, other in results.items()})
    return ti


@pytest.fixture
def approve(approving, deliver) -> FakeTaskInstance:
    return taking(approving("later"), transfer_id=deliver)


@pytest.fixture
def send(task, deliver, approve) -> FakeTaskInstance:
    ti = task(SendTransferOperator, "send", transfer_id="later", approval="{{ later }}")
    return taking(ti, transfer_id=deliver, approval=approve)


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
    monkeypatch.setenv("AIRFLOW_CONN_SALES", sqlite_connection(tmp_path / "s.db"))
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
def test_arguments_that_contradict_a_draft_are_refused_when_the_dag_is_parsed(given, words) -> None:
    with pytest.raises(InvalidDelivery, match=words):
        DeliverFilesOperator(task_id="deliver", files="a.csv", **DELIVERY, **given)


def test_another_run_does_not_take_a_key_whose_draft_waits(task, report, monkeypatch, tmp_path) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    arguments = {"files": str(report), "delivery_key": "k", "send": False, **DELIVERY}
    one, other = (task(DeliverFilesOperator, name, **arguments) for name in ("one", "other"))
    draft = one.run()
    other.upstream = {"one": one}
    with pytest.raises(DeliveryKeyInUse):
        other.run()
    other.run_state = "failed"
    assert other.run()["id"] != draft["id"]


def test_an_approved_draft_is_sent_as_the_person_saw_it(deliver, approve, send, person, sandbox, report) -> None:
    draft = deliver.run()

    def look(shown: SimpleNamespace) -> str:
        sandbox.assert_nothing_sent()
        report.write_text("other content\n")
        return str(shown.options[0])

    person.does = look
    given = approve.run()
    wanted = {"transfer_id": draft["id"], "state": "approved", "by": "ann", "at": given["at"], "files": given["files"]}
    assert given == wanted
    assert person.shown[0].options == [f"{word} {draft['id']} ({given['files']})" for word in ("Approve", "Reject")]
    sent = send.run()
    assert sent["approval"] == {"by": "ann", "at": given["at"]}
    sandbox.assert_delivered(sandbox.assert_sent_once(), {"report.csv": b"a,b\n"}, "ann@example.com")
    assert approve.deferrals == 0
    assert again(approve) == given, "it was sent"


def test_the_request_shows_everything_as_plain_text(task, approving, person, report) -> None:
    arguments = {**DELIVERY, "message": "Dear\n<b>all</b>", "security": "email"}
    draft = task(DeliverFilesOperator, "deliver", files=str(report), send=False, **arguments).run()
    approving(draft).run()
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


def test_many_files_are_shown_as_one_digest(task, approving, person, tmp_path) -> None:
    for number in range(51):
        (tmp_path / f"{number:02}.txt").write_text(f"{number}")
    draft = task(DeliverFilesOperator, "deliver", files=str(tmp_path / "*.txt"), send=False, **DELIVERY).run()
    approving(draft).run()
    listed = "".join(f"{file['sha256']}  {file['name']}\n" for file in draft["files"])
    assert "**51 files**, 92 bytes" in person.shown[0].body
    assert hashlib.sha256(listed.encode()).hexdigest() in person.shown[0].body
    assert draft["files"][0]["sha256"] not in person.shown[0].body


@pytest.mark.parametrize("base_url", ["http://airflow", ""])
def test_notifiers_are_called_before_anybody_can_answer(deliver, approving, person, monkeypatch, base_url) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    calls: list[Any] = []

    def notify(context: Any) -> None:
        assert person.shown == []
        calls.append(context["approval"])
        if len(calls) == 1:
            raise RuntimeError("mail server away")

    approving(deliver.run(), notifiers=[notify, notify]).run()
    assert [call["subject"] for call in calls] == [person.shown[0].subject] * 2
    path = "/dags/dag/runs/run/tasks/approve/required_actions?map_index=-1"
    assert calls[1]["url"] == (base_url + path if base_url else "")


def test_a_rejection_skips_and_the_draft_stays_unsent(deliver, approve, send, person, sandbox, hook) -> None:
    draft = deliver.run()["id"]
    person.does = rejects
    with pytest.raises(AirflowSkipException, match="ann rejected"):
        approve.run()
    with pytest.raises(DraftChanged, match="ann rejected"):  # its trigger rule runs it nevertheless
        send.run()
    assert hook.get_transfer(draft).is_draft


def test_without_the_answer_that_was_asked_for_nothing_is_sent(deliver, approve, send, task, person, sandbox) -> None:
    deliver.run()
    with pytest.raises(DraftChanged, match="not approved"):
        send.run()  # the task that approves was left out
    plain = task(SendTransferOperator, "plain", transfer_id=deliver.result, slot_timeout=timedelta(minutes=1))
    with pytest.raises(DraftChanged, match="not approved"):
        plain.run()  # it was asked for once

    def try_to_send(shown: SimpleNamespace) -> str:
        with pytest.raises(DraftInUse, match="Nobody has approved"):
            again(plain)
        return str(shown.options[0])

    person.does = try_to_send
    approve.run()
    again(plain)
    sandbox.assert_sent_once()


def test_files_that_change_while_a_person_thinks_are_not_sent(task, approving, person, sandbox, report) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=str(report))
    attach.run()

    def change(shown: SimpleNamespace) -> str:
        report.write_text("changed")
        again(attach)
        return str(shown.options[0])

    person.does = change
    with pytest.raises(AirflowFailException, match="have changed since"):
        approving(draft).run()
    with pytest.raises(DraftInUse):
        task(SendTransferOperator, "send", transfer_id=draft).run()
    sandbox.assert_nothing_sent()


def test_nobody_is_asked_while_a_task_attaches_files(task, approving, person, tmp_path) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=str(tmp_path / "missing.csv"))
    with pytest.raises(Exception, match="missing"):
        attach.run()
    with pytest.raises(DraftInUse, match="attaching files"):
        approving(draft).run()
    assert person.shown == []


@pytest.mark.parametrize(
    ("days", "reason"), [(1, "within 7 days"), (29.5, r"within 7 days|within 1\d:\d\d"), (29.99, "expires")]
)
def test_nobody_answers_in_time(deliver, approve, send, person, sandbox, monkeypatch, days, reason) -> None:
    """The wait ends before the draft expires."""
    deliver.run()
    now = approval.names.timezone.utcnow() + timedelta(days=days)
    person.does = lambda shown: TIMEOUT
    with monkeypatch.context() as patched:
        patched.setattr(approval.names, "timezone", SimpleNamespace(utcnow=lambda: now))
        with pytest.raises((AirflowFailException, DraftChanged), match=reason):
            approve.run()
    with pytest.raises((DraftChanged, DraftInUse), match="not approved|Nobody has approved"):
        send.run()
    sandbox.assert_nothing_sent()


def test_somebody_else_than_those_assigned_does_not_approve(deliver, approving, send, sandbox) -> None:
    approve = approving(deliver.run(), assigned_users={"id": "2", "name": "bob"})
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


def test_nobody_is_asked_about_what_another_index_has_sent(task, deliver, approving, person, report, sandbox) -> None:
    other = task(DeliverFilesOperator, "deliver", files=str(report), **DELIVERY)
    other.map_index, deliver.map_index = 0, 1
    sent, draft = other.run()["id"], deliver.run()
    approve = approving(draft)
    approve.map_index = 1
    with pytest.raises(Exception, match=f"Transfer {sent}, which another task or index of this run has sent"):
        approve.run()
    assert (person.shown, sandbox.sent()) == ([], [sent])


@pytest.mark.parametrize("what", ["a clear", "a new key", "a death", "a death after a rejection"])
def test_an_answer_that_airflow_took_is_not_lost(deliver, approve, send, person, sandbox, monkeypatch, what) -> None:
    """Another task is cleared meanwhile, the API key is rotated, or the worker dies as it takes the answer up."""
    deliver.run()
    is_rejected = "rejection" in what
    person.does = rejects if is_rejected else person.does

    def answer() -> dict[str, Any]:
        given, approve.person = person.answer("approve"), lambda: person.answer("approve")
        if "death" in what:
            raise ProcessCrashed
        if what == "a new key":
            sandbox.revoke_key(sandbox.transfer_api_key)
            sandbox.transfer_api_key = sandbox.new_key("sender@example.com")
            monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", sandbox.airflow_connection())
            return given
        approve.clear_number += 1  # of the run: Airflow counts the clears of all its tasks
        return given

    approve.person = answer
    with pytest.raises(AirflowSkipException, match="ann rejected") if is_rejected else nullcontext():
        approve.run()
    assert (approve.try_number, len(person.shown)) == (2 if "death" in what else 1, 1)
    if not is_rejected:
        assert send.run()["approval"]["by"] == "ann"
        sandbox.assert_sent_once()
