"""A real Iceberg catalog in a folder, and processes that use it at once."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from outbound_transfer.client.events import Page
from outbound_transfer.lake.iceberg import IcebergEventDestination
from outbound_transfer.store.errors import CursorMoved
from support.feed_pages import events, page
from support.timeouts import TEST_TIMEOUT

TABLE = "lake.events"

LINES, PAGES = 20, 6

#: What takes seconds to import in each process.
_IMPORTED_ONCE = [
    "duckdb", "psycopg.rows", "psycopg2.extras", "pyarrow.dataset", "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow", "outbound_transfer.lake.iceberg", "outbound_transfer.store.events",
]  # fmt: skip


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder / 'lake'}"}


def connection_json(folder: Path) -> str:
    return json.dumps({"conn_type": "iceberg", "extra": properties(folder)})


@dataclass
class Lake:
    folder: Path
    catalog: Any

    def destination(self, account: str = "acme", catalog: Any = None, **options: Any) -> IcebergEventDestination:
        return IcebergEventDestination(catalog or self.catalog, TABLE, account, **options)

    def maintenance(self, account: str = "acme") -> IcebergEventDestination:
        return self.destination(account)

    def table(self) -> Table:
        return self.catalog.load_table(TABLE)

    def rows(self) -> list[dict[str, Any]]:
        rows = self.table().scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["cursor_from"], row["line_number"]))

    def ids(self, account: str = "acme") -> list[str]:
        return [row["event_id"] for row in self.rows() if row["event_id"] and row["account"] == account]

    def snapshots(self) -> int:
        return len(self.table().snapshots())

    def set_property(self, name: str, value: str) -> None:
        with self.table().transaction() as transaction:
            transaction.set_properties({name: value})

    def remove_property(self, name: str) -> None:
        with self.table().transaction() as transaction:
            transaction.remove_properties(name)


def open_lake(folder: Path) -> Lake:
    catalog = SqlCatalog("lake", **properties(folder))
    catalog.create_namespace_if_not_exists("lake")
    return Lake(folder, catalog)


class InterruptedCatalog:
    """A catalog whose commits are interrupted: ``before`` and ``after`` may raise, or commit something themselves."""

    def __init__(self, catalog: Any, *, before: Callable[[], Any] = int, after: Callable[[], Any] = int) -> None:
        self._catalog, self._before, self._after = catalog, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, name: str) -> Table:
        table = self._catalog.load_table(name)
        table.catalog = self
        return table

    def commit_table(self, *arguments: Any) -> Any:
        self._before()
        response = self._catalog.commit_table(*arguments)
        self._after()
        return response


def at_once(*workers: tuple[Callable[..., Any], tuple[Any, ...]]) -> list[Any]:
    """Run each worker in a process of its own, all at once; what they returned."""
    context = multiprocessing.get_context("forkserver")  # a fork of this process would inherit Arrow's threads
    context.set_forkserver_preload(_IMPORTED_ONCE)
    with context.Pool(len(workers)) as pool:
        results = [pool.apply_async(worker, arguments) for worker, arguments in workers]
        return [result.get(TEST_TIMEOUT) for result in results]


def create(folder: Path) -> int:
    return open_lake(folder).destination().get_or_create_cursor()


def drain(folder: Path, account: str = "acme") -> int:
    destination, loaded = open_lake(folder).destination(account), 0
    while (cursor := destination.get_or_create_cursor()) < LINES * PAGES:
        with suppress(CursorMoved):
            destination.load_page(page_after(cursor))
            loaded += 1
    return loaded


def page_after(cursor: int) -> Page:
    return page(cursor, *events(cursor, cursor + LINES), has_more=cursor + LINES < LINES * PAGES)


def compact(folder: Path, accounts: Sequence[str] = ("acme",)) -> int:
    return _again_and_again(folder, accounts, lambda table: table.overwrite(table.scan().to_arrow()))


def expire(folder: Path) -> int:
    until = datetime.now() + timedelta(days=1)
    return _again_and_again(
        folder, ("acme",), lambda table: table.maintenance.expire_snapshots().older_than(until).commit()
    )


def _again_and_again(folder: Path, accounts: Sequence[str], act: Callable[[Table], Any]) -> int:
    """Do something once, and again until the feeds are drained; how often that succeeded."""
    lake, done = open_lake(folder), 0
    while not (done and _is_drained(lake, accounts)):
        with suppress(CommitFailedException):
            act(lake.table())
            done += 1
    return done


def _is_drained(lake: Lake, accounts: Sequence[str]) -> bool:
    found = lake.table().properties
    cursors = (json.loads(found[f"outbound-transfer.feed.{account}"])["cursor"] for account in accounts)
    return set(cursors) == {LINES * PAGES}
