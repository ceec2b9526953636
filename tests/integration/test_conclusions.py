"""What a delivery concludes from what it finds, and from what it does not find."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from outbound_transfer.exceptions import SourceMissing
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support import memory
from support.airflow_names import AirflowException, AirflowFailException, AirflowTaskTimeout
from support.calls import READ, SEND, ProcessCrashed, after, before, dying_after
from support.keyed_tasks import sqlite_connection
from support.oracle import says_sent
from support.tasks import FakeTaskInstance, SimulatedClock, again, at_the_next_wait, without_credit

DELIVERY: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"]}

Make = Callable[..., FakeTaskInstance]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return [str(path) for path in paths]


@pytest.fixture
def deliver(task, files) -> Make:
    return lambda **arguments: task(DeliverFilesOperator, **{"files": files, **DELIVERY, **arguments})


def names(sandbox, transfer_id: str) -> list[str]:
    return sorted(file["name"] for file in sandbox.transfer(transfer_id)["files"])


# What is not remembered.


@pytest.mark.parametrize("operator", [DeliverFilesOperator, CreateTransferOperator])
def test_nothing_is_created_where_nothing_can_be_remembered(task, sandbox, files, operator) -> None:
    arguments = {"files": files} if operator is DeliverFilesOperator else {}
    ti = task(operator, **DELIVERY, **arguments)
    memory.fail(ti)

    with pytest.raises(Exception, match="memory"):
        ti.run()

    assert sandbox.requests() == []


@pytest.mark.parametrize("at", range(12))
def test_a_try_that_is_late_at_its_memory_does_not_send_beside_the_next_one(deliver, sandbox, at) -> None:
    """Airflow gives it up, and the next one runs to its end, at each access to what they remember."""
    late = deliver()
    next_ = deliver(task_id=late.task_id)
    next_.try_number = 1
    memory.at_access(late, at, next_.run)
    with suppress(Exception):
        late.run()
    assert sandbox.sent() == [(next_.result or late.result)["id"]]


def test_what_another_task_of_the_run_sends_to_some_of_them_is_another_delivery(deliver, sandbox) -> None:
    one, ti = deliver(), deliver(recipients=["bob@example.com", "ann@example.com"])
    ti.upstream["one"] = one
    ti.clear_number = 1

    assert [one.run()["id"], ti.run()["id"]] == sandbox.sent()


# What is found under an id.


@pytest.mark.parametrize("operator", [AttachFilesOperator, SendTransferOperator, DiscardTransferOperator])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_draft_of_another_account_is_left_alone_here(task, files, sandbox, elsewhere, operator, has_run) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    draft = create.run()
    arguments = {"files": files} if operator is AttachFilesOperator else {}
    ti = task(operator, transfer_id=draft, **arguments)
    if has_run and operator is AttachFilesOperator:
        ti.run()  # it knows itself where that was
    else:
        ti.upstream = {"create": create}
    other = elsewhere()

    with pytest.raises(AirflowFailException, match=draft):
        again(ti)

    assert other.requests() == []
    assert sandbox.transfer(draft)["status"] == "draft"


@pytest.mark.parametrize("change", ["another file", "another draft"])
def test_a_draft_that_somebody_changes_during_a_wait_is_not_sent(deliver, sandbox, files, hook, change) -> None:
    ti = deliver(retries=1, deferrable=False)
    sandbox.patch_account(outstanding_transfer_limit=0)

    def change_the_draft() -> None:
        draft = ti.xcoms["transfer_id"]
        if change == "another file":
            hook.remove_file(draft, sandbox.transfer(draft)["files"][0]["id"])
        else:
            sandbox.plan_faults(
                {"kind": "field_value", "method": "GET", "path": f"*/{draft}", "field": "subject", "json": '"Payroll"'}
            )
        sandbox.patch_account(outstanding_transfer_limit=9)

    at_the_next_wait(ti.time, change_the_draft)
    sent = ti.run()["id"]
    assert (ti.try_number, sandbox.sent()) == (2, [sent])
    assert names(sandbox, sent) == ["a.csv", "b.csv"]


def test_a_send_whose_response_is_a_draft_is_reconciled(deliver, sandbox) -> None:
    answer = {"kind": "error", "method": "POST", "path": "*/send", "status": 502}
    draft = {"kind": "field_value", "method": "POST", "path": "*/send", "field": "status", "json": '"draft"'}
    sandbox.plan_faults(draft, answer)
    result = deliver().run()
    assert (result["status"], sandbox.sent()) == ("pending", [result["id"]])


def test_a_wrong_transfer_is_not_a_success_after_a_clear(deliver, sandbox) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    other = json.dumps(sandbox.transfer(sent)["files"]).replace("b.csv", "c.csv")
    sandbox.plan_faults({"kind": "field_value", "method": "GET", "path": f"*/{sent}", "field": "files", "json": other})

    with pytest.raises(AirflowFailException, match=sent):
        again(ti)


# Files of several tasks.


def attached(task: Make, create: FakeTaskInstance, name: str, files: list[str]) -> FakeTaskInstance:
    ti = task(AttachFilesOperator, name, transfer_id=create.result, files=files)
    ti.upstream = {"create": create}
    ti.run()
    return ti


@pytest.mark.parametrize("state", ["success", "upstream_failed", "running"])
def test_no_draft_is_sent_before_each_task_has_attached_its_files_to_it(task, sandbox, files, state) -> None:
    """Create was cleared alone, so the draft is another: one task has attached its file to that, two has not."""
    send = remade(task, files, state)
    with pytest.raises(Exception, match="two"):
        send.run()
    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("state", ["skipped", "removed"])
def test_a_task_that_attaches_nothing_any_more_does_not_stop_the_send(task, sandbox, files, state) -> None:
    send = remade(task, files, state)
    assert [file["name"] for file in send.run()["files"]] == ["a.csv"]


def test_what_several_tasks_have_attached_is_sent(task, sandbox, files) -> None:
    create = task(CreateTransferOperator, "create", **DELIVERY)
    create.run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    send = task(SendTransferOperator, "send", transfer_id=create.result)
    send.upstream = {"create": create, "one": one, "two": two}
    assert names(sandbox, send.run()["id"]) == ["a.csv", "b.csv"]


def remade(task: Make, files: list[str], state: str) -> FakeTaskInstance:
    create = task(CreateTransferOperator, "create", **DELIVERY)
    create.run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    again(create)
    one = attached(task, create, "one", files[:1])
    send = task(SendTransferOperator, "send", transfer_id=create.result)
    send.upstream = {"create": create, "one": one, "two": two}
    two.final_state = state
    return send


@pytest.fixture
def attach(task, files) -> FakeTaskInstance:
    """A task that attaches the first file to a draft, and has done so."""
    ti = task(AttachFilesOperator, transfer_id=task(CreateTransferOperator, **DELIVERY).run(), files=files[:1])
    ti.run()
    return ti


def test_a_file_that_was_missing_is_attached_by_a_clear_beside_those_of_another_task(attach, files, task) -> None:
    other = task(AttachFilesOperator, transfer_id=attach.make().transfer_id, files=["/missing.csv"], retries=0)
    with pytest.raises((AirflowFailException, SourceMissing)):
        other.run()
    assert [file["name"] for file in again(other, files=files[1:])] == ["b.csv"]


def test_a_file_is_attached_as_the_last_clear_found_it(task, sandbox, files, tmp_path) -> None:
    other = tmp_path / "other" / "a.csv"
    other.parent.mkdir()
    other.write_bytes(b"\7" * 1000)
    draft = task(CreateTransferOperator, **DELIVERY).run()
    ti = task(AttachFilesOperator, transfer_id=draft, files=files[:1])
    ti.run()
    again(ti, files=[str(other)])

    (stored,) = again(ti, files=files[:1])
    assert sandbox.stored_file(draft, stored["id"])["sha256"] == hashlib.sha256(bytes(1000)).hexdigest()
    assert names(sandbox, draft) == ["a.csv"]


# Which files are the same input.


def touch(files: list[str]) -> Any:
    os.utime(files[0], (1, 1))
    return files


def write_again(files: list[str]) -> Any:
    content = Path(files[1]).read_bytes()
    Path(files[1]).unlink()
    Path(files[1]).write_bytes(content)
    return files


def name_by_a_pattern(files: list[str]) -> Any:
    return f"{Path(files[0]).parent}/*.csv"


def yield_each(files: list[str]) -> Any:
    yield from files


@pytest.mark.parametrize("give", [touch, write_again, name_by_a_pattern, set, iter, yield_each])
def test_the_same_bytes_under_the_same_names_are_the_same_input(deliver, files, give) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    assert again(ti, files=give(files))["id"] == sent


def test_a_file_that_a_pattern_finds_only_after_the_send_is_not_passed_over(deliver, sandbox, files) -> None:
    ti = deliver(files=name_by_a_pattern(files))
    sent = ti.run()["id"]
    Path(files[0]).with_name("c.csv").write_bytes(b"more")

    with pytest.raises(AirflowFailException, match="c.csv"):
        again(ti)
    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("archive", [None, "all.zip"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_file_that_is_gone_hides_no_other_that_has_changed(deliver, sandbox, files, archive, position) -> None:
    ti = deliver(files=[files[0], files[1]], archive=archive)
    sent = ti.run()["id"]
    Path(files[position]).unlink()
    Path(files[1 - position]).write_bytes(b"corrected")

    with pytest.raises(Exception, match=sent):
        again(ti)
    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("how", ["a clear", "a clear of the send", "another run", "a lost response"])
def test_the_log_says_who_has_sent(deliver, task, files, caplog, monkeypatch, tmp_path, how) -> None:
    """What was sent before is not said to be sent now."""
    caplog.set_level("INFO")
    other = deliver
    if how == "another run":
        memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "deliveries.db"))
        other = partial(deliver, delivery_key="k")
    ti = other(task_id="first")
    if how == "a clear of the send":
        ti = task(SendTransferOperator, "first", transfer_id=make_draft(task, files))
    log = {"_cached_logger": logging.getLogger("task")}
    with after(SEND, raising(httpx.ReadError("reset"))) if how == "a lost response" else nullcontext():
        first = again(ti, **log)["id"]
    assert re.findall("Sent transfer .*: pending|Done|sent before", caplog.text) == [
        f"Sent transfer {first}: pending",
        "Done",
    ]

    caplog.clear()
    again(other(task_id="other") if how == "another run" else ti, **log)
    maker = "task" if how == "a clear of the send" else "first"
    told = f"Nothing is sent: transfer {first} (pending), which task {maker} of run run of dag made, was sent before"
    assert re.findall("Nothing .*|Sent transfer|Done", caplog.text) == [told]


@pytest.mark.parametrize("is_cleared", [False, True], ids=["a retry", "a retry once another task was cleared"])
def test_an_automatic_retry_after_the_send_requests_nothing_new(deliver, files, is_cleared) -> None:
    ti = deliver(retries=2)
    sent = ti.run()["id"]
    Path(files[0]).write_bytes(b"tomorrow's")
    ti.try_number += 1
    ti.clear_number += is_cleared

    assert ti.run_once()["id"] == sent


def test_a_clear_compares_the_files(deliver, sandbox, files) -> None:
    """The first try after the clear may have died before it was the package's turn."""
    ti = deliver(retries=1)
    first = ti.run()["id"]
    Path(files[0]).write_bytes(b"corrected")
    ti.clear()
    ti.try_number += 1
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"{first}.*a.csv"):
            again(ti)


