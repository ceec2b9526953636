"""What a delivery concludes from what it finds, and from what it does not find: what the model does not play.

The model has no stores that are late, no files, and no texts; what it has is in tests/model.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from outbound_transfer.airflow_compat.names import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
)
from outbound_transfer.client import client
from outbound_transfer.delivery.memory_store import StateLost
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol.errors import DraftChanged, InvalidDelivery, NotConnected, SourceError
from outbound_transfer.protocol.messages import Operation
from support.tasks import FakeTaskInstance, InMemoryStateStore, ProcessCrashed, again, dying_after, without_credit
from support.triggers import first_event, first_shared_event

DELIVERY: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"]}
MAY_BE_SENT = "{} may be this very delivery"

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


def names(client, transfer_id: str) -> list[str]:
    return sorted(file.name for file in client.list_files(transfer_id))


# What is not remembered.


class Silent(InMemoryStateStore):
    """A store whose reads are answered with nothing, and whose writes may be lost, too."""

    def __init__(self, *, takes: bool) -> None:
        super().__init__()
        self.takes = takes

    def get(self, key: str, default: Any = None) -> Any:
        return default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        if self.takes:
            super().set(key, value, retention=retention)


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("operator", [DeliverFilesOperator, CreateTransferOperator])
def test_nothing_is_created_where_the_state_store_keeps_nothing(task, sandbox, files, operator, takes) -> None:
    arguments = {"files": files} if operator is DeliverFilesOperator else {}
    ti = task(operator, **DELIVERY, **arguments)
    ti.store = Silent(takes=takes)

    with pytest.raises(StateLost, match="nothing was created"):
        ti.run()

    assert sandbox.requests() == []


@dataclass
class SlowStore(InMemoryStateStore):
    """A store of which one access, counted from 0, is late: everything else happens first."""

    at: int = -1
    meanwhile: Callable[[], object] = lambda: None

    def get(self, key: str, default: Any = None) -> Any:
        self.step()
        return super().get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.step()
        super().set(key, value, retention=retention)

    def step(self) -> None:
        self.at -= 1
        if self.at == -1:
            self.meanwhile()


@pytest.mark.parametrize("at", range(12))
def test_a_try_that_is_late_at_its_store_takes_no_fence_back(deliver, sandbox, at) -> None:
    """Airflow gives it up, and the next one runs to its end, at each access to the store."""
    late, next_ = deliver(), deliver()
    next_.try_number = 1
    late.store = store = SlowStore(at=at, meanwhile=next_.run)
    next_.store = InMemoryStateStore(store.values)
    with pytest.raises((StateLost, AirflowFailException)):
        late.run()
    assert next_.result
    assert sandbox.sent() == [next_.result["id"]]


@pytest.mark.parametrize("began", ["two hours later", "two hours later, as its run was queued again"])
def test_what_was_sent_before_the_run_was_due_is_another_delivery(deliver, sandbox, began) -> None:
    sent = deliver().run()["id"]
    renamed = deliver()
    renamed.other_tasks = 1
    later = renamed.start_date + timedelta(hours=2)
    if began == "two hours later":
        renamed.start_date = later  # of the run, too
        assert renamed.run()["id"] != sent
    else:
        renamed.restarted = later
        with pytest.raises(AirflowFailException, match=MAY_BE_SENT.format(sent)):
            renamed.run()


def test_what_was_sent_to_others_is_found_where_the_record_is_lost(deliver, sandbox) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    ti.store.values.clear()

    with pytest.raises(AirflowFailException, match=MAY_BE_SENT.format(sent)):
        again(ti, recipients=["bob@example.com", "ann@example.com"])
    assert sandbox.sent() == [sent]


def test_what_another_task_of_the_run_sends_to_some_of_them_is_another_delivery(deliver, sandbox) -> None:
    one, ti = deliver(), deliver(recipients=["bob@example.com", "ann@example.com"])
    ti.upstream["one"] = one
    ti.try_number, ti.max_tries = 1, 2  # a try was killed before it began

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

    with pytest.raises(AirflowFailException, match=f"led to .* when the run began with transfer {draft}"):
        again(ti)

    assert other.requests() == []
    assert sandbox.transfer(draft)["status"] == "draft"


@pytest.mark.parametrize("change", ["another file", "another draft"])
def test_a_draft_that_somebody_changes_during_a_wait_is_not_sent(deliver, sandbox, files, hook, change) -> None:
    ti = deliver(retries=1, deferrable=False)
    sandbox.patch_account(outstanding_transfer_limit=0)
    sleep = ti.time.sleep

    def change_and_sleep(seconds: float) -> None:
        ti.time.sleep = sleep
        draft = ti.xcoms["transfer_id"]
        if change == "another file":
            hook.remove_file(draft, hook.list_files(draft)[0].id)
        else:
            sandbox.plan_faults(
                {"kind": "field_value", "method": "GET", "path": f"*/{draft}", "field": "subject", "json": '"Payroll"'}
            )
        sandbox.patch_account(outstanding_transfer_limit=9)
        sleep(seconds)

    ti.time.sleep = change_and_sleep
    sent = ti.run()["id"]
    assert (ti.try_number, sandbox.sent()) == (2, [sent])
    assert names(hook, sent) == ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    ("field", "value"), [("files", "null"), ("id", '"other"')], ids=["without files", "of another transfer"]
)
def test_an_incomplete_read_is_repeated(deliver, sandbox, field, value) -> None:
    ti = deliver(retries=1, keep_draft=True)
    with without_credit(sandbox):
        ti.run()
    first = ti.xcoms["transfer_id"]
    sandbox.plan_faults({"kind": "field_value", "method": "GET", "path": "*", "field": field, "json": value})

    assert again(ti)["id"] == first


def test_a_send_whose_response_is_a_draft_is_reconciled(deliver, sandbox) -> None:
    answer = {"kind": "error", "method": "POST", "path": "*/send", "status": 502}
    draft = {"kind": "field_value", "method": "POST", "path": "*/send", "field": "status", "json": '"draft"'}
    sandbox.plan_faults(draft, answer)
    result = deliver().run()
    assert (result["status"], sandbox.sent()) == ("pending", [result["id"]])


def test_a_wrong_transfer_is_not_a_success_after_a_clear(deliver, sandbox) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    ti.store.values = {key: value.replace("b.csv", "c.csv") for key, value in ti.store.values.items()}

    with pytest.raises(AirflowFailException, match=f"{sent} was sent, but the service says that it holds"):
        again(ti)


# Files of several tasks.


def attached(task: Make, create: FakeTaskInstance, name: str, files: list[str]) -> FakeTaskInstance:
    ti = task(AttachFilesOperator, name, transfer_id=create.result, files=files)
    ti.upstream = {"create": create}
    ti.run()
    return ti


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["", "in a draft that was made since"])
@pytest.mark.parametrize("state", ["success", "skipped", "removed", "upstream_failed", "running"])
def test_what_a_task_has_attached_is_sent_only_if_it_still_counts(task, sandbox, files, state, is_made_anew) -> None:
    """Airflow keeps the XComs of a task that is cleared, and then skipped, or removed as its list got shorter."""
    create = task(CreateTransferOperator, "create", **DELIVERY)
    create.run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    if is_made_anew:
        again(create)
        one = attached(task, create, "one", files[:1])
    send = task(SendTransferOperator, "send", transfer_id=create.result)
    send.upstream = {"create": create, "one": one, "two": two}
    two.final_state = state
    if state == "success" and not is_made_anew:
        assert len(send.run()["files"]) == 2
    elif state in ("skipped", "removed") and is_made_anew:
        assert [file["name"] for file in send.run()["files"]] == ["a.csv"]
    else:
        with pytest.raises(DraftChanged, match=f"Task two has attached files to draft .* is {state} now"):
            send.run()
        sandbox.assert_nothing_sent()


@pytest.fixture
def attach(task, files) -> FakeTaskInstance:
    """A task that attaches the first file to a draft, and has done so."""
    ti = task(AttachFilesOperator, transfer_id=task(CreateTransferOperator, **DELIVERY).run(), files=files[:1])
    ti.run()
    return ti


def test_a_file_of_an_attach_whose_record_is_lost_is_not_sent(attach, files, task, sandbox) -> None:
    attach.store.values.clear()
    again(attach, files=files[1:])
    send = task(SendTransferOperator, transfer_id=attach.make().transfer_id)
    send.upstream = {"attach": attach}
    with pytest.raises(DraftChanged, match=r"holds \['a\.csv', 'b\.csv'\], which are not the files"):
        send.run()
    sandbox.assert_nothing_sent()


def test_a_try_that_attaches_nothing_leaves_a_record(attach, files, task) -> None:
    """Files of other tasks are refused only if a record is missing."""
    other = task(AttachFilesOperator, transfer_id=attach.make().transfer_id, files=["/missing.csv"], retries=0)
    with pytest.raises((AirflowFailException, SourceError)):
        other.run()
    assert [file["name"] for file in again(other, files=files[1:])] == ["b.csv"]


def test_a_version_of_a_file_whose_record_is_lost_is_not_sent(task, sandbox, files, tmp_path) -> None:
    other = tmp_path / "other" / "a.csv"
    other.parent.mkdir()
    other.write_bytes(b"\7" * 1000)
    draft = task(CreateTransferOperator, **DELIVERY).run()
    ti = task(AttachFilesOperator, transfer_id=draft, files=files[:1])
    ti.run()
    again(ti, files=[str(other)])
    del ti.store.values["outbound_transfer_delivery_try_2"]

    (stored,) = again(ti, files=files[:1])
    assert sandbox.stored_file(draft, stored["id"])["sha256"] == hashlib.sha256(bytes(1000)).hexdigest()


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

    with pytest.raises(AirflowFailException, match="c.csv was not among them"):
        again(ti)
    assert sandbox.sent() == [sent]


def test_files_that_are_gone_after_the_send_are_what_was_sent_if_they_are_named_as_before(deliver, files) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    for file in files:
        Path(file).unlink()

    assert again(ti)["id"] == sent, "what was sent is sent"
    with pytest.raises(AirflowFailException, match="with other input: other paths or patterns"):
        again(ti, files="/no/such/file")


@pytest.mark.parametrize("archive", [None, "all.zip"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_file_that_is_gone_hides_no_other_that_has_changed(deliver, sandbox, files, archive, position) -> None:
    ti = deliver(files=[files[0], files[1]], archive=archive)
    sent = ti.run()["id"]
    Path(files[position]).unlink()
    if archive is None:
        assert again(ti)["id"] == sent, "the other is what was sent"
    Path(files[1 - position]).write_bytes(b"corrected")

    with pytest.raises(AirflowFailException, match="with other input"):
        again(ti)
    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("is_cleared", [False, True], ids=["a retry", "a retry once another task was cleared"])
def test_an_automatic_retry_after_the_send_requests_nothing_new(deliver, files, is_cleared) -> None:
    ti = deliver(retries=2)
    sent = ti.run()["id"]
    Path(files[0]).write_bytes(b"tomorrow's")
    ti.try_number += 1
    ti.clear_number += is_cleared

    assert ti.run_once()["id"] == sent


@pytest.mark.parametrize("is_resent", [False, True], ids=["", "that withdraws a resend"])
def test_a_clear_compares_the_files(deliver, sandbox, files, is_resent) -> None:
    """The first try after the clear may have died before it was the package's turn."""
    ti = deliver(retries=1)
    first = ti.run()["id"]
    if is_resent:
        with without_credit(sandbox):
            again(ti, resend=first)
    Path(files[0]).write_bytes(b"corrected")
    ti.clear()
    ti.try_number += 1
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"delivered transfer {first}, with other input: a.csv has"):
            again(ti, resend=None)


