"""The real ingestion against a hostile feed: ``python -m resilience.fuzz.feed_fuzz [--seconds N] [--seed S]``.

The operator reads, through the real client and a real socket, a feed whose events are poisoned and whose answers lie,
are cut or refused; between its statements it dies, and between its runs the cursor is reset or rebuilt. What must hold,
in each warehouse: no line that was passed is missing, none stands twice, no error comes of what a line holds, and once
the faults stop the feed is read to its end.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa

from outbound_transfer.client.errors import CallError
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import EVENTS, FEED_POLLS, REJECTED_LINES, Tables
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from resilience.crash_ingest.targets import SQL_WAREHOUSES, WarehouseTarget, databases, warehouse_of
from resilience.fuzz.feed_server import EVENT, JUNK, REFUSED, Feed, Line, lines, serving
from support.quiet import be_quiet
from support.tasks import FakeTaskInstance, SimulatedClock
from support.warehouses import observe, refuse_rows

#: What one feed's scenario has in it.
ACTIONS = ("run", "run", "run", "die", "die", "reset", "rebuild")

#: Runs without a fault in which the end must be reached.
LAST_RUNS = 3


class Died(BaseException):
    """The process ended between two statements."""


@dataclass
class Report:
    """What happened; ``wrong``: how a promise was broken, with the seed that does it again."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class _Clock:
    """The service's side of the tests' clock, which this feed does not look at."""

    def advance_clock(self, seconds: float) -> None:
        pass


def fuzz_feed(target: WarehouseTarget, seed: int, report: Report) -> None:
    """One feed, from an empty warehouse to the end of the feed."""
    rng = random.Random(seed)
    numbered = rng.random() < 0.5
    feed = Feed(rng, lines(rng, rng.randint(5, 60), numbered))
    target.empty()
    with serving(feed) as url, _connected(url, target, rng) as scenario:
        try:
            scenario.begin()
            feed.faults = rng.choice([0.0, 0.3, 0.6])
            for _ in range(rng.randint(2, 12)):
                action = rng.choice(ACTIONS)
                report.counts[action] += 1
                getattr(scenario, action)()
                scenario.judge(feed.lines)
            feed.faults = 0.0
            scenario.finish(feed.lines)
        except Exception as error:
            report.wrong.append(f"seed {seed}, {target.hook.dialect_name}: {type(error).__name__}: {str(error)[:500]}")
    report.counts.update({f"fault: {name}": times for name, times in feed.met.items()})
    report.counts["answers"] += feed.asked


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class FeedScenario:
    """The runs and commands of one feed."""

    target: WarehouseTarget
    rng: random.Random
    furthest: int = 0
    dies_at: int = 0
    steps: int = 0
    last: bool = False

    def begin(self) -> None:
        """Tables, in which the database refuses rows of its own accord."""
        self._tables().get_or_create_cursor()
        refuse_rows(self.target.hook.get_conn, self.target.hook.dialect_name, f"{REFUSED}%")

    # -- actions

    def run(self) -> None:
        try:
            self._task().run()
        except CallError:  # what the task's retries are for
            pass
        except Died:
            self.dies_at = 0

    def die(self) -> None:
        self.steps, self.dies_at = 0, self.rng.randint(1, 60)
        self.run()
        self.dies_at = 0
        gc.collect()  # a process that has ended leaves no cursor, which would keep a transaction open

    def reset(self) -> None:
        self._tables().reset(0)

    def rebuild(self) -> None:
        self._tables().rebuild_cursor()

    def finish(self, feed: list[Line]) -> None:
        """Without faults the end is reached, whatever was before."""
        end, self.last = feed[-1].position, True
        for _ in range(LAST_RUNS):
            self.run()
        if self._tables().get_or_create_cursor() != end:
            raise Broken(f"the feed ends at {end}, and was read to {self._tables().get_or_create_cursor()} only")
        self.judge(feed)
        self.reset()
        self.run()
        self.judge(feed)

    # -- the judge

    def judge(self, feed: list[Line]) -> None:
        """Every line that was passed is there, and there once."""
        self.furthest = max(self.furthest, self._tables().get_or_create_cursor())
        ids, rejected, notes = self._found()
        passed = [line for line in feed if line.position <= self.furthest]
        if self.furthest > feed[-1].position:
            raise Broken(f"the cursor is {self.furthest}, and the feed ends at {feed[-1].position}")
        expected = Counter({line.raw for line in passed if line.fate == JUNK})
        for line in passed:
            if line.fate == JUNK:
                continue
            kept = ids[line.event_id]
            times = 0 if kept else 1
            if line.fate == EVENT and not kept:
                raise Broken(f"the event {line.event_id} is missing")
            if kept > 1:
                raise Broken(f"the event {line.event_id} stands {kept} times")
            expected[line.raw] = max(times, expected[line.raw])
        if expected - rejected:
            raise Broken(f"rejected lines are lost: {_shown(expected - rejected)}")
        if rejected - expected:
            raise Broken(f"rejected lines stand too often: {_shown(rejected - expected)}")
        if bad := [note for note in notes if note and (len(note) > 500 or "\0" in note)]:
            raise Broken(f"notes of the log: {bad}")

    def _found(self) -> tuple[Counter[str], Counter[bytes], list[str]]:
        warehouse = Tables(self.target.hook)
        events, rejected, polls = (warehouse.named(each).c for each in (EVENTS, REJECTED_LINES, FEED_POLLS))
        with warehouse.database.begin() as tx:
            lines = Counter(map(bytes, tx.scalars(sa.select(rejected.raw))))
            return Counter(tx.scalars(sa.select(events.event_id))), lines, list(tx.scalars(sa.select(polls.note)))

    # -- the parts

    def _tables(self) -> Any:
        return EventStore(Tables(self.target.hook), "acme")

    def _task(self) -> Any:
        options = {"sql_conn_id": "fuzzed", "account": "acme", "max_rejected": None}
        deferrable = self.rng.random() < 0.5
        max_pages = None if self.last else self.rng.choice([None, None, 1, 3])
        return FakeTaskInstance(
            lambda: EventFeedToSqlOperator(task_id="land", deferrable=deferrable, max_pages=max_pages, **options),
            SimulatedClock(_Clock()),  # type: ignore[arg-type]
        )

    def warehouse(self, *_: Any, **__: Any) -> Any:
        """In the target of what makes the operator's: it counts steps, and dies at one."""
        warehouse = Tables(self.target.hook)
        observe(warehouse.database, self.step)
        return warehouse

    def step(self, _: str, run: Callable[[], Any]) -> Any:
        self.steps += 1
        if not self.dies_at or self.steps != self.dies_at:
            return run()
        if self.rng.random() < 0.5:
            run()
        raise Died