# Templates that give nothing.


NOTHING = "{{ nothing }}"
QUESTION = {"security": "question", "security_question": "Which?", "security_answer": "Blue"}


def rendered_task(sandbox, native: bool, task_id: str = "task", **arguments: Any) -> FakeTaskInstance:
    """A task whose templates have been rendered, as Airflow does before it runs."""

    def make() -> DeliverFilesOperator:
        with DAG("templates", schedule=None, render_template_as_native_obj=native):
            operator = DeliverFilesOperator(task_id=task_id, **{"files": "a.csv", **DELIVERY, **arguments})
        operator.render_template_fields({"nothing": None, "word": "None"})
        return operator

    return FakeTaskInstance(make, SimulatedClock(sandbox), task_id=task_id)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subject": NOTHING}, "subject must not be empty"),
        *(({**QUESTION, missing: NOTHING}, "security") for missing in QUESTION),
        # The file's own name may be an internal one.
        ({"files": {"path": "customer_4711_draft.csv", "name": NOTHING}}, "the name of a file must not be empty"),
        ({"files": {"path": "customer_4711_draft.csv", "name": "{{ '' }}"}}, "the name of a file must not be empty"),
    ],
    ids=str,
)
def test_what_a_template_does_not_give_is_refused(connection, sandbox, native, arguments, message) -> None:
    with pytest.raises(AirflowFailException, match=message):
        rendered_task(sandbox, native, **arguments).run()
    assert sandbox.requests() == []