# Templates that give nothing.


NOTHING = "{{ nothing }}"
QUESTION = {"security": "question", "security_question": "Which?", "security_answer": "Blue"}


def rendered(native: bool = False, **arguments: Any) -> DeliverFilesOperator:
    with DAG("templates", schedule=None, render_template_as_native_obj=native):
        operator = DeliverFilesOperator(task_id="task", **{"files": "a.csv", **DELIVERY, **arguments})
    operator.render_template_fields({"nothing": None, "word": "None"})
    return operator


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
def test_what_a_template_does_not_give_is_refused(native, arguments, message) -> None:
    operator = rendered(native, **arguments)
    with pytest.raises(InvalidDelivery, match=message):
        _ = operator.new_transfer(), operator.file_specs()


def test_nothing_is_not_sent_as_a_word_but_the_word_itself_may_be() -> None:
    assert [rendered(native, message=NOTHING).new_transfer().message for native in (True, False)] == [None, None]
    asked = rendered(subject="None", message="None").new_transfer()
    assert (asked.subject, asked.message) == ("None", "None")


@pytest.mark.parametrize("wrong", [None, "", "None", ".", 7, {"subject": "Report"}])
def test_a_send_of_no_id_is_refused_and_forgotten(task, sandbox, files, wrong) -> None:
    draft = make_draft(task, files)
    send = task(SendTransferOperator, transfer_id=wrong, _airflow_from_mapped=True)
    with pytest.raises(AirflowFailException, match=r"must be the id of a transfer|not an id of the service"):
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


