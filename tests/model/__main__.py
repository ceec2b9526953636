"""Runs all schedules of a delivery, and again with each rule taken away: ``python -m model``.

Prints how many there are, which break a promise, and which rules no schedule needs. Exits with 1 if a promise is
broken, or if a rule that is not listed as a survivor is not needed.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from itertools import islice

from model.documents import DECISIONS, decisions_page
from model.families import families
from model.mutants import SURVIVORS, find, mutants
from model.world import simulated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the families whose name begins so")
    parser.add_argument("--every", type=int, default=1, help="run a part of the schedules: every second, third, …")
    parser.add_argument("--no-mutants", action="store_true", help="take no rule away")
    parser.add_argument("--seed", type=int, help="take away a third of the rules, chosen by chance")
    parser.add_argument("--write-docs", action="store_true", help="write the page of decisions")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.write_docs:
        DECISIONS.write_text(decisions_page())
    faults: list[str] = [] if DECISIONS.read_text() == decisions_page() else ["the page of decisions is stale"]
    with simulated():
        faults += run_all(arguments.only, arguments.every)
        faults += [] if arguments.no_mutants else find_all(arguments.only, arguments.seed)
    print(f"{time.process_time() / 60:.0f} minutes")
    print("\n".join(f"BROKEN {fault}" for fault in faults) or "no promise is broken")
    return 1 if faults else 0


def run_all(only: str, every: int) -> list[str]:
    total, faults = 0, []
    for name, make in families().items():
        begun, count, broken = time.process_time(), 0, 0
        for label, run in islice(make() if name.startswith(only) else (), 0, None, every):
            world, count = run(), count + 1
            if world.violations:
                broken += 1
                if broken < 3:
                    faults.append(f"{name} {label}: {world.violations[0]} {world.status}"[:900])
        total += count
        if count:
            seconds = time.process_time() - begun
            print(f"{name:45}{count:>8,} schedules{broken:>6} broken{seconds:8.1f} s", flush=True)
    print(f"{total:,} schedules")
    return faults


def find_all(only: str, seed: int | None) -> list[str]:
    faults, count, chance = [], 0, random.Random(seed)
    for mutant in mutants():
        if seed is not None and chance.randrange(3):
            continue
        found = mutant.name.startswith(only) or not only
        samples = (15, 250) if mutant.name in SURVIVORS else (15, 250, 1500)
        by, count = find(mutant, samples) if found else "", count + found
        if found:
            print(f"{mutant.name}: {by or 'survives'}", flush=True)
        if found and bool(by) == (mutant.name in SURVIVORS):
            faults.append(f"{mutant.name}: {'is found after all' if by else 'survives'}")
    print(f"{count} rules taken away")
    return faults


if __name__ == "__main__":
    sys.exit(main())
