"""A person between the draft and the send: what is sent is what was shown, and nothing is sent without an answer."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.airflow_compat.names import AirflowFailException, AirflowSkipException
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import InvalidDelivery, NotFound
from outbound_transfer.protocol.messages import Operation, Upload
from outbound_transfer.protocol.models import File, Transfer, build_new_transfer
from outbound_transfer.tasks.approval import ApprovalRequest, DraftContent, NotApproved, parse_response
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support.tasks import FakeTaskInstance, Person, SimulatedClock, again, changed, dying_after, without_credit

DELIVERY = {"subject": "Report *for* | Q1", "recipients": [{"email": "ann@example.com", "name": "Ann [x](y)"}]}


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "report.csv"
    file.write_text("a,b\n")
    return file


@pytest.fixture
def task(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    time = SimulatedClock(sandbox)

    def make(
        operator: type, task_id: str = "task", *, does: Any = Person.approves, retries: int = 0, **given: Any
    ) -> FakeTaskInstance:
        return FakeTaskInstance(
            lambda: operator(task_id=task_id, **given), time, retries, task_id=task_id, person=Person(does)
        )

    return make


@pytest.fixture
def deliver(task, report) -> Callable[..., FakeTaskInstance]:
    def make(**arguments: Any) -> FakeTaskInstance:
        return task(DeliverFilesOperator, **{"files": str(report), "require_approval": True, **DELIVERY, **arguments})

    return make


def sends(sandbox) -> int:
    return sum(call["path"].endswith("/send") for call in sandbox.requests())


def is_draft(hook, transfer_id: str) -> bool:
    try:
        return hook.get_transfer(transfer_id).is_draft
    except NotFound:
        return False


def test_nothing_is_sent_before_the_approval(deliver, sandbox, hook) -> None:
    def look(shown: SimpleNamespace) -> str:
        assert sends(sandbox) == 0
        assert is_draft(hook, ti.xcoms["transfer_id"])
        return Person.approves(shown)

    ti = deliver(does=look)
    assert ti.run()["status"] == "pending"
    assert sends(sandbox) == 1
    approval = ti.xcoms["approval"]
    assert (approval["by"], len(ti.person.shown)) == ("ann", 1)
    assert ti.person.shown[0].options == [f"Approve {approval['code']}", "Reject"]


def test_the_request_shows_what_is_sent_as_plain_text(deliver) -> None:
    ti = deliver(message="Dear\n<b>all</b>", security="email")
    ti.run()
    shown = ti.person.shown[0]
    assert shown.subject == "Send 'Report *for* | Q1' to 1 recipient?"
    for text in (
        "**Subject:** ` Report *for* | Q1 `",
        "**To 1 recipient**\n- ` Ann [x](y) <ann@example.com> `",
        "**Security:** ` email `",
        "> ` Dear `\n>\n> ` <b>all</b> `",
        "| ` report.csv ` | 4 | ",
    ):
        assert text in shown.body
    assert ti.xcoms["transfer_id"] in shown.body


def test_the_number_of_recipients_alone_where_they_are_not_shown(deliver, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    ti = deliver()
    ti.run()
    assert "To 1 recipient" in ti.person.shown[0].body
    assert "example" not in ti.person.shown[0].body


@pytest.mark.parametrize("fails", [False, True])
def test_a_rejection_discards_the_draft(deliver, sandbox, hook, fails) -> None:
    ti = deliver(does=Person.rejects, fail_on_reject=fails, keep_draft=True, retries=3)
    expected = AirflowFailException if fails else AirflowSkipException
    with pytest.raises(expected, match="Nothing is sent: rejected by ann"):
        ti.run()
    assert (sends(sandbox), is_draft(hook, ti.xcoms["transfer_id"])) == (0, False)


@pytest.mark.parametrize("outcome", ["fail", "reject"])
def test_nobody_answers_in_time(deliver, sandbox, hook, outcome) -> None:
    ti = deliver(does=lambda shown: None, approval_timeout=timedelta(hours=2), on_approval_timeout=outcome, retries=3)
    expected = AirflowFailException if outcome == "fail" else AirflowSkipException
    with pytest.raises(expected, match="nobody has responded in time"):
        ti.run()
    assert (sends(sandbox), is_draft(hook, ti.xcoms["transfer_id"])) == (0, False)


def test_what_was_approved_is_sent_whatever_becomes_of_its_source(deliver, report, hook) -> None:
    def change(shown: SimpleNamespace) -> str:
        report.write_text("other content\n")
        return Person.approves(shown)

    ti = deliver(does=change)
    transfer = ti.run()
    assert [file["size"] for file in transfer["files"]] == [4]
    assert len(ti.person.shown) == 1


@pytest.mark.parametrize("becomes", ["gone", "longer", "two"])
def test_the_second_of_equal_items_is_refused_whatever_becomes_of_the_source(deliver, report, sandbox, becomes) -> None:
    def change(shown: SimpleNamespace) -> str:
        other.run()
        match becomes:
            case "gone":
                report.unlink()
            case "longer":
                report.write_text("longer content\n")
            case "two":
                report.with_name("report2.csv").write_text("a")
        return Person.approves(shown)

    pattern = str(report.with_name("*.csv"))
    ti, other = deliver(files=pattern, does=change), deliver(files=pattern)
    ti.map_index, other.map_index, ti.other_indexes, other.other_indexes = 1, 0, 2, 2
    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        ti.run()
    assert sends(sandbox) == 1


def test_a_query_is_run_once(task, tmp_path, monkeypatch) -> None:
    database = tmp_path / "warehouse.db"
    with closing(sqlite3.connect(database)) as opened:
        opened.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(database)}))

    def empty(shown: SimpleNamespace) -> str:
        with closing(sqlite3.connect(database)) as opened:
            opened.executescript("DELETE FROM t")
        return Person.approves(shown)

    query = {"sql_conn_id": "warehouse", "sql": "SELECT a FROM t", "file_name": "t.csv"}
    ti = task(SqlToOutboundTransferOperator, does=empty, require_approval=True, **query, **DELIVERY)
    assert [file["size"] for file in ti.run()["files"]] == [6]


def test_other_people_are_asked_about_again(deliver, sandbox) -> None:
    people = ["ann@example.com", "bob@example.com"]
    ti = deliver()
    ti.person = person = Person(Person.approves, keeps_first=False)
    make = ti.make

    def choose(shown: SimpleNamespace) -> str:
        ti.make = lambda: changed(make(), {"recipients": people})
        return Person.approves(shown)

    person.does = choose
    assert len(ti.run()["recipients"]) == 2
    assert ["bob" in shown.body for shown in person.shown] == [False, True]
    assert sends(sandbox) == 1


def test_an_approval_of_what_airflow_still_shows_is_none_of_anything_else(deliver, sandbox) -> None:
    """Airflow up to 3.3 shows a later try what the first one has asked."""
    ti = deliver(does=Person.rejects)
    with pytest.raises(AirflowSkipException):
        ti.run()
    ti.person.does = Person.approves
    with pytest.raises(AirflowFailException, match="has approved what an earlier try has shown"):
        again(ti, message="Corrected")
    assert sends(sandbox) == 0


def test_a_clear_asks_anew_and_a_retry_does_not(deliver, sandbox) -> None:
    ti = deliver(retries=1)
    with without_credit(sandbox):
        ti.run()
    assert len(ti.person.shown) == 1
    ti.clear()
    with dying_after(Operation.GET, skip=3):  # once it is approved
        ti.run()
    assert (len(ti.person.shown), sends(sandbox)) == (2, 2)  # one was refused


@pytest.mark.parametrize("keeps_first", [True, False])
def test_a_resend_is_approved_where_it_is_shown(deliver, sandbox, keeps_first) -> None:
    ti = deliver()
    first = ti.run()
    ti.person.keeps_first = keeps_first
    if keeps_first:
        with pytest.raises(AirflowFailException, match="has approved what an earlier try has shown"):
            again(ti, resend=first["id"])
    else:
        again(ti, resend=first["id"])
    assert f"after ` {first['id']} `" in ti.person.shown[1].body
    assert sends(sandbox) == (1 if keeps_first else 2)


def test_three_tasks(task, report, sandbox) -> None:
    create = task(CreateTransferOperator, "create", security="email", **DELIVERY)
    create.begin_try()
    draft = create.run_once()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=str(report))
    attach.upstream = {"create": create}
    attach.begin_try()
    attach.run_once()
    send = task(SendTransferOperator, "send", transfer_id=draft, require_approval=True)
    send.upstream = {"create": create, "attach": attach}
    assert send.run()["status"] == "pending"
    (shown,) = send.person.shown
    assert "**Security:** ` email `" in shown.body
    assert "not known" not in shown.body
    assert send.xcoms["approval"]["by"] == "ann"


def test_three_tasks_and_a_rejection(task, report, sandbox, hook) -> None:
    create = task(CreateTransferOperator, "create", **DELIVERY)
    create.begin_try()
    draft = create.run_once()
    send = task(SendTransferOperator, "send", transfer_id=draft, require_approval=True, does=Person.rejects)
    send.upstream = {"create": create}
    with pytest.raises(AirflowSkipException, match="rejected by ann"):
        send.run()
    assert (sends(sandbox), is_draft(hook, draft)) == (0, False)


# What an attack has found: what a task concludes from a response, and for how long.


@pytest.mark.parametrize("changes", ["file", "answer"])
def test_three_tasks_whose_draft_is_another_are_asked_about_again(task, sandbox, hook, changes) -> None:
    arguments = {"security": "question", "security_question": "Which?", "security_answer": "first"} | DELIVERY
    create = task(CreateTransferOperator, "create", **arguments)
    create.begin_try()
    create.result = draft = create.run_once()
    hook.attach_file(draft, Upload("a.csv", 4, lambda: iter([b"good"])))

    def change(shown: SimpleNamespace) -> str:
        if changes == "file":
            hook.get_conn().perform(endpoints.remove_file(draft, hook.get_transfer(draft).files[0].id))
        else:
            again(create, security_answer="second")
        hook.attach_file(create.result, Upload("a.csv", 4, lambda: iter([b"evil"])))
        return Person.approves(shown)

    send = task(SendTransferOperator, "send", transfer_id=draft, require_approval=True, does=change)
    send.make = lambda: SendTransferOperator(task_id="send", transfer_id=create.result, require_approval=True)
    send.upstream = {"create": create}
    with pytest.raises(AirflowFailException, match="has approved what an earlier try has shown"):
        send.run()
    assert sends(sandbox) == 0


@pytest.mark.parametrize("does", [Person.approves, Person.rejects])
def test_what_a_stranger_has_sent_meanwhile_nobody_has_approved(deliver, hook, sandbox, does) -> None:
    def send(shown: SimpleNamespace) -> str:
        hook.send_transfer(ti.xcoms["transfer_id"])
        return str(does(shown))

    ti = deliver(does=send)
    if does is Person.approves:
        ti.run()
    else:
        with pytest.raises(AirflowFailException, match="it was sent by somebody else"):
            ti.run()
    assert "approval" not in ti.xcoms
    assert sends(sandbox) == 1


def test_an_approval_before_a_clear_is_no_proof_of_what_somebody_else_sends(deliver, sandbox, hook) -> None:
    ti = deliver(keep_draft=True)
    with without_credit(sandbox):
        ti.run()

    def send_and_reject(shown: SimpleNamespace) -> str:
        hook.send_transfer(ti.xcoms["transfer_id"])
        return Person.rejects(shown)

    ti.person.does = send_and_reject
    ti.clear()
    with pytest.raises(AirflowFailException, match="it was sent by somebody else"):
        ti.run()
    ti.clear()
    assert ti.run()["status"] == "pending"
    assert "approval" not in ti.xcoms


@pytest.mark.parametrize("does", [Person.rejects, lambda shown: None])
def test_a_response_counts_although_the_argument_is_gone(deliver, sandbox, does) -> None:
    """The DAG may be deployed anew during the wait."""

    def deploy(shown: SimpleNamespace) -> str | None:
        make = ti.make
        ti.make = lambda: changed(make(), {"require_approval": False})
        return does(shown)

    ti = deliver(does=deploy, retries=1)
    with pytest.raises((AirflowFailException, AirflowSkipException), match="Nothing is sent"):
        ti.run()
    assert sends(sandbox) == 0


def test_only_who_is_assigned_now_approves(deliver, sandbox) -> None:
    """Airflow up to 3.3 goes on letting those respond whom the first request names."""
    users = [{"id": "1", "name": "ann"}]
    ti = deliver(approval_assigned_users=users, does=Person.rejects)
    with pytest.raises(AirflowSkipException):
        ti.run()
    ti.person.does = Person.approves
    with pytest.raises(AirflowFailException, match="ann has approved it, and is not one of approval_assigned_users"):
        again(ti, approval_assigned_users=[{"id": "2", "name": "bob"}])
    assert sends(sandbox) == 0
    assert again(ti, approval_assigned_users=users)["status"] == "pending"


def test_security_that_is_not_known_is_said_so(task, hook) -> None:
    new = build_new_transfer(subject="Report", recipients=["ann@example.com"], security="none")
    send = task(SendTransferOperator, "send", transfer_id=hook.create_transfer(new).id, require_approval=True)
    hook.attach_file(send.make().transfer_id, Upload("a.csv", 4, lambda: iter([b"good"])))
    send.run()
    assert "**Security:** not known" in send.person.shown[0].body


def test_a_clear_of_what_was_sent_keeps_the_proof(deliver) -> None:
    ti = deliver()
    ti.run()
    proof = ti.xcoms["approval"]
    ti.clear()
    ti.run()
    assert ti.xcoms["approval"] == proof


def test_what_a_stranger_replaces_by_the_like_is_made_anew(deliver, sandbox, hook) -> None:
    def replace_file(shown: SimpleNamespace) -> str:
        draft = hook.get_transfer(ti.xcoms["transfer_id"])
        hook.get_conn().perform(endpoints.remove_file(draft.id, draft.files[0].id))
        hook.attach_file(draft.id, Upload("report.csv", 4, lambda: iter([b"evil"])))
        return Person.approves(shown)

    ti = deliver(does=replace_file)
    transfer = ti.run()
    sandbox.assert_delivered(transfer["id"], {"report.csv": b"a,b\n"}, "ann@example.com")
    assert len(ti.person.shown) == 1


@pytest.mark.parametrize("arguments", [{"retries": 1}, {"keep_draft": True}])
def test_a_rejection_comes_before_anything_else_that_may_fail(deliver, sandbox, hook, arguments) -> None:
    def reject(shown: SimpleNamespace) -> str:
        make = ti.make
        ti.make = lambda: changed(make(), {"subject": ""})
        return Person.rejects(shown)

    ti = deliver(does=reject, **arguments)
    with pytest.raises(AirflowSkipException, match="rejected by ann"):
        ti.run()
    assert not is_draft(hook, ti.xcoms["transfer_id"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"approval_timeout": timedelta(days=31)},
        {"approval_timeout": timedelta()},
        {"approval_timeout": 60},
        {"on_approval_timeout": "send"},
        {"approval_assigned_users": [{"id": 1, "name": "ann"}]},
        {"approval_assigned_users": ["ann"]},
        {"approval_assigned_users": []},
        {"approval_assigned_users": {"id": "", "name": ""}},
        {"require_approval": None},
        {"require_approval": "{{ var.value.asks }}"},
        {"approval_notifiers": "ann@example.com"},
    ],
)
def test_wrong_arguments_are_found_at_parsing(deliver, arguments) -> None:
    with pytest.raises((InvalidDelivery, AirflowFailException), match=next(iter(arguments))):
        deliver(**arguments).make()


@pytest.mark.parametrize(
    "arguments", [{"approval_timeout": timedelta(1)}, {"approval_assigned_users": []}, {"fail_on_reject": True}]
)
def test_arguments_of_an_approval_need_one(deliver, arguments) -> None:
    with pytest.raises(InvalidDelivery, match=f"{next(iter(arguments))} needs require_approval=True"):
        deliver(require_approval=False, **arguments).make()


@pytest.mark.parametrize("notifiers", [None, []])
def test_no_notifiers(deliver, notifiers) -> None:
    assert deliver(approval_notifiers=notifiers).run()["status"] == "pending"


@pytest.mark.parametrize("event", [None, [], {}, {"chosen_options": []}, {"chosen_options": ["Approve a", "Reject"]}])
def test_a_strange_event_approves_nothing(event) -> None:
    assert isinstance(parse_response(event, "a"), NotApproved)


HOSTILE = ["`", "``a```", "| a |", "</b>\n> # x", "\u202ea", "\xad"]
TEXTS = st.text(st.characters(codec="utf-8")) | st.sampled_from(HOSTILE)


@given(TEXTS, TEXTS, TEXTS)
def test_texts_from_outside_are_code(subject: str, message: str, name: str) -> None:
    """No run of backticks in a text is as long as the one that ends its code."""
    draft = Transfer("1", "draft", subject, message=message, files=(File("1", name, 1),))
    body = ApprovalRequest.about(DraftContent(draft, {}), "a", "", shows_recipients=True).body
    lines = [line.removeprefix("**Subject:** ").removeprefix("> ") for line in body.split("\n")]
    for text in (subject, *message.splitlines()):
        if text.strip():
            ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
            assert any(line.startswith(f"{ticks} ") and line.endswith(f" {ticks}") for line in lines)
