"""What the error of a failed delivery says of its transfer: what is known, and None for what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.exceptions import AlreadyDelivered, ServerFault, outcome_of
from outbound_transfer.operators.draft import CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.airflow_names import AirflowFailException, AirflowSkipException, mask_secret
from support.calls import ATTACH, SEND, after, before
from support.deliveries import BOTH_MODES, DELIVERY
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

ANN = "ann@example.com"


@pytest.fixture
def deliver(connection, sandbox, tmp_path) -> Callable[..., FakeTaskInstance]:
    file, time = tmp_path / "a.csv", SimulatedClock(sandbox)
    file.write_text("a")

    def make(**arguments: Any) -> FakeTaskInstance:
        return task_instance(DeliverFilesOperator, time, **{"files": str(file), **DELIVERY, **arguments})

    return make


@BOTH_MODES
def test_a_draft_that_was_not_sent_is_picked_up_by_nobody(deliver, sandbox, deferrable) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    task = deliver(deferrable=deferrable)
    with pytest.raises(AirflowFailException, match="no_credit") as raised:
        task.run()
    error = raised.value
    assert (error.transfer_id, error.not_picked_up) == (task.xcoms["transfer_id"], [ANN])
    assert error.outcome.status == "draft"
    outcome = task.xcoms["outcome"]
    assert (outcome["status"], outcome["transfer_id"]) == ("draft", error.transfer_id)
    assert (outcome["not_picked_up"], outcome["reason"]) == ([ANN], outcome_of(error).reason)


@BOTH_MODES
def test_after_a_send_in_doubt_nothing_is_claimed(deliver, sandbox, deferrable) -> None:
    unread = {"kind": "error", "status": 503, "method": "GET", "path": "/v1/transfers/*"}
    sandbox.plan_faults({"kind": "error", "status": 503, "path": "*/send", "effect": "after"}, *[unread] * 60)
    task = deliver(deferrable=deferrable)
    with pytest.raises(ServerFault) as raised:
        task.run()
    outcome = outcome_of(raised.value)
    assert outcome.transfer_id == task.xcoms["transfer_id"]
    assert (outcome.status, outcome.picked_up, outcome.not_picked_up) == (None, None, None)
    assert outcome.reason == str(raised.value)


def test_an_error_before_the_draft_has_no_transfer(deliver, sandbox) -> None:
    task = deliver(recipients=["nobody"], _airflow_from_mapped=True)  # checked when it runs
    with pytest.raises(AirflowFailException) as raised:
        task.run()
    assert outcome_of(raised.value) is None
    assert "outcome" not in task.xcoms


def test_other_input_after_the_send_names_what_was_sent(deliver, sandbox) -> None:
    task = deliver()
    sent = task.run()["id"]
    with pytest.raises(AirflowFailException) as raised:
        again(task, subject="Other")
    assert isinstance(raised.value.__cause__ or raised.value.__context__, AlreadyDelivered)
    assert (raised.value.transfer_id, raised.value.not_picked_up) == (sent, ["ann@example.com"])


@BOTH_MODES
@pytest.mark.parametrize("choice", ["fail", "skip"])
def test_a_delivery_that_waits_says_who_is_outstanding(deliver, sandbox, deferrable, choice) -> None:
    task = deliver(wait=True, deferrable=deferrable, poke_interval=1, on_canceled=choice)
    expected = {"fail": AirflowFailException, "skip": AirflowSkipException}[choice]
    is_canceled = after(SEND, lambda: sandbox.cancel(task.xcoms["transfer_id"]))
    with is_canceled, pytest.raises(expected, match="is canceled") as raised:
        task.run()
    assert (raised.value.transfer_id, raised.value.not_picked_up) == (task.xcoms["transfer_id"], [ANN])
    assert task.xcoms["outcome"]["status"] == "canceled"


def test_the_send_of_a_draft_names_its_transfer(connection, sandbox) -> None:
    time = SimulatedClock(sandbox)
    draft = task_instance(CreateTransferOperator, time, **DELIVERY).run()
    send = task_instance(SendTransferOperator, time, transfer_id=draft)
    with pytest.raises(AirflowFailException, match="it has no files") as raised:
        send.run()
    assert (raised.value.transfer_id, raised.value.not_picked_up) == (draft, None)


@pytest.mark.parametrize("other", [None, "text", ValueError("x"), AirflowFailException("x")], ids=repr)
def test_what_has_no_outcome_gives_none(other) -> None:
    assert outcome_of(other) is None


def test_the_xcom_masks_what_a_log_masks(deliver, sandbox) -> None:
    mask_secret("correct-horse-battery")

    def fail() -> None:
        raise OSError("no login with correct-horse-battery")

    task = deliver()
    with before(ATTACH, fail), pytest.raises(OSError, match="no login"):
        task.run()
    assert task.xcoms["outcome"]["reason"] == "no login with ***"
    assert task.xcoms["outcome"]["not_picked_up"] == [ANN]