@pytest.mark.parametrize("native", [True, False])
def test_nothing_is_not_sent_as_a_word(connection, sandbox, files, native) -> None:
    sent = rendered_task(sandbox, native, files=files, message=NOTHING).run()["id"]
    assert sandbox.transfer(sent)["message"] is None


@pytest.mark.parametrize("wrong", [None, "", "None", ".", 7, {"subject": "Report"}])
def test_a_send_of_no_id_is_refused_and_forgotten(task, sandbox, files, wrong) -> None:
    draft = make_draft(task, files)
    send = task(SendTransferOperator, transfer_id=wrong, _airflow_from_mapped=True)
    with pytest.raises(AirflowFailException, match=" id "):
        send.run()

    assert again(send, transfer_id=draft)["id"] == draft


@pytest.mark.parametrize("wrong", [{"timeout": "soon"}, {"poke_interval": -1}, {"on_expired": "{{ 1 }}"}], ids=str)
def test_a_wait_that_cannot_be_is_refused_before_the_send(deliver, sandbox, wrong) -> None:
    with pytest.raises((AirflowFailException, ValueError)):
        deliver(wait=True, **wrong).run()
    assert sandbox.requests() == []


# What was sent is named, whatever fails.


def make_draft(task: Make, files: list[str]) -> str:
    transfer_id = str(task(CreateTransferOperator, **DELIVERY).run())
    task(AttachFilesOperator, transfer_id=transfer_id, files=files).run()
    return transfer_id


