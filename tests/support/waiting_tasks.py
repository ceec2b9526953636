"""Tasks that wait for transfers, as Airflow runs them in each mode, in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG

from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer_sandbox.testing import Sandbox
from support import transfers
from support.airflow_names import AirflowRescheduleException, TaskDeferred, timezone
from support.memory import memory_of, remembering
from support.tasks import FakeTaskInstance
from support.triggers import PAUSE, Triggerer, first_shared_event
from support.virtual_time import VirtualTime

DAY = 86_400.0

#: How a sensor may wait.
MODES: dict[str, dict[str, Any]] = {
    "poke": {"deferrable": False, "mode": "poke"},
    "reschedule": {"deferrable": False, "mode": "reschedule"},
    "deferred": {"deferrable": True},
}


@dataclass
class WaitingTask(FakeTaskInstance):
    """A task instance that waits: it sleeps, is rescheduled or deferred. Times are seconds from the scene's begin."""

    first_reschedule: datetime | None = None
    began: float = 0.0
    ended: float | None = None
    error: BaseException | None = None
    _next: tuple[str, dict[str, Any]] = ("execute", {})

    def get_first_reschedule_date(self, _: Any) -> datetime | None:
        return self.first_reschedule

    def context(self) -> dict[str, Any]:
        environment = DAG("dag", schedule=None).get_template_env
        names = {"task_ids": [self.task_id], "get_template_env": environment, "render_template_as_native_obj": False}
        return super().context() | {"dag": SimpleNamespace(**names)}

    def clear(self) -> None:
        super().clear()
        self.first_reschedule = None

    def run_once(self) -> Any:
        self._next = "execute", {}
        while True:
            try:
                return self.go_on()
            except TaskDeferred as deferred:
                self.deferrals += 1
                self.fired(deferred, self.time.run(first_shared_event(deferred.trigger)))
            except AirflowRescheduleException as rescheduled:
                self.first_reschedule = self.first_reschedule or timezone.utcnow()
                time.sleep(max((rescheduled.reschedule_date - timezone.utcnow()).total_seconds(), 0.0))

    def go_on(self) -> Any:
        method, arguments = self._next
        with remembering(memory_of(self) if self.has_own_memory else None):
            return getattr(self.make(), method)(context=self.context(), **arguments)

    def fired(self, deferred: TaskDeferred, event: Any) -> None:
        given = {**(deferred.kwargs or {}), "event": event.payload}
        self._next = "resume_execution", {"next_method": deferred.method_name, "next_kwargs": given}

    @property
    def outcome(self) -> tuple[str, Any]:
        """The class of its error, if there is one, and the transfer's status as the task knows it."""
        if self.error is not None:
            known = self.xcoms.get("outcome") or {}
            return type(self.error).__name__, known.get("status")
        return "", self.result and self.result["status"]


def trigger_of(**arguments: Any) -> Any:
    given = {"task_id": "wait", "transfer_id": "t", "deferrable": True} | arguments
    try:
        WaitingTask(lambda: TransferSensor(**given), SimpleNamespace()).go_on()
    except TaskDeferred as deferred:
        return deferred.trigger
    raise AssertionError("the sensor has not deferred")


@dataclass
class Scene:
    sandbox: Sandbox
    time: VirtualTime = field(init=False)
    tasks: list[WaitingTask] = field(default_factory=list)
    calls_before: int = 0

    def __post_init__(self) -> None:
        self.time = VirtualTime(self.sandbox)

    def send(self, count: int = 1, *recipients: str) -> list[str]:
        """Send so many transfers, outside the allowance of the connection's key."""
        sent = transfers.send(self.sandbox, count, *recipients)
        self.calls_before = len(self.sandbox.requests())
        self.time.asked.clear()
        return sent

    def wait(self, transfer_id: Any, *, timeout: float = DAY, interval: float = 60.0, **arguments: Any) -> WaitingTask:
        number = len(self.tasks)

        def make() -> TransferSensor:
            given = {"deferrable": True, "poke_interval": interval, "timeout": timeout} | arguments
            return TransferSensor(task_id=f"wait{number}", transfer_id=transfer_id, **given)

        self.tasks.append(WaitingTask(make, self.time, task_id=f"wait{number}"))
        return self.tasks[-1]

    def play(self, *tasks: WaitingTask, until: Callable[[], Any] | None = None) -> None:
        self.time.run(self.follow(*tasks, until=until))

    async def follow(
        self, *tasks: WaitingTask, until: Callable[[], Any] | None = None, triggerer: Triggerer | None = None
    ) -> None:
        """Run the tasks in a triggerer; if none is given, in one that stops at the end."""
        is_last, triggerer = triggerer is None, triggerer or Triggerer()
        waiting: dict[int, tuple[WaitingTask, TaskDeferred]] = {}

        async def go_on(task: WaitingTask) -> None:
            try:
                task.result = await asyncio.to_thread(task.go_on)
            except TaskDeferred as deferred:
                (number,) = await triggerer.start(deferred.trigger)
                waiting[number] = task, deferred
                return
            except Exception as error:
                task.error = error
            task.ended = self.time.now

        async def collect() -> None:
            await triggerer.collect()
            for number in [number for number in waiting if number in triggerer.events]:
                task, deferred = waiting.pop(number)
                task.fired(deferred, triggerer.events[number][0])
                await go_on(task)
            for number in [number for number in waiting if number in triggerer.failed]:
                waiting.pop(number)[0].error = triggerer.failed[number] or AssertionError("no event")

        for task in tasks:
            task.begin_try()
            task.began = self.time.now
            await go_on(task)
        while waiting and not (until and until()):
            await asyncio.sleep(PAUSE)
            await collect()
        if is_last:
            await triggerer.stop()

    def calls(self) -> list[dict[str, Any]]:
        return self.sandbox.requests()[self.calls_before :]

    def polls(self) -> list[dict[str, Any]]:
        return [call for call in self.calls() if call["method"] == "GET"]
