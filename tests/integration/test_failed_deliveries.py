"""A task that fails or is skipped: what its error says of its transfer, and what becomes of its draft."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from outbound_transfer.decorators.deliver_files import deliver_files_task
from outbound_transfer.exceptions import AlreadyDelivered, ServerFault, outcome_of
from outbound_transfer.operators.draft import CreateTransferOperator, DiscardTransferOperator, SendTransferOperator
from support.airflow_names import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    mask_secret,
)
from support.calls import ATTACH, READ, SEND, ProcessCrashed, after, before, dying_after
from support.deliveries import BOTH_MODES, DELIVERY
from support.oracle import says_sent
from support.provider import Upload, build_new_transfer
from support.tasks import FakeTaskInstance, again, at_the_next_wait, without_credit

ANN = "ann@example.com"
CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

FAILING_UPLOADS = [{"kind": "error", "method": "POST", "path": "*/files", "status": 503}] * 8


@BOTH_MODES
def test_a_draft_that_was_not_sent_is_picked_up_by_nobody(deliver, sandbox, deferrable) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver(deferrable=deferrable)
    with pytest.raises(AirflowFailException, match="no_credit") as raised:
        ti.run()
    error, told = raised.value, ti.xcoms["outcome"]
    assert [outcome_of(other) for other in (None, "text", ValueError("x"))] == [None] * 3
    assert (error.transfer_id, error.not_picked_up) == (ti.xcoms["transfer_id"], [ANN])
    assert (error.outcome.status, told["status"], told["transfer_id"]) == ("draft", "draft", error.transfer_id)
    assert (told["not_picked_up"], told["reason"]) == ([ANN], outcome_of(error).reason)


@BOTH_MODES
def test_after_a_send_in_doubt_nothing_is_claimed(deliver, sandbox, deferrable) -> None:
    unread = {"kind": "error", "status": 503, "method": "GET", "path": "/v1/transfers/*"}
    sandbox.plan_faults({"kind": "error", "status": 503, "path": "*/send", "effect": "after"}, *[unread] * 60)
    ti = deliver(deferrable=deferrable)
    with pytest.raises(ServerFault) as raised:
        ti.run()
    outcome = outcome_of(raised.value)
    assert outcome.transfer_id == ti.xcoms["transfer_id"]
    assert (outcome.status, outcome.picked_up, outcome.not_picked_up) == (None, None, None)
    assert outcome.reason == str(raised.value)


def test_other_input_after_the_send_and_a_draft_without_files_are_named(deliver, task) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    with pytest.raises(AirflowFailException, match="it has no files") as raised:
        task(SendTransferOperator, transfer_id=draft).run()
    assert (raised.value.transfer_id, raised.value.not_picked_up) == (draft, None)
    ti = deliver()
    sent = ti.run()["id"]
    with pytest.raises(AirflowFailException) as raised:
        again(ti, subject="Other")
    assert isinstance(raised.value.__cause__ or raised.value.__context__, AlreadyDelivered)
    assert (raised.value.transfer_id, raised.value.not_picked_up) == (sent, [ANN])


@pytest.mark.parametrize(
    ("refusal", "then"),
    [
        ({"retry_after": "30"}, ["POST"]),
        ({"retry_after": "90"}, ["GET", "POST"]),
        ({"retry_after": "30", "code": "", "effect": "after"}, ["POST", "GET"]),
    ],
    ids=["soon", "late", "of a proxy"],
)
def test_a_send_that_is_refused_reads_its_draft_again_if_it_may_have_changed(
    deliver, sandbox, refusal, then, monkeypatch
) -> None:
    ti, monotonic = deliver(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ti.time.now)
    sandbox.plan_faults({"kind": "error", "status": 429, "path": "*/send", **refusal})
    ti.run()
    assert [call["method"] for call in sandbox.requests()][3:] == then  # after the draft and two files


def test_the_xcom_masks_what_a_log_masks(deliver) -> None:
    mask_secret("correct-horse-battery")
    ti = deliver()
    with before(ATTACH, raising(OSError("no login with correct-horse-battery"))), pytest.raises(OSError, match="login"):
        ti.run()
    assert (ti.xcoms["outcome"]["reason"], ti.xcoms["outcome"]["not_picked_up"]) == ("no login with ***", [ANN])


def raising(error: BaseException) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    return refuse


time_out = raising(AirflowTaskTimeout("Timeout, PID: 1"))


@pytest.fixture
def unheard(deliver) -> FakeTaskInstance:
    """A task whose first try sent, and died before it knew."""
    ti: FakeTaskInstance = deliver()
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        ti.run()
    return ti


@pytest.mark.parametrize("wrong", [{"recipients": ["ann@"]}, {"slot_timeout": "soon"}, {}], ids=lambda each: str(*each))
def test_an_error_at_the_start_of_an_attempt_names_the_sent_transfer(unheard, sandbox, wrong, monkeypatch) -> None:
    if not wrong:
        monkeypatch.setenv(CONNECTION, '{"conn_type": "outbound_transfer"}')
    with pytest.raises(Exception, match=sandbox.assert_sent_once()):
        again(unheard, **wrong)


#: What a task gets where the API server fails.
API_SERVER_ERROR = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))


@pytest.mark.parametrize("error", [PermissionError("denied"), API_SERVER_ERROR], ids=lambda error: type(error).__name__)
def test_an_error_of_airflow_keeps_its_class_and_names_what_was_sent(unheard, sandbox, error, monkeypatch) -> None:
    """The class may decide about a retry."""
    monkeypatch.setattr(unheard, "xcom_push", raising(error))
    with pytest.raises(type(error), match=sandbox.assert_sent_once()):
        again(unheard)


@pytest.mark.parametrize("fails", ["its time", "the task's time", "its triggers"])
def test_a_wait_that_fails_says_that_the_transfer_was_sent(deliver, sandbox, fails) -> None:
    timeout, deferrable = 0 if fails == "its time" else None, fails == "its triggers"
    ti = deliver(wait=True, deferrable=deferrable, timeout=timeout, poke_interval=0.1)

    def fail_again() -> None:
        ti.at_trigger_failure = fail_again

    if fails == "its triggers":
        fail_again()
    task_time = before(READ, *[lambda: sandbox.sent() and time_out()] * 9)
    raises = pytest.raises((AirflowException, AirflowTaskTimeout))
    with task_time if fails == "the task's time" else nullcontext(), raises as failed:
        ti.run()
    assert says_sent(failed.value, sandbox.sent()[0])


def test_an_execution_timeout_at_the_send_names_the_draft_that_was_sent(deliver, sandbox) -> None:
    ti = deliver(deferrable=True)
    with without_credit(sandbox):
        ti.run()
    with after(SEND, time_out), pytest.raises(AirflowTaskTimeout) as failed:
        again(ti, subject="Corrected")
    assert says_sent(failed.value, sandbox.assert_sent_once())


def test_an_execution_timeout_while_it_waits_for_a_slot_leaves_nothing_in_doubt(deliver, sandbox) -> None:
    sandbox.patch_account(outstanding_transfer_limit=0)
    ti = deliver(deferrable=False)
    at_the_next_wait(ti.time, time_out)
    with pytest.raises(AirflowTaskTimeout) as failed:
        ti.run()
    assert not says_sent(failed.value, ti.xcoms["transfer_id"])
    assert not exists(sandbox, ti.xcoms["transfer_id"])


@pytest.mark.parametrize("what", ["the try was given up", "the service is not reached", "no slot"])
def test_a_send_that_was_not_made_is_not_in_doubt(task, make_draft, sandbox, what, monkeypatch) -> None:
    """The teardown discards the draft, and the run is cleared."""
    first = make_draft()
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
    second = make_draft()
    assert [again(ti, transfer_id=second)["id"]] == [second] == sandbox.sent()


def exists(sandbox, transfer_id: str) -> bool:
    try:
        return bool(sandbox.transfer(transfer_id)["status"] == "draft")
    except httpx.HTTPStatusError:
        return False


@pytest.mark.parametrize("is_away", [False, True], ids=["", "the service is away"])
def test_a_failure_for_good_leaves_no_draft_if_it_can_be_removed(deliver, sandbox, is_away) -> None:
    ti = deliver(retries=1)
    discards = {"kind": "error", "method": "DELETE", "path": "*", "status": 503}
    sandbox.plan_faults(*FAILING_UPLOADS, *FAILING_UPLOADS, *[discards] * 30 * is_away)
    with pytest.raises(ServerFault):
        ti.run()
    assert (ti.try_number, exists(sandbox, ti.xcoms["transfer_id"])) == (2, is_away)


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_draft_that_no_task_made_is_discarded_unless_it_was_sent(task, hook, sandbox, is_sent) -> None:
    draft = hook.create_transfer(build_new_transfer(**DELIVERY)).id
    if is_sent:
        hook.attach_file(draft, Upload("a.csv", 1, lambda: iter([b"a"])))
        hook.send_transfer(draft)
    assert task(DiscardTransferOperator, transfer_id=draft).run() is not is_sent
    assert not exists(sandbox, draft)
    assert sandbox.sent() == [draft] * is_sent


@pytest.mark.parametrize("is_away", [False, True], ids=["", "the service is away"])
def test_a_skip_of_the_retry_removes_the_draft_and_is_hidden_by_nothing(deliver, sandbox, is_away) -> None:
    """The retry has nothing to deliver, as its function says."""
    ti, drafts = deliver(retries=1), []
    sandbox.plan_faults(*FAILING_UPLOADS, *[{"kind": "error", "path": "*", "status": 503}] * 30 * is_away)

    def skip() -> None:
        drafts.append(ti.xcoms["transfer_id"])
        nothing = raising(AirflowSkipException("nothing to deliver"))
        ti.make = lambda: deliver_files_task(nothing, task_id=ti.task_id, **DELIVERY)().operator
        if not is_away:
            sandbox.clear_faults()

    ti.before_retry = skip
    with pytest.raises(AirflowSkipException, match="nothing to deliver"):
        ti.run()
    assert exists(sandbox, *drafts) is is_away
