"""Runs random schedules of a Dag run's tasks: ``python -m resilience.stateful [--examples N]``.

Prints how many schedules there were and what happened in them. Exits with 1 where one broke a promise, after Hypothesis
has printed the shortest schedule that does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from resilience.fault_matrix.matrix import Harness
from resilience.stateful.state_machine import schedules
from support.quiet import be_quiet

#: Schedules of one seed; many seeds keep all workers busy to the end.
SHARD = 100


def main() -> int:
    arguments = _arguments()
    started = time.monotonic()
    shards = range(arguments.seed, arguments.seed + -(-arguments.examples // SHARD))
    counts, done, broken = Counter[str](), 0, 0
    with multiprocessing.get_context("fork").Pool(arguments.workers, be_quiet) as pool:
        for counted, failure in pool.imap_unordered(_shard, shards):
            counts, done, broken = counts + counted, done + SHARD, broken + bool(failure)
            print(failure or f"  {done:,} schedules done", flush=True)
    print("\n".join(f"{what:20}{count:>10,}" for what, count in sorted(counts.items())))
    print(f"{done:,} random schedules of {len(shards)} seeds, {broken} seeds broke a promise")
    print(f"{time.monotonic() - started:.0f} s with {arguments.workers} workers")
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2000, metavar="N", help=f"rounded up to a multiple of {SHARD}")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _shard(seed: int) -> tuple[Counter[str], str]:
    with tempfile.TemporaryDirectory() as folder, Harness(Path(folder)) as harness:
        try:
            return schedules(harness, SHARD, seed), ""
        except Exception as error:
            return Counter(), f"BROKEN with seed {seed}\n{''.join(traceback.format_exception(error))}"


if __name__ == "__main__":
    sys.exit(main())
