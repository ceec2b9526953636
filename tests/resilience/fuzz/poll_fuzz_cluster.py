"""The scenarios of the poll fuzzer for several triggerers that share a database, some of which die or freeze."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outbound_transfer.client import Settings
from outbound_transfer.polling.schedule import Now
from outbound_transfer.warehouse.errors import WarehouseError
from resilience.fuzz.poll_fuzz import (
    BEGINNING,
    CALM,
    END,
    HOUR,
    MAX_REQUESTS_PER_MINUTE,
    PollScenario,
    Triggerer,
    Waiter,
    Watcher,
    World,
)
from support.feed_pages import event, page, tables
from support.virtual_cluster import KEY, SharedTables, VirtualProcess, VirtualTime
from support.warehouses import sqlite_hook

PROCESSES = 3

#: Seconds from one page of the feed to the next one.
PAGE_EVERY = 60.0

#: Seconds after which Airflow gives the triggers of a dead triggerer to another one.
REASSIGNED_AFTER = 45.0

#: What happens to the rows: lost, damaged, of another version.
DAMAGES = [
    "DELETE FROM outbound_transfer_poll_pages",
    "DELETE FROM outbound_transfer_key_allowance",
    "DROP TABLE IF EXISTS outbound_transfer_poll_pages",
    "UPDATE outbound_transfer_poll_pages SET page = 'x'",
    "UPDATE outbound_transfer_poll_pages SET page = '{}'",
    "UPDATE outbound_transfer_poll_pages SET page = NULL",
    "UPDATE outbound_transfer_poll_pages SET read_ms = read_ms + 3600000",
    "UPDATE outbound_transfer_poll_pages SET read_ms = 'x'",
    "UPDATE outbound_transfer_key_allowance SET schedule = '[]'",
    "UPDATE outbound_transfer_feed_cursor SET cursor = 0",
    "UPDATE outbound_transfer_feed_cursor SET cursor = cursor + 1000000",
    "UPDATE outbound_transfer_feed_cursor SET cursor = 'x'",
    "DELETE FROM outbound_transfer_feed_cursor",
    "DROP TABLE IF EXISTS outbound_transfer_events",
]


class ClusterWorld(World):
    """The world, whose time is that of a cluster.

    :ivar time: passes while all processes sleep.
    """

    time: VirtualTime

    def clock(self) -> Now:
        return Now(BEGINNING + self.now, BEGINNING + self.now + self.off)

    async def wait(self, seconds: float) -> None:
        passed = asyncio.Event()
        self.time.after(seconds, passed.set)
        await passed.wait()


class Process(VirtualProcess):
    """One triggerer of the cluster."""

    def __init__(self, place: int, scenario: ClusterScenario, url: str) -> None:
        self.world, self.machine_off = scenario.world, scenario.offs[place]
        scenario.started += 1

        async def settings() -> Settings:
            return Settings(url, "key", timeout=5.0)

        super().__init__(f"p{scenario.started}", scenario.time, scenario.tables, settings)
        self.triggerer = Triggerer(scenario.world, url, self.registry, self.poller)

    def clock(self) -> Now:
        return Now(self.time.now, self.time.now + self.world.off + self.machine_off)

    async def _run(self) -> None:
        try:
            await self.triggerer.run()
        finally:
            for task in self.triggerer.tasks.values():
                task.cancel()


class ClusterScenario(PollScenario):
    """What one seed draws for a cluster, and how it went."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world = self._in_cluster(self.world)
        pick = self.chance
        self.offs = [pick.choice([0.0, 0.0, -3.0, 40.0]) for _ in range(PROCESSES)]
        self.processes: list[Process] = []
        self.started = 0
        self.confirmed: list[asyncio.Future[None]] = []
        self.places: dict[int, int] = {}
        self.events: list[tuple[float, Callable[[], Any]]] = [*self.world.plans]
        for _ in range(pick.choice([0, 1, 3, 6])):
            self.events.append((pick.uniform(0, CALM), pick.choice([self._kill, self._freeze, self._stop_database])))
        for _ in range(pick.choice([0, 0, 2, 5])):
            self.events.append((pick.uniform(0, CALM), self._damage))
        for _ in range(pick.choice([0, 0, 2])):
            off = pick.choice([-HOUR, -30.0, 30.0, HOUR])
            self.events.append((pick.uniform(0, CALM), lambda off=off: setattr(self.tables, "off", off)))
        self.feed_lags = pick.choice([0.0, 0.0, 30.0, 600.0])
        self.feed_stops_at = pick.choice([0.0, CALM / 2, CALM, END + 1, END + 1])
        self.feed_lies = pick.choice([False, False, True])
        self.landed_until = 0.0

    @staticmethod
    def _in_cluster(world: World) -> ClusterWorld:
        return ClusterWorld(
            world.chance,
            transfers=world.transfers,
            faults=world.faults,
            plans=world.plans,
            page_size=world.page_size,
        )

    # ------------------------------------------------------------------------------------------------------ playing it

    async def play(self) -> None:
        self.time = self.world.time = VirtualTime(BEGINNING, on_advance=lambda _: self._advance())
        with TemporaryDirectory() as folder:
            self.hook = sqlite_hook(Path(folder, "state.db"))
            self.tables = SharedTables(self.hook, self.time)
            self.feed = tables(self.hook, KEY.account)
            self.feed.get_or_create_cursor()
            async with self.world.serving() as url:
                self.url = url
                await self._live()

    async def _live(self) -> None:
        self.processes = [Process(place, self, self.url) for place in range(PROCESSES)]
        for at, action in self.events:
            self._at(at, action)
        for number, who in enumerate([*self.waiters, *self.watchers]):
            self.places[id(who)] = number % PROCESSES
            self._at(who.joins, lambda who=who: self._join(who))
        for waiter in self.waiters:
            self._at(waiter.leaves, lambda waiter=waiter: self._process_of(waiter).triggerer.leave(waiter))
        self._at(PAGE_EVERY, self._land)
        self._at(END, int)
        try:
            await self.time.run(lambda: self.world.now >= END)
        finally:
            for process in self.processes:
                await process.stop()
                self.broken += process.triggerer.failures
        self._judge_requests(self.world.asked)

    def _at(self, at: float, action: Callable[[], Any]) -> None:
        self.time.plans.append((BEGINNING + max(at, 0.0), action))

    def _advance(self) -> None:
        self.world.now = self.time.now - BEGINNING
        self._note_overdue()

    def _process_of(self, who: Waiter | Watcher) -> Process:
        return self.processes[self.places[id(who)]]

    def _join(self, who: Waiter | Watcher) -> None:
        process = self._process_of(who)
        if isinstance(who, Waiter):
            if who.payload is not None or who.leaves <= self.world.now:
                return
            who.off, who.overdue = process.machine_off, None
            self._note_overdue()
        process.triggerer.join(who)

    # --------------------------------------------------------------------------------------------- what happens to them

    def _kill(self) -> None:
        """A process dies. Another one starts in its place, and gets its triggers after a while."""
        place = self.chance.randrange(PROCESSES)
        process = self.processes[place]
        process.kill()
        # What dies between an event and the state behind it reports the event twice (docs/guarantees.md).
        self.confirmed.append(asyncio.ensure_future(process.triggerer.confirm()))
        for task in process.triggerer.tasks.values():
            task.cancel()
        self.broken += process.triggerer.failures
        self.processes[place] = Process(place, self, self.url)
        for who in [*self.waiters, *self.watchers]:
            if self.places[id(who)] == place and who.joins <= self.world.now:
                self._at(self.world.now + REASSIGNED_AFTER, lambda who=who: self._join(who))

    def _freeze(self) -> None:
        self.time.freeze(self.chance.choice(self.processes), min(300 * self.chance.random(), CALM - self.world.now))

    def _stop_database(self) -> None:
        self.tables.is_down = True
        self._at(min(self.world.now + 900 * self.chance.random(), CALM), lambda: setattr(self.tables, "is_down", False))

    def _land(self) -> None:
        """Load a page with the pickups of the last minute, late or not, and whatever else the feed tells."""
        now = self.world.now
        if now >= self.feed_stops_at:
            return
        since, self.landed_until = self.landed_until, now - self.feed_lags
        picked_up = [one for one in self.world.transfers if one.final == "complete"]
        named = [one.id for one in picked_up if since < one.ends <= self.landed_until]
        if self.feed_lies and now < CALM:
            named = self.chance.choice(
                [[], [one.id for one in self.world.transfers], ["t000"] * 3, ["", "None", "x" * 999]]
            )
        with contextlib.suppress(WarehouseError, sqlite3.Error):
            cursor = self.feed.read_cursor()
            lines = [
                event(cursor + number, type="file_downloaded", data=self.chance.choice([one, [one], {"a": {"b": one}}]))
                for number, one in enumerate(named, 1)
            ]
            self.feed.load_page(page(cursor, *lines))
        self._at(now + PAGE_EVERY, self._land)

    def _damage(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.hook.run(self.chance.choice(DAMAGES))

    def _judge_requests(self, asked: list[float]) -> None:
        """Each process may poll alone."""
        self.counts["requests"] += len(asked)
        top = max((sum(at <= one < at + 60 for one in asked[n : n + 500]) for n, at in enumerate(asked)), default=0)
        if top > PROCESSES * MAX_REQUESTS_PER_MINUTE:
            self.broken.append(f"{top} requests in a minute")
