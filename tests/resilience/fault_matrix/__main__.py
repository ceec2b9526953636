"""Runs the fault matrix: ``python -m resilience.fault_matrix [--pairs | --uploads | …] [--sample N] [--workers N]``.

Prints how many schedules there were, how they ended by kind of fault, and the worst case of leaked drafts.
Exits with 1 where any schedule broke a promise, and prints the schedule.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from resilience.fault_matrix.matrix import (
    KINDS,
    PAIR_KINDS,
    Harness,
    Outcome,
    Schedule,
    first_faults,
    following_schedules,
    singles,
)
from resilience.fault_matrix.memories import MemorySchedule, memory_schedules, run_memory_schedule
from resilience.fault_matrix.uploads import UploadSchedule, run_upload_schedule, upload_schedules
from resilience.inputs import INPUTS
from support.quiet import be_quiet

#: Broken promises are printed up to this many; the count is of all.
SHOWN = 100
RESULTS = ("sent", "failed, not sent", "failed, but sent")

Scheduled: TypeAlias = "Schedule | UploadSchedule | MemorySchedule"

_harness: Harness


def main() -> int:
    arguments = _arguments()
    started = time.monotonic()
    table = Table()
    with _Workers(arguments.workers, arguments.given) as workers:
        schedules = _schedules(workers, arguments)
        print(f"{len(schedules)} schedules, enumerated in {time.monotonic() - started:.0f} s", flush=True)
        for outcome in workers.map(_run, schedules):
            table.add(outcome)
            if outcome.violations and len(table.broken) <= SHOWN:
                print(f"BROKEN {outcome.name}: {'; '.join(outcome.violations)}", flush=True)
            if table.schedules % 1000 == 0:
                print(f"  {table.schedules} done, {len(table.broken)} broke a promise", flush=True)
    print(table.text())
    print(f"{time.monotonic() - started:.0f} s with {arguments.workers} workers")
    return 1 if table.broken or not table.schedules else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--singles", action="store_true", help="one fault each; both where neither is given")
    which.add_argument("--pairs", action="store_true", help="two faults each")
    which.add_argument("--uploads", action="store_true", help="faults of uploads that run at once")
    which.add_argument("--memories", action="store_true", help="a task's memory that fails")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="only so many of the pairs or memories, chosen by chance"
    )
    parser.add_argument(
        "--given", choices=sorted(INPUTS), default="paths", help="how singles and pairs get their files"
    )
    parser.add_argument("--seed", type=int, default=0, help="of that chance")
    # The late answers are waited for in real time, so there is work for more processes than cores.
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1))
    return parser.parse_args()


def _schedules(workers: _Workers, arguments: argparse.Namespace) -> list[Scheduled]:
    """Those of the chosen kind, or of every kind; only the larger kinds are sampled."""
    chosen: list[Scheduled] = []
    names = ("singles", "pairs", "uploads", "memories")
    every = not any(getattr(arguments, name) for name in names)
    if every or arguments.singles:
        chosen += workers.apply(_singles)
    if every or arguments.pairs:
        pairs = [pair for found in workers.map(_pairs, workers.apply(_first_faults)) for pair in found]
        chosen += _sample("pairs", pairs, arguments)
    if every or arguments.uploads:
        chosen += _sample("faults of uploads", upload_schedules(), arguments)
    if every or arguments.memories:
        chosen += _sample("failures of a memory", memory_schedules(), arguments)
    return chosen


T = TypeVar("T")


def _sample(what: str, schedules: list[T], arguments: argparse.Namespace) -> list[T]:
    if arguments.sample is None:
        return schedules
    print(f"{len(schedules)} {what}, of which {arguments.sample} are run (seed {arguments.seed})")
    return random.Random(arguments.seed).sample(schedules, min(arguments.sample, len(schedules)))


class _Workers:
    """Processes, each with a harness of its own."""

    def __init__(self, number: int, given: str) -> None:
        self._pool = multiprocessing.get_context("fork").Pool(number, _begin, (given,))

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def apply(self, function: Callable[[], Any]) -> Any:
        return self._pool.apply(function)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return self._pool.imap_unordered(function, items, chunksize=4)


def _begin(given: str) -> None:
    global _harness
    be_quiet()
    _harness = Harness(Path(tempfile.mkdtemp(dir=os.environ["AIRFLOW_HOME"])), given).__enter__()


def _run(schedule: Scheduled) -> Outcome:
    if isinstance(schedule, UploadSchedule):
        return run_upload_schedule(_harness, schedule)
    if isinstance(schedule, MemorySchedule):
        return run_memory_schedule(_harness, schedule)
    return _harness.run(schedule)


def _singles() -> list[Schedule]:
    return list(singles(_harness))


def _first_faults() -> list[Schedule]:
    return first_faults(_harness)


def _pairs(first: Schedule) -> list[Schedule]:
    return list(following_schedules(_harness, first, PAIR_KINDS))


class Table:
    """What came out."""

    def __init__(self) -> None:
        self.schedules = 0
        self.by_kind: Counter[tuple[str, str]] = Counter()
        self.worst: Outcome | None = None
        self.broken: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        for kind in {planned.kind.name for planned in outcome.schedule} or {outcome.name.split(" at ")[0]}:
            self.by_kind[kind, outcome.result] += 1
        if self.worst is None or outcome.leaked > self.worst.leaked:
            self.worst = outcome
        if outcome.violations:
            self.broken.append(outcome)

    def text(self) -> str:
        lines = [f"{'kind of fault':34}" + "".join(f"{result:>26}" for result in RESULTS)]
        for kind in dict.fromkeys([*(kind.name for kind in KINDS), *sorted(kind for kind, _ in self.by_kind)]):
            counts = [self.by_kind[kind, result] for result in RESULTS]
            if any(counts):
                lines.append(f"{kind:34}" + "".join(f"{count:26,}" for count in counts))
        if self.worst:
            lines.append(f"leaked drafts, worst case: {self.worst.leaked} ({self.worst.name})")
        lines.append(f"{self.schedules:,} schedules, {len(self.broken)} broke a promise")
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
