"""Explores all worlds of the model: ``python -m model [--no-mutants] [--write-docs]``.

Prints how many worlds there are, and which promises they break. Exits with 1 if one is broken that is not a stated
limit, if a limit or a hole is not found, if a change of the table is not, or if the page of limits is stale.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from model import documents, limits
from model.explore import explore, name_of
from model.holes import HOLES
from model.mutants import find, mutants
from model.promises import Promises
from model.scenarios import ALL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-mutants", action="store_true", help="do not change the table")
    parser.add_argument("--write-docs", action="store_true", help="write the pages of decisions and of limits")
    arguments = parser.parse_args()
    faults = [*_explore_all(), *_find_holes()]
    faults += [] if arguments.no_mutants else _find_mutants()
    pages = documents.pages()
    if arguments.write_docs:
        for path, text in pages.items():
            path.write_text(text)
    faults += [f"{path.name} is stale" for path, text in pages.items() if path.read_text() != text]
    print("\n".join(f"BROKEN {fault}" for fault in faults) or "no promise is broken but by a stated limit")
    return 1 if faults else 0


def _explore_all() -> Iterator[str]:
    worlds, seconds, found = 0, 0.0, set[tuple[limits.Limit, str]]()
    for scenario in ALL:
        explored = explore(scenario, Promises())
        worlds, seconds = worlds + len(explored.seen), seconds + explored.seconds
        print(f"{scenario.name:55}{len(explored.seen):>10,} worlds{explored.seconds:8.1f} s", flush=True)
        if not explored.is_exhausted:
            yield f"{scenario.name}: there are more worlds"
        for failure in explored.failures:
            if by := limits.limit_of(failure, scenario):
                found.add(by)
            else:
                trace = "\n  ".join(map(str, explored.trace(failure.world)))
                yield f"{scenario.name}: promise {failure.promise}, {failure.what}\n  {trace}"
    print(f"{worlds:,} worlds explored; {seconds:.0f} s")
    for limit in limits.ALL:
        yield from (f"'{limit.title}' is not found: {each}" for each in limit.sets if (limit, each) not in found)


def _find_holes() -> Iterator[str]:
    for hole in HOLES:
        explored = hole.find()
        if explored.is_exhausted:
            yield f"{hole.name} is not found: {hole.what}"
        else:
            failure = explored.failures[-1]
            print(f"{hole.name}, {hole.what}: {failure.what} ({name_of(failure.troubles)})", flush=True)


def _find_mutants() -> Iterator[str]:
    started, tried, missed = time.process_time(), list(mutants()), 0
    for mutant in tried:
        if not find(mutant):
            missed += 1
            yield f"not found: {mutant}"
    print(f"{len(tried)} changes of the table, {missed} not found; {time.process_time() - started:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
