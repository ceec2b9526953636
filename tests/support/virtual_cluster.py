"""Several processes that share one poll, in one event loop and in virtual time: it passes only while all of them sleep.

Each process has a clock, a connection to the database and a :class:`SharedPoller` of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from outbound_transfer.client import Settings
from outbound_transfer.cluster.database import CALLS, EVENTS, SharedDatabase
from outbound_transfer.cluster.poll import SharedPages
from outbound_transfer.polling.poller import PollUpdate, SharedPoller
from outbound_transfer.polling.schedule import Now
from outbound_transfer.polling.waiters import Waiter, WaiterRegistry
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_allowance import Key
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import Hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)

#: Tasks of a process that sleep when there is nothing to do: the poll, and the exchange with the others.
_TASKS = 2


@dataclass
class VirtualTime:
    """The time, in seconds since the epoch.

    :ivar plans: what happens when.
    """

    now: float
    plans: list[tuple[float, Callable[[], Any]]] = field(default_factory=list)
    on_advance: Callable[[float], Any] = lambda _: None
    _sleepers: list[tuple[float, VirtualProcess, asyncio.Future[None]]] = field(default_factory=list)
    _processes: list[VirtualProcess] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        self.plans.append((self.now + seconds, action))

    def add(self, process: VirtualProcess) -> None:
        self._processes.append(process)

    def remove(self, process: VirtualProcess) -> None:
        self._processes.remove(process)
        self._sleepers = [each for each in self._sleepers if each[1] is not process]
        self._changed.set()

    def freeze(self, process: VirtualProcess, seconds: float) -> None:
        """None of the process's sleeps ends before so many seconds have passed."""
        process.frozen_until = self.now + seconds
        self._sleepers = [
            (max(at, process.frozen_until) if each is process else at, each, future)
            for at, each, future in self._sleepers
        ]

    async def sleep(self, process: VirtualProcess, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (max(self.now + seconds, process.frozen_until), process, future)
        self._sleepers.append(entry)
        self._changed.set()
        try:
            await future
        finally:
            self._sleepers = [each for each in self._sleepers if each[2] is not future]

    async def run(self, is_done: Callable[[], bool]) -> None:
        """Let time pass until it is done."""
        while not is_done():
            await self._all_asleep()
            wakes = min((at for at, *_ in self._sleepers), default=float("inf"))
            planned = min((at for at, _ in self.plans), default=float("inf"))
            assert min(wakes, planned) < float("inf"), "nothing will ever happen"
            if planned <= wakes:
                plan = min(self.plans, key=lambda each: each[0])
                self.plans.remove(plan)
                self._advance(plan[0])
                plan[1]()
            else:
                entry = min(self._sleepers, key=lambda each: each[0])
                self._advance(wakes)
                self._sleepers.remove(entry)
                entry[2].set_result(None)

    def _advance(self, until: float) -> None:
        before, self.now = self.now, max(until, self.now)
        self.on_advance(self.now - before)

    async def _all_asleep(self) -> None:
        while any(
            sum(each is process for _, each, _ in self._sleepers) < _TASKS and not process.is_over
            for process in self._processes
        ):
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.05)
        await asyncio.sleep(0)


@dataclass
class SharedTables:
    """One database, as its processes reach it.

    :ivar is_down: whether no connection can be opened.
    :ivar off: seconds by which its clock is off.
    """

    hook: Hook
    time: VirtualTime
    is_down: bool = False
    off: float = 0.0

    def __post_init__(self) -> None:
        ensure_schema(Warehouse(self.hook), CLUSTER, utc_now())

    def open(self) -> Warehouse:
        warehouse = Warehouse(Hook(self.hook.dialect_name, self._connect, self.hook.placeholder), timeout=3.0)
        warehouse.epoch_time = lambda _: self.time.now + self.off  # type: ignore[method-assign]
        return warehouse

    def _connect(self) -> Any:
        if self.is_down:
            raise ConnectionError("the database is down")
        return self.hook.get_conn()


class VirtualProcess:
    """One triggerer: its registry, its poller and its clock.

    :ivar off: seconds by which the machine's clock is off.
    """

    def __init__(
        self,
        name: str,
        time: VirtualTime,
        tables: SharedTables,
        settings: Callable[[], Awaitable[Settings]],
        on_update: Callable[[PollUpdate], Awaitable[None]] | None = None,
    ) -> None:
        self.name, self.time, self.off, self.frozen_until = name, time, 0.0, 0.0
        self.registry = WaiterRegistry()
        self.database, self.events = (
            SharedDatabase("state", tables.open, purpose=purpose, clock=lambda: self.clock().monotonic)
            for purpose in (CALLS, EVENTS)
        )
        self.poller = SharedPoller(
            self.registry, settings, clock=self.clock, sleep=self.sleep, find_shared=self._find_shared
        )
        self.is_killed = False
        self._on_update = on_update
        self._joined = contextlib.ExitStack()
        time.add(self)
        self.task = asyncio.ensure_future(self._run())

    @property
    def is_over(self) -> bool:
        return self.task.done()

    def clock(self) -> Now:
        return Now(self.time.now, self.time.now + self.off)

    async def sleep(self, seconds: float) -> None:
        await self.time.sleep(self, seconds)

    def wait_for(self, *transfer_ids: str, **arguments: Any) -> list[Waiter]:
        """Register a waiter for each transfer."""
        from outbound_transfer.protocol.outcomes import OutcomeRules

        arguments = {"interval": 60.0, "deadline": self.clock().wall + 86_400, "rules": OutcomeRules()} | arguments
        waiters = [Waiter(one, polled_at=self.clock(), **arguments) for one in transfer_ids]
        for waiter in waiters:
            self._joined.enter_context(self.registry.register(waiter))
        return waiters

    def kill(self) -> None:
        """End the process at once, without a word to the others."""
        self.is_killed = True
        self.task.cancel()
        self.time.remove(self)

    async def stop(self) -> None:
        """End the process in order."""
        if self.is_over:
            return
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if not self.is_killed:
            self.time.remove(self)
            await asyncio.to_thread(lambda: self.database.submit(lambda _: None).exception())

    async def _find_shared(self, _: Settings) -> SharedPages:
        return _Connection(self)

    async def _run(self) -> None:
        async with contextlib.aclosing(self.poller.updates()) as updates:
            async for update in updates:
                if self._on_update:
                    await self._on_update(update)


class _Connection(SharedPages):
    """A killed process does not say goodbye."""

    def __init__(self, process: VirtualProcess) -> None:
        super().__init__(process.database, KEY, process.events)
        self._virtual_process = process

    def leave(self) -> None:
        if not self._virtual_process.is_killed:
            super().leave()
