"""Triggers as a triggerer runs them: by Airflow's own runner, without the supervisor that connects it to Airflow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from airflow.executors.workloads import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger

#: Seconds between two looks of the runner for triggers that have ended.
PAUSE = 3.0


class Triggerer:
    """One triggerer, in the running event loop: events, and errors without an event, by the triggers' numbers."""

    def __init__(self) -> None:
        self.runner = TriggerRunner()
        self.events: dict[int, list[Any]] = {}
        self.failed: dict[int, Any] = {}
        self._started = 0

    async def start(self, *triggers: Any, ti: Any = None) -> list[int]:
        """Start triggers, stored and read again as Airflow does; return their numbers."""
        numbers = []
        for trigger in triggers:
            classpath, arguments = trigger.serialize()
            self._started += 1
            numbers.append(self._started)
            kwargs = Trigger.encrypt_kwargs(arguments)
            workload = RunTrigger(id=self._started, ti=None, classpath=classpath, encrypted_kwargs=kwargs)
            workload.ti = ti  # not checked here: Airflow's type has other fields in each version
            self.runner.to_create.append(workload)
        await self.runner.create_triggers()
        return numbers

    async def cancel(self, *numbers: int) -> None:
        self.runner.to_cancel.extend(numbers)
        await self.runner.cancel_triggers()

    async def collect(self) -> None:
        await self.runner.cleanup_finished_triggers()
        while self.runner.events:
            number, event, *_ = self.runner.events.popleft()
            self.events.setdefault(number, []).append(event)
        while self.runner.failed_triggers:
            number, error = self.runner.failed_triggers.popleft()
            self.failed[number] = error

    async def until(self, condition: Callable[[], Any], pause: float = PAUSE) -> None:
        await self.collect()
        while not condition():
            await asyncio.sleep(pause)
            await self.collect()

    async def first_event(self, trigger: Any, ti: Any = None) -> Any:
        (number,) = await self.start(trigger, ti=ti)
        await self.until(lambda: number in self.events or number in self.failed)
        if number in self.failed:
            raise self.failed[number] or AssertionError("the trigger has ended without an event")
        return self.events[number][0]

    async def stop(self) -> None:
        await self.cancel(*range(1, self._started + 1))
        await self.until(lambda: not self.runner.triggers)


async def first_event(trigger: Any) -> Any:
    return await anext(trigger.run())


async def first_shared_event(trigger: Any, ti: Any = None) -> Any:
    """Return the event of a trigger that is the only one of its triggerer."""
    triggerer = Triggerer()
    event = await triggerer.first_event(trigger, ti)
    await triggerer.stop()
    return event