def refuse(*_: Any, **__: Any) -> Any:
    """As the API server does that fails."""
    raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))


def deny(*_: Any, **__: Any) -> Any:
    raise PermissionError("denied")


def time_out(*_: Any, **__: Any) -> Any:
    raise AirflowTaskTimeout("Timeout, PID: 1")


def lose(*_: Any, **__: Any) -> None:
    """As a store does that keeps nothing."""


@pytest.mark.parametrize(
    ("fails", "how"),
    [
        ("recipients", ["ann@"]),
        ("slot_timeout", "soon"),
        ("the connection", None),
        *(("store.set", how) for how in (refuse, lose)),
        *((name, how) for name in ("get_ti_count", "xcom_push") for how in (refuse, deny)),
    ],
)
def test_an_error_at_the_beginning_of_a_try_names_what_was_sent(deliver, sandbox, fails, how, monkeypatch) -> None:
    """The first try sent, and died before it knew. An error keeps its class, which may decide about a retry."""
    ti = deliver()
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        ti.run()
    changes = {} if how is None or callable(how) else {fails: how}
    if fails == "the connection":
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", '{"conn_type": "outbound_transfer"}')
    elif not changes:
        owner = ti.store if fails == "store.set" else ti
        monkeypatch.setattr(owner, fails.rpartition(".")[2], how)
    (sent,) = sandbox.sent()
    error, text = Exception, sent
    if how is deny:
        error, text = PermissionError, rf"^denied\. Transfer {sent} may nevertheless have been sent"
    with pytest.raises(error, match=text):
        again(ti, **changes)