@contextmanager
def _connected(url: str, target: WarehouseTarget, rng: random.Random) -> Iterator[FeedScenario]:
    """A scenario whose operator finds the feed at ``url`` and the warehouse at ``target``."""
    scenario = FeedScenario(target, rng)
    connection = {
        "conn_type": "outbound_transfer",
        "host": url,
        "extra": {"event_api_key": "obs_secret", "verify": False},
    }
    with (
        mock.patch.dict(os.environ, {"AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": json.dumps(connection)}),
        mock.patch("outbound_transfer.store.tables.open_tables", scenario.warehouse),
    ):
        yield scenario


def _shown(count: Counter[bytes]) -> str:
    return ", ".join(f"{times} x {raw[:80]!r}" for raw, times in list(count.items())[:3])


# ----------------------------------------------------------------------------------------------------------------- main


def main(arguments: list[str] | None = None) -> int:
    """Print what happened; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds")
    parser.add_argument("--warehouse", choices=SQL_WAREHOUSES, action="append")
    options = parser.parse_args(arguments)
    names = options.warehouse or SQL_WAREHOUSES
    be_quiet()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    report, seed, until = Report(), options.seed, clock.monotonic() + options.seconds
    try:
        with databases() as database_of:
            spent = dict.fromkeys(names, 0.0)
            while (started := clock.monotonic()) < until:
                # As long in each: the faster ones read more feeds.
                name = min(spent, key=spent.__getitem__)
                fuzz_feed(warehouse_of(name, folder, database_of), seed, report)
                report.counts[f"feeds: {name}"] += 1
                spent[name] += clock.monotonic() - started
                seed += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(f"{what:22}{count:>9,}" for what, count in sorted(report.counts.items())))
    print("\n".join(report.wrong) or f"No promise was broken; seeds {options.seed} to {seed - 1}.")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
