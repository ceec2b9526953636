"""A task instance as Airflow runs it, in this process and with time injected: tries, deferrals, clears."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.triggers.temporal import DateTimeTrigger

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException, AirflowSkipException, TaskAwaitingInput, TaskDeferred, timezone
from support.calls import ProcessCrashed, process
from support.memory import InMemoryRows, is_configured, memory_of, remembering, run_start


class SimulatedClock:
    """One clock for the client and the service; a wait takes no time here and all of it there."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        self.sandbox.advance_clock(seconds)

    def clock(self) -> float:
        return self.now


class SharedSimulatedClock(SimulatedClock):
    """One clock for several threads: it moves only when all of them sleep, and just to the first awakening."""

    def __init__(self, sandbox: Sandbox, threads: int) -> None:
        super().__init__(sandbox)
        self._awake = threads
        self._alarms: list[tuple[float, int, threading.Event]] = []
        self._numbers = count()
        self._changed = threading.Lock()

    def sleep(self, seconds: float) -> None:
        rings = threading.Event()
        with self._changed:
            heapq.heappush(self._alarms, (self.now + seconds, next(self._numbers), rings))
            self._rest()
        rings.wait()

    @contextmanager
    def thread(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._rest()

    def _rest(self) -> None:
        self._awake -= 1
        if self._awake or not self._alarms:
            return
        super().sleep(max(self._alarms[0][0] - self.now, 0.0))
        # Counted as awake here, not when they run, so that time stands still until each of them has gone on.
        while self._alarms and self._alarms[0][0] <= self.now:
            self._awake += 1
            heapq.heappop(self._alarms)[-1].set()


@dataclass
class FakeTaskInstance:
    """One task of one Dag run.

    :ivar at_trigger_failure: done while the next trigger fails; None: it does not.
    :ivar before_retry: done while the task is up for retry.
    :ivar person: answers a request for input, as Airflow passes the answer on.
    """

    make: Callable[[], Any]
    time: SimulatedClock
    retries: int = 0
    try_number: int = 0
    max_tries: int = 0
    start_date: datetime | None = None
    store: InMemoryRows | None = None
    has_own_memory: bool = True
    xcoms: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    deferrals: int = 0
    clear_number: int = 0
    map_index: int = -1
    dag_id: str = "dag"
    run_id: str = "run"
    task_id: str = "task"
    state: str = "running"
    upstream: dict[str, FakeTaskInstance] = field(default_factory=dict)
    before_retry: Callable[[], object] = lambda: None
    at_trigger_failure: Callable[[], object] | None = None
    final_state: str = "success"
    run_state: str = "running"
    person: Callable[[], dict[str, Any]] = dict

    def __post_init__(self) -> None:
        self.max_tries = self.retries
        self.start_date = self.start_date or run_start(self)

    def get_ti_count(self, *, dag_id: str, run_ids: list[str], task_ids: list[str] | None = None) -> int:
        return 1

    def get_task_states(
        self, *, dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]
    ) -> dict[str, dict[str, str]]:
        name = self.task_id if map_index is None else f"{self.task_id}_{map_index}"
        if task_ids != [self.task_id]:
            return {self.run_id: {one.state_name: one.final_state for one in self.upstream.values()}}
        return {self.run_id: {name: self.state}}

    def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
        return self.run_state

    @property
    def id(self) -> str:
        return self.task_id

    @property
    def state_name(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    @property
    def task(self) -> SimpleNamespace:
        return SimpleNamespace(retries=self.retries)

    def run(self) -> Any:
        """Tries until success, or until no retry is left; the result, or the last try's error raised."""
        while True:
            self.begin_try()
            try:
                self.result = self.run_once()
                return self.result
            except (AirflowFailException, AirflowSkipException):
                raise
            except (Exception, ProcessCrashed):
                if self.try_number > self.max_tries:
                    raise
                process.is_dead = False
            self.before_retry()

    def begin_try(self) -> None:
        self.try_number += 1
        self.result = None
        self.xcoms.clear()  # both, as Airflow does at the start of each try

    def clear(self) -> None:
        """As a user clears the task: a new set of retries, the state store kept."""
        self.max_tries = self.try_number + self.retries
        self.clear_number += 1

    def run_once(self) -> Any:
        method, kwargs = "execute", {}
        while True:
            process.is_dead = False
            try:
                with remembering(memory_of(self) if self.has_own_memory and not is_configured() else None):
                    return getattr(self._operator(), method)(context=self.context(), **kwargs)
            except TaskDeferred as deferred:
                self.deferrals += 1
                if at_failure := self.at_trigger_failure:
                    self.at_trigger_failure = None
                    at_failure()
                    method, kwargs = "resume_execution", {"next_method": "__fail__", "next_kwargs": {"error": "lost"}}
                    continue
                event = self._fire(deferred.trigger)
                given = {**(deferred.kwargs or {}), "event": event}
                method, kwargs = "resume_execution", {"next_method": deferred.method_name, "next_kwargs": given}
            except TaskAwaitingInput as waiting:
                given = {**(waiting.kwargs or {}), "event": self.person()}
                method, kwargs = "resume_execution", {"next_method": waiting.method_name, "next_kwargs": given}

    def context(self) -> dict[str, Any]:
        began = self.start_date
        dag_run = SimpleNamespace(clear_number=self.clear_number, run_after=began, start_date=began)
        dag = SimpleNamespace(task_ids=[self.task_id, *self.upstream])
        return {"ti": self, "task_instance": self, "dag_run": dag_run, "dag": dag}

    def _operator(self) -> Any:
        operator = self.make()
        operator.upstream_task_ids = set(self.upstream)
        hook = operator.hook
        operator.hook = lambda **options: hook(sleep=self.time.sleep, **options)
        return operator

    def _fire(self, trigger: Any) -> Any:
        if isinstance(trigger, DateTimeTrigger):
            self.time.sleep(max((trigger.moment - timezone.utcnow()).total_seconds(), 0.0))
            return trigger.moment
        return asyncio.run(anext(trigger.run())).payload


def task_instance(
    operator: type, time: Any, *, task_id: str = "", retries: int = 0, **arguments: Any
) -> FakeTaskInstance:
    if not task_id:
        names = vars(getattr(time, "sandbox", time)).setdefault("names", count(1))
        task_id = f"task_{number}" if (number := next(names)) > 1 else "task"
    return FakeTaskInstance(lambda: operator(task_id=task_id, **arguments), time, retries, task_id=task_id)


def again(task: FakeTaskInstance, **changes: Any) -> Any:
    """Clear the task and run it, with arguments that stay changed."""
    make = task.make
    task.make = lambda: changed(make(), changes)
    task.clear()
    return task.run()


def changed(operator: Any, changes: dict[str, Any]) -> Any:
    for name, value in changes.items():
        setattr(operator, name, value)
    return operator


def at_the_next_wait(time: SimulatedClock, act: Callable[[], object]) -> None:
    """Let ``act`` happen when a task waits next, in its worker or deferred."""
    sleep = time.sleep

    def act_and_sleep(seconds: float) -> None:
        time.sleep = sleep  # type: ignore[method-assign]
        act()
        sleep(seconds)

    time.sleep = act_and_sleep  # type: ignore[method-assign]


@contextmanager
def without_credit(sandbox: Sandbox) -> Iterator[None]:
    """A task fails before its send; afterwards there is credit."""
    sandbox.patch_account(billing="per_transfer", credits=0)
    with pytest.raises(AirflowFailException, match="no_credit"):
        yield
    sandbox.patch_account(credits=9)