@pytest.mark.parametrize("fails", ["its time", "the task's time", "its deadline", "its triggers"])
def test_a_wait_that_fails_says_that_the_transfer_was_sent(deliver, sandbox, fails, monkeypatch) -> None:
    ti = deliver(wait=True, deferrable=fails == "its triggers", timeout=0 if fails == "its time" else None)
    store = ti.store.set

    def refuse_the_deadline(key: str, *value: Any, **options: Any) -> None:
        (refuse if "deadline" in key else store)(key, *value, **options)

    def fail_again() -> None:
        ti.at_trigger_failure = fail_again

    if fails == "the task's time":
        monkeypatch.setattr(DeliverFilesOperator, "_wait_until_finished", time_out)
    elif fails == "its deadline":
        monkeypatch.setattr(ti.store, "set", refuse_the_deadline)
    elif fails == "its triggers":
        fail_again()
    with pytest.raises((AirflowException, AirflowTaskTimeout, AirflowRuntimeError)) as failed:
        ti.run()
    said = "may nevertheless have been sent" if fails == "its triggers" else "was sent"
    assert f"Transfer {sandbox.sent()[0]} {said}" in str(failed.value)


NOT_MADE = ["the try was given up", "Airflow does not say", "it took too long", "the service is not reached", "no slot"]


@pytest.mark.parametrize("what", NOT_MADE)
def test_a_send_that_was_not_made_is_not_in_doubt(task, sandbox, files, what, monkeypatch) -> None:
    """The teardown discards the draft, and the run is cleared."""
    first = make_draft(task, files)
    ti = task(SendTransferOperator, transfer_id=first, deferrable=True, slot_timeout=300)
    with monkeypatch.context() as patched:
        if what == "the try was given up":
            patched.setattr(ti, "state", "failed")
        elif what == "Airflow does not say":
            patched.setattr(ti, "get_task_states", refuse)
        elif what == "it took too long":
            patched.setattr(ti, "get_task_states", time_out)
        elif what == "no slot":
            sandbox.patch_account(outstanding_transfer_limit=0)
        else:
            patched.setattr(client, "send", _not_connected(client.send))
        with pytest.raises(BaseException, match=r"nothing is sent|API_SERVER_ERROR|Timeout|refused|limit") as failed:
            ti.run()
    sandbox.patch_account(outstanding_transfer_limit=100)
    assert first not in str(failed.value)
    assert task(DiscardTransferOperator, transfer_id=first).run()

    second = make_draft(task, files)
    assert again(ti, transfer_id=second)["id"] == second
    assert sandbox.sent() == [second]