#: What a task gets where the API server fails.
API_SERVER_ERROR = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))


def raising(error: BaseException) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    return refuse


def time_out() -> Any:
    raise AirflowTaskTimeout("Timeout, PID: 1")


@pytest.mark.parametrize("wrong", [{"recipients": ["ann@"]}, {"slot_timeout": "soon"}, {}], ids=lambda each: str(*each))
def test_an_error_at_the_beginning_of_a_try_names_what_was_sent(deliver, sandbox, wrong, monkeypatch) -> None:
    """The first try sent, and died before it knew."""
    ti = deliver()
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        ti.run()
    if not wrong:
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", '{"conn_type": "outbound_transfer"}')
    (sent,) = sandbox.sent()
    with pytest.raises(Exception, match=sent):
        again(ti, **wrong)


@pytest.mark.parametrize("error", [PermissionError("denied"), API_SERVER_ERROR], ids=lambda error: type(error).__name__)
def test_an_error_of_airflow_keeps_its_class_and_names_what_was_sent(deliver, sandbox, error, monkeypatch) -> None:
    """The class may decide about a retry."""
    ti = deliver()
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        ti.run()
    monkeypatch.setattr(ti, "xcom_push", raising(error))
    (sent,) = sandbox.sent()
    with pytest.raises(type(error), match=sent):
        again(ti)


@pytest.mark.parametrize("fails", ["its time", "the task's time", "its triggers"])
def test_a_wait_that_fails_says_that_the_transfer_was_sent(deliver, sandbox, fails) -> None:
    ti = deliver(wait=True, deferrable=fails == "its triggers", timeout=0 if fails == "its time" else None)

    def fail_again() -> None:
        ti.at_trigger_failure = fail_again

    if fails == "its triggers":
        fail_again()
    task_time = before(READ, *[lambda: sandbox.sent() and time_out()] * 9)
    raises = pytest.raises((AirflowException, AirflowTaskTimeout))
    with task_time if fails == "the task's time" else nullcontext(), raises as failed:
        ti.run()
    assert says_sent(failed.value, sandbox.sent()[0])


@pytest.mark.parametrize("what", ["the try was given up", "the service is not reached", "no slot"])
def test_a_send_that_was_not_made_is_not_in_doubt(task, sandbox, files, what, monkeypatch) -> None:
    """The teardown discards the draft, and the run is cleared."""
    first = make_draft(task, files)
    ti = task(SendTransferOperator, transfer_id=first, deferrable=True, slot_timeout=300)
    not_reached = before(SEND, *[raising(httpx.ConnectError("connection refused"))] * 30)
    with not_reached if what == "the service is not reached" else nullcontext(), monkeypatch.context() as patched:
        if what == "the try was given up":
            patched.setattr(ti, "state", "failed")
        elif what == "no slot":
            sandbox.patch_account(outstanding_transfer_limit=0)
        with pytest.raises(Exception, match=r"nothing is sent|refused|limit") as failed:
            ti.run()
    sandbox.patch_account(outstanding_transfer_limit=100)
    assert not says_sent(failed.value, first)
    assert task(DiscardTransferOperator, transfer_id=first).run()

    second = make_draft(task, files)
    assert again(ti, transfer_id=second)["id"] == second
    assert sandbox.sent() == [second]


@pytest.mark.parametrize("is_changed", [False, True], ids=["", "after a draft from other input"])
def test_an_execution_timeout_at_the_send_names_the_draft_that_was_sent(deliver, sandbox, is_changed) -> None:
    ti = deliver(deferrable=True)
    if is_changed:
        with without_credit(sandbox):
            ti.run()
    with after(SEND, time_out), pytest.raises(AirflowTaskTimeout) as failed:
        again(ti, subject="Corrected" if is_changed else "Report")

    (sent,) = sandbox.sent()
    assert says_sent(failed.value, sent)
