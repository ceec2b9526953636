"""An ingest that is killed (SIGKILL) at every step and between any two, on each destination, then run again. So is the
erasure of a person between two ingests, in a SQL database, and, where it removes rows, a reset.

Each kill ends a real process: forked, with the whole package in it. After each kill the destination must hold whole
pages and the cursor of the last of them; after the runs that follow, everything once, and nothing of the person, also
if the feed is read again. ``main()`` prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outbound_transfer.client.events import Page
from outbound_transfer.store.personal_data import AddressSearch
from resilience.crash_ingest.killer import MOMENTS, Killer, in_a_process
from resilience.crash_ingest.targets import LAKES, WAREHOUSES, Target, databases, target_of
from support.feed_pages import page

PERSON = "ann@example.com"
SEARCH = AddressSearch(PERSON)


def _event(number: int, **data: Any) -> bytes:
    return json.dumps({"event_id": number, "type": "transfer_sent", "data": {"n": number, **data}}).encode()


#: With a rejected line, an event twice in a page and one twice across pages; the last page is loaded as one all new.
#: The person is in each kind of row, before and after the erasure, and in the event that is twice.
PAGES: dict[int, Page] = {
    one.cursor: one
    for one in (
        page(0, _event(1, by=PERSON), _event(2), b"junk", _event(2), _event(3, by=PERSON), has_more=True),
        page(5, _event(3, by=PERSON), _event(4), _event(5), f"junk of {PERSON}".encode(), has_more=True),
        page(9, b"more junk", _event(6, by=PERSON), has_more=True),
        page(11, _event(7), _event(8)),
    )
}

#: Where the feed stands when a person is erased.
MIDDLE = 9


def states_of(target: Target) -> list[dict[str, Any]]:
    """What may be there: nothing, or the first pages, whole. Without keys, an event on two pages is there twice."""
    states, ids, rejected = [{"cursor": 0, "ids": [], "rejected": 0, "problems": []}], list[int](), 0
    for one in PAGES.values():
        new = {int(event.event_id) for event in one.events}
        ids = sorted({*ids, *new} if target.has_keys else [*ids, *new])
        rejected += len(one.rejected)
        states.append({"cursor": one.next_cursor, "ids": ids, "rejected": rejected, "problems": []})
    return states


# ----------------------------------------------------------------------------------------------------- what is killed


def ingest(target: Target, killer: Killer | None = None, until: int = 1_000) -> None:
    """Load the pages from where the cursor is."""
    destination = target.open(killer)
    cursor = destination.get_or_create_cursor()
    while cursor in PAGES and cursor < until:
        destination.load_page(PAGES[cursor])
        cursor = PAGES[cursor].next_cursor


def _ingest_half(target: Target) -> None:
    ingest(target, until=MIDDLE)


def _ingest_and_erase(target: Target) -> None:
    ingest(target)
    target.erase(SEARCH)


def _read_again(target: Target) -> None:
    """Read the feed from its beginning."""
    target.maintenance().reset(0)
    ingest(target)


@dataclass(frozen=True)
class Work:
    """What is killed.

    :ivar before: what is done before.
    :ivar run: what is killed.
    :ivar after: each of these brings everything about.
    :ivar erases: whether nothing of the person is left then.
    """

    before: Callable[[Target], None]
    run: Callable[[Target, Killer], None]
    after: tuple[Callable[[Target], None], ...]
    erases: bool = False


INGEST = Work(lambda _: None, ingest, (ingest,))
ERASE = Work(
    _ingest_half, lambda target, killer: target.erase(SEARCH, killer), (_ingest_and_erase, _read_again), erases=True
)
#: All pages but the first are removed.
RESET = Work(ingest, lambda target, killer: target.maintenance(killer).reset(5), (ingest,))

WORKS = {"ingest": INGEST, "erase": ERASE, "reset": RESET}


def works_of(name: str) -> list[str]:
    """What is killed in a destination: a reset where it removes rows, an erasure elsewhere."""
    return ["ingest", "reset" if name in LAKES else "erase"]


# --------------------------------------------------------------------------------------------------------- the killing


@dataclass
class Account:
    """What was met in one destination at one moment."""

    kills: int = 0
    steps: set[str] = field(default_factory=set)
    left: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def found_in(target: Target) -> dict[str, Any]:
    """What it holds, read in a process of its own: DuckDB must not be open where others are forked."""
    code, said = in_a_process(lambda write: os.write(write, json.dumps(target.found(SEARCH)).encode()))
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


def kill_everywhere(target: Target, moment: str, every: int = 1, work: Work = INGEST) -> Account:
    """Kill at every n-th step; which, and what was found afterwards."""
    account = Account()
    target.prepare()
    for at in range(1, 10_000, every):
        target.empty()
        assert in_a_process(lambda _: work.before(target)) == (0, "")
        code, said = in_a_process(lambda write, at=at: work.run(target, Killer(at, moment, write)))  # type: ignore[misc]
        if code == 0:
            break
        if code != -signal.SIGKILL:
            account.wrong.append(f"step {at}: {said}")
            break
        _judge(account, target, work, f"step {at}, {said}")
        account.steps.add(said.split("(")[0].split('"')[0].strip())
    return account


def _judge(account: Account, target: Target, work: Work, step: str) -> None:
    account.kills += 1
    states, found = states_of(target), found_in(target)
    found.pop("persons")
    if found not in states:
        account.wrong.append(f"{step}: left {found}")
        return
    account.left[found["cursor"]] = account.left.get(found["cursor"], 0) + 1
    for run in work.after:
        code, said = in_a_process(lambda _, run=run: run(target))  # type: ignore[misc]
        found = {} if code else found_in(target)
        persons = found.pop("persons", 0)
        if found != states[-1] or (persons and work.erases):
            account.wrong.append(f"{step}: {run.__name__} {said or found}, {persons} rows of the person")


# ----------------------------------------------------------------------------------------------------------------- main


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where anything was lost, doubled or half there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", choices=WAREHOUSES, action="append")
    parser.add_argument("--work", choices=WORKS, action="append", help="what is killed; all of it where not given")
    options = parser.parse_args(arguments)
    # What a killed process wrote is the kernel's, on a disk or not; many small commits are not worth waiting for one.
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    kills, wrong = 0, list[str]()
    print(
        f"{'warehouse':<15} {'killed':<8} {'when':<7} {'kills':>5} {'steps':>6} {'wrong':>6}"
        "  found after the kill (cursor: times)"
    )
    try:
        with databases() as database_of:
            for name in options.warehouse or WAREHOUSES:
                target = target_of(name, folder, database_of)
                for work in works_of(name):
                    if work in (options.work or WORKS):
                        for account in _report(name, target, work):
                            kills, wrong = kills + account.kills, wrong + account.wrong
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(wrong) or f"{kills:,} kills: nothing was lost, doubled or left half done.")
    return 1 if wrong else 0


def _report(name: str, target: Target, work: str) -> Iterator[Account]:
    """Kill at each moment, and print a row for each."""
    for moment in MOMENTS:
        started = time.monotonic()
        account = kill_everywhere(target, moment, work=WORKS[work])
        left = ", ".join(f"{cursor}: {times}" for cursor, times in sorted(account.left.items()))
        print(
            f"{name:<15} {work:<8} {moment:<7} {account.kills:>5} {len(account.steps):>6}"
            f" {len(account.wrong):>6}  {left}   ({time.monotonic() - started:.0f} s)",
            flush=True,
        )
        account.wrong = [f"{name}, {work}, {moment}, {each}" for each in account.wrong]
        yield account
