"""Waiting for a transfer's end: each case in every way to wait, with one outcome, one error and one XCom.

The tasks run as Airflow runs them: they sleep, are rescheduled, or are deferred to a triggerer's own runner. Time is
the sandbox's.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from outbound_transfer.exceptions import InvalidApiKey, outcome_of
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from support.airflow_names import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
    timezone,
)
from support.tasks import ProcessCrashed, changed
from support.transfers import ANN, BOB, pick_up
from support.triggers import first_shared_event
from support.waiting_tasks import DAY, MODES, Scene, WaitingTask, trigger_of

WAYS = [*MODES, "deliver", "deliver deferred"]


@dataclass
class Way:
    """A task that waits in one way for a transfer to two recipients."""

    scene: Scene
    way: str
    task: WaitingTask | None = None

    def __post_init__(self) -> None:
        self._sent = "" if self.way.startswith("deliver") else self.scene.send(1, ANN, BOB)[0]

    @property
    def sent(self) -> str:
        return self._sent or self.scene.sandbox.assert_sent_once()

    def make(self, **arguments: Any) -> Any:
        given = {"task_id": "task", "poke_interval": 20.0, "timeout": 3_600.0} | arguments
        if self.way.startswith("deliver"):
            given["deferrable"] = self.way.endswith("deferred")
            file = {"name": "report.csv", "content": "a,b"}
            return DeliverFilesOperator(subject="Report", recipients=[ANN, BOB], files=file, wait=True, **given)
        return TransferSensor(transfer_id=self._sent, **MODES[self.way], **given)

    def __call__(self, meanwhile: Callable[[], Any] = lambda: None, **arguments: Any) -> Any:
        """Wait; after a minute and a half, ``meanwhile`` happens. Return the XCom, or raise the error."""
        self.scene.time.after(90, meanwhile)
        self.task = WaitingTask(lambda: self.make(**arguments), self.scene.time)
        self.task.began = self.scene.time.now
        return self.task.run()

    def pick_up(self, *recipients: str) -> Callable[[], None]:
        return lambda: pick_up(self.scene.sandbox, self.sent, *recipients)

    def end(self, how: str) -> Callable[[], None]:
        def end() -> None:
            pick_up(self.scene.sandbox, self.sent, BOB)
            if how == "canceled":
                self.scene.sandbox.cancel(self.sent)
            elif how == "expired":
                self.scene.sandbox.set_expiry(self.sent, 60)

        return end


@pytest.fixture(params=WAYS)
def wait(request, scene) -> Way:
    return Way(scene, request.param)


def test_the_wait_ends_when_all_recipients_have_picked_up(wait) -> None:
    final = wait(wait.pick_up(ANN, BOB))
    assert (final["id"], final["status"]) == (wait.sent, "complete")
    assert all(recipient["picked_up_at"] for recipient in final["recipients"])
    fields = {"id", "status", "subject", "message", "recipients", "expires_at", "sent_at", "not_picked_up"}
    assert set(final) == fields | ({"files", "security", "approval"} if wait.way.startswith("deliver") else set())
    assert "outcome" not in wait.task.xcoms


ACCEPTED = {"partial": "accept_partial", "expired": "on_expired", "canceled": "on_canceled"}


@pytest.mark.parametrize("how", ACCEPTED)
def test_an_end_that_is_a_success(wait, how) -> None:
    final = wait(wait.end(how), **{ACCEPTED[how]: True if how == "partial" else "succeed"})
    assert (final["status"], final["not_picked_up"]) == (how, [ANN])


ENDS = [*product(("expired", "canceled"), ("fail", "skip")), ("partial", "fail")]


@pytest.mark.parametrize(("how", "choice"), ENDS)
def test_a_wait_without_success_says_who_has_not_picked_up(wait, how, choice) -> None:
    error_type = AirflowSkipException if choice == "skip" else AirflowFailException
    with pytest.raises(error_type if how != "partial" else AirflowSensorTimeout) as raised:
        wait(wait.end(how), on_expired=choice, on_canceled=choice, timeout=600.0)
    if how == "partial":
        assert 600 <= wait.scene.time.now - wait.task.began <= 640, "at its deadline and not before"
    error, outcome = raised.value, outcome_of(raised.value)
    assert (error.transfer_id, error.not_picked_up) == (wait.sent, [ANN])  # type: ignore[attr-defined]
    told = {"transfer_id": wait.sent, "reason": str(error), "status": how, "subject": "Report"}
    told |= {"picked_up": [BOB], "not_picked_up": [ANN]}
    assert {name: getattr(outcome, name) for name in told} == told
    xcom = wait.task.xcoms["outcome"]
    assert {name: xcom[name] for name in told} == told


def test_a_refused_key_fails_at_once_and_leaves_unknown_who_has_picked_up(wait) -> None:
    with pytest.raises(AirflowFailException, match="Check the API key") as raised:
        wait(lambda: wait.scene.sandbox.revoke_key(wait.scene.sandbox.transfer_api_key))
    assert raised.value.transfer_id == wait.sent
    assert isinstance(raised.value.__cause__, InvalidApiKey)  # which a callback finds there
    assert wait.scene.time.now - wait.task.began < 300


def test_the_last_poll_is_at_the_deadline(wait) -> None:
    wait.scene.time.after(595, wait.pick_up(ANN, BOB))
    assert wait(timeout=600.0, poke_interval=500.0)["status"] == "complete"
    assert wait.way in ("poke", "reschedule") or wait.scene.time.now - wait.task.began < 640


def test_without_a_timeout_the_wait_lasts_until_the_expiry(wait) -> None:
    def suspend() -> None:
        wait.scene.sandbox.set_expiry(wait.sent, 10 * DAY)
        wait.scene.time.skip(9 * DAY)
        wait.scene.time.after(120, lambda: wait.scene.sandbox.set_expiry(wait.sent, 60))

    with pytest.raises(AirflowFailException, match="is expired"):
        wait(suspend, timeout=None)


def test_failures_that_pass_are_waited_out(wait) -> None:
    proxy = {"kind": "error", "status": 401, "code": ""}

    failures = ({"kind": "error", "status": 503}, {"kind": "reset"}, {"kind": "malformed_json"}, proxy)

    def fail() -> None:
        wait.scene.sandbox.plan_faults(*failures)
        wait.scene.time.after(600, wait.pick_up(ANN, BOB))

    assert wait(fail)["status"] == "complete"
    wait.scene.sandbox.assert_all_faults_triggered()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", [None, "None", "", 7, ["t"], {"id": None}, "\ud800"], ids=repr)
def test_an_invalid_transfer_id_is_refused_before_the_wait(scene, given, mode) -> None:
    task = scene.wait("{{ later }}", **MODES[mode])
    make = task.make
    task.make = lambda: changed(make(), {"transfer_id": given})
    with pytest.raises(AirflowFailException, match="must be a transfer's id"):
        task.run()
    assert scene.sandbox.requests() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_misspelled_connection_fails_at_once_also_with_soft_fail(scene, mode) -> None:
    task = scene.wait("t", outbound_transfer_conn_id="misspelled", soft_fail=True, **MODES[mode])
    with pytest.raises(AirflowNotFoundException, match="misspelled"):
        task.run()


@pytest.mark.parametrize("given", [math.nan, math.inf, -1, "{{ params.every }}", ""])
@pytest.mark.parametrize("argument", ["poke_interval", "timeout"])
def test_an_invalid_duration_is_refused_before_anything_is_sent(scene, argument, given) -> None:
    with pytest.raises((AirflowFailException, ValueError, TypeError), match=f"{argument} must be"):
        Way(scene, "deliver deferred")(**{argument: given})
    scene.sandbox.assert_nothing_sent()


def test_a_sensor_has_the_timeout_that_its_user_has_set(monkeypatch) -> None:
    def sensor(**arguments: Any) -> TransferSensor:
        return TransferSensor(**{"task_id": "wait", "transfer_id": "t", **arguments})

    with DAG("waits", schedule=None, default_args={"timeout": 5.0}):
        assert sensor().timeout == 5.0
        assert sensor(task_id="other", timeout=timedelta(seconds=6)).timeout == 6.0
    assert sensor(timeout=7 * DAY).timeout == 7 * DAY
    assert sensor().timeout > 365 * DAY

    monkeypatch.setenv("AIRFLOW__SENSORS__DEFAULT_TIMEOUT", "3600")
    assert sensor().timeout == 3_600.0


def die(_: Any) -> None:
    raise ProcessCrashed


@pytest.mark.parametrize("how", [*MODES, "the trigger fails"])
def test_a_retry_keeps_the_deadline_and_a_clear_restarts_it(scene, how) -> None:
    task = scene.wait(scene.send()[0], timeout=1_000.0, **MODES.get(how, {}))
    task.retries = task.max_tries = 1
    task.begin_try()
    scene.time.on_call = die if how == "poke" else lambda _: None
    with pytest.raises((TaskDeferred, AirflowRescheduleException, ProcessCrashed)):
        task.go_on()
    task.first_reschedule = timezone.utcnow() if how == "reschedule" else None
    scene.time.on_call = lambda _: None
    scene.time.skip(600)
    if how == "the trigger fails":
        with pytest.raises(TaskDeferralError):
            task.make().resume_execution("__fail__", {"error": "Trigger failure"}, task.context())
    for begin, shortest, longest in ((lambda: None, 0, 500), (task.clear, 1_000, 2_000)):
        begin()
        task.begin_try()
        began = scene.time.now
        with pytest.raises(AirflowSensorTimeout):
            task.run_once()
        assert shortest <= scene.time.now - began <= longest


TI = SimpleNamespace(id="1", dag_id="dag", run_id="run", task_id="wait", map_index=-1, try_number=1, context_carrier={})


def test_the_triggerer_finishes_a_task_only_if_nothing_is_lost(connection) -> None:
    would_lose = [{name: print} for name in ("on_success_callback", "on_skipped_callback")]
    would_lose += [{"outlets": [Asset("delivered")]}, {"multiple_outputs": True}]
    for arguments in ({}, {"on_failure_callback": print}, *would_lose):
        assert trigger_of(end_from_trigger=True, **arguments).end_from_trigger is (arguments not in would_lose)
        assert not trigger_of(**arguments).end_from_trigger


def test_a_failure_takes_a_worker(scene, monkeypatch) -> None:
    pushed: list[tuple[str, Any]] = []
    monkeypatch.setattr(XCom, "set", lambda key, value, **_: pushed.append((key, value["status"])))
    assert kind_of_event(scene, "complete") is TaskSuccessEvent
    assert kind_of_event(scene, "canceled", on_canceled="skip") is TaskSkippedEvent
    assert kind_of_event(scene, "canceled", on_canceled="succeed") is TaskSuccessEvent
    assert kind_of_event(scene, "canceled") is TriggerEvent
    assert pushed == [("return_value", "complete"), ("outcome", "canceled"), ("return_value", "canceled")]


def test_a_result_that_the_triggerer_cannot_store_takes_a_worker(scene, monkeypatch) -> None:
    threads = []

    def push(*_: Any, **__: Any) -> None:
        threads.append(threading.current_thread())
        raise OSError("down")

    monkeypatch.setattr(XCom, "set", push)
    assert kind_of_event(scene, "complete") is TriggerEvent
    assert threads
    assert threading.main_thread() not in threads, "the event loop's thread must not wait for Airflow"


def kind_of_event(scene: Scene, end: str, **choices: Any) -> type:
    (sent,) = scene.send()
    if end == "complete":
        pick_up(scene.sandbox, sent)
    else:
        scene.sandbox.cancel(sent)
    trigger = trigger_of(transfer_id=sent, end_from_trigger=True, poke_interval=10, **choices)
    return type(scene.time.run(first_shared_event(trigger, ti=TI)))


def test_a_connection_that_is_deleted_and_added_again_ends_no_wait(wait: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
    connection = os.environ[name]
    wait.scene.time.after(300, lambda: monkeypatch.setenv(name, connection))
    wait.scene.time.after(500, wait.pick_up(ANN, BOB))
    assert wait(lambda: monkeypatch.delenv(name))["status"] == "complete"
    wait.scene.sandbox.assert_sent_once()