def _not_connected(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_or_not(*arguments: Any) -> Any:
        if arguments[2].operation is Operation.SEND:
            raise NotConnected("send: connection refused")
        return send(*arguments)

    return send_or_not


@pytest.mark.parametrize("before", ["", "a draft from other input", "a deferral", "a deferral, and a file vanishes"])
def test_an_execution_timeout_at_the_send_names_the_draft_that_was_sent(
    deliver, sandbox, files, before, monkeypatch
) -> None:
    ti = deliver(deferrable=True, files=[f"{Path(files[0]).parent}/*"])
    subject = "Report"
    if before == "a draft from other input":
        with without_credit(sandbox):
            ti.run()
        subject = "Corrected"
    elif before:
        sandbox.plan_faults({**RATE_LIMITED, "path": "*/send" if "vanishes" in before else "*/files"})
        fire = ti._fire
        ti._fire = lambda trigger: (Path(files[0]).unlink() if "vanishes" in before else None, fire(trigger))[1]
    monkeypatch.setattr(client, "send", _timing_out_after_the_send(client.send))
    with pytest.raises(AirflowTaskTimeout) as failed:
        again(ti, subject=subject)

    (sent,) = sandbox.sent()
    assert sent in str(failed.value)


RATE_LIMITED = {
    "kind": "error",
    "method": "POST",
    "status": 429,
    "code": "rate_limited",
    "headers": {"Retry-After": "30"},
}


def _timing_out_after_the_send(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_and_time_out(*arguments: Any) -> Any:
        received = send(*arguments)
        return time_out() if arguments[2].operation is Operation.SEND and received.status == 200 else received

    return send_and_time_out


# A wait that meets another transfer.


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_wait_whose_record_is_lost_names_what_it_waits_for_and_no_empty_id(deliver, sandbox, is_shown) -> None:
    ti = deliver(wait=True, deferrable=True, timeout=0)
    fire = ti._fire

    def lose_and_fire(trigger: Any) -> Any:
        ti.store.values.clear()
        return fire(trigger) if is_shown else {"status": "timeout", "transfer": None, "message": ""}

    ti._fire = lose_and_fire
    with pytest.raises(AirflowSensorTimeout, match=r"^Transfer tr_\w+ was sent\. Timed" if is_shown else r"^Timed out"):
        ti.run()


def test_a_wait_whose_record_is_lost_believes_none_of_another_transfer(deliver, sandbox) -> None:
    ti = deliver(wait=True, deferrable=True)
    with without_credit(sandbox):
        ti.run()
    fire = ti._fire

    def lose_and_fire(trigger: Any) -> Any:
        del ti.store.values["outbound_transfer_delivery_try_2"]
        sandbox.pickup(trigger.transfer_id, "ann@example.com")
        return fire(trigger)

    ti._fire = lose_and_fire
    assert again(ti, subject="Corrected")["status"] == "complete"


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("in_triggerer", [True, False])
def test_the_triggerer_does_not_finish_with_another_transfer(deliver, sandbox, in_triggerer, is_known) -> None:
    """Nor does the worker, if the task's state is lost."""
    ti = deliver(wait=True, deferrable=True, poke_interval=1, finish_in_triggerer=True)

    def fire_of_another(trigger: Any) -> Any:
        sandbox.pickup(trigger.transfer_id, "ann@example.com")
        kind, kwargs = trigger.serialize()
        another = type(trigger)(**{**kwargs, "identity": "another"})
        assert kind.endswith("TransferTrigger")
        assert kwargs["identity"]
        event = asyncio.run(asyncio.wait_for((first_shared_event if in_triggerer else first_event)(another), 60))
        assert type(event).__name__ == "TriggerEvent"
        if not is_known:
            ti.store.values.clear()
        return event.payload

    ti._fire = fire_of_another
    with pytest.raises(AirflowFailException, match="Under its id .* another transfer now"):
        ti.run()
