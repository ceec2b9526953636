"""Processes that use an empty database for the first time, at the same moment.

What they do is a function of this module, as they import it by its name.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import GROUPS, Tables
from support import mariadb, postgres
from support.feed_pages import PAGES
from support.timeouts import TEST_TIMEOUT
from support.warehouses import Hook, hook_at

#: What leads to a database.
DRIVERS = ("sqlite", "duckdb", "psycopg", "psycopg2", "mysqlclient")

_everybody: Any = None


@dataclass(frozen=True)
class RunLocation:
    """A database that other processes can be told of."""

    driver: str
    database: Path | postgres.Database | mariadb.Database

    def hook(self) -> Hook:
        return hook_at(self.driver, self.database)

    def warehouse(self, prefix: str) -> Tables:
        return Tables(self.hook(), prefix=prefix)


class Crowd:
    """Processes that do the same at the same moment."""

    def __init__(self, pool: ProcessPoolExecutor, size: int) -> None:
        self._pool, self.size = pool, size

    def do(self, what: Callable[..., None], *arguments: Any) -> list[str]:
        """Let each process do it once, with its number first; return the errors."""
        futures = [self._pool.submit(_do, what, number, *arguments) for number in range(self.size)]
        return [error for future in futures if (error := future.result(TEST_TIMEOUT * 2))]


@contextmanager
def crowd(size: int) -> Iterator[Crowd]:
    # Forks of a process that has imported everything, and has no threads and no connections.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        # Python before 3.12.8 does not tell that process of sys.path; where it cannot import, each of its forks does.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    with ProcessPoolExecutor(size, context, initializer=_meet, initargs=(context.Barrier(size),)) as pool:
        yield Crowd(pool, size)


def _meet(everybody: Any) -> None:
    global _everybody
    _everybody = everybody


def _do(what: Callable[..., None], *arguments: Any) -> str:
    _everybody.wait(TEST_TIMEOUT)  # each process takes one task, as none goes on before all have one
    try:
        what(*arguments)
    except Exception:
        return traceback.format_exc()
    return ""


def create_table(number: int, place: RunLocation) -> None:
    """Create a table of its own, in a database that may not be there yet."""
    with place.warehouse("").database.begin() as tx:
        tx.exec_driver_sql(f"CREATE TABLE own_{number} (number INTEGER)")


def increment(number: int, place: RunLocation, times: int) -> None:
    """Count in a table, one transaction after the other."""
    database = place.warehouse("").database
    for _ in range(times):
        with database.begin() as tx:
            tx.exec_driver_sql("UPDATE counter SET number = number + 1")


def use_tables(number: int, place: RunLocation, prefix: str, group: str) -> None:
    """Create a group of tables."""
    place.warehouse(prefix).create(GROUPS[group])


def use_all_tables(number: int, place: RunLocation, prefix: str) -> None:
    """Create all groups of tables, each process in another order: two begin with one, and two with the next."""
    first, groups = number // 2 % len(GROUPS), list(GROUPS.values())
    for group in groups[first:] + groups[:first]:
        place.warehouse(prefix).create(group)


def load_feed(number: int, place: RunLocation, prefix: str) -> None:
    """Load the first page of the feed of an account of its own."""
    feed = EventStore(place.warehouse(prefix), f"account {number}")
    assert feed.get_or_create_cursor() == 0
    assert feed.load_page(PAGES[0]).new_events == 3
