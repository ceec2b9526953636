"""Which databases are a warehouse, and pages that one refuses as a whole."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.errors import CursorMoved, PageRefused, UnsupportedDatabase
from outbound_transfer.store.maintenance import SqlFeedMaintenance
from outbound_transfer.store.schema import Tables
from outbound_transfer.transfers.feed_ingest import FeedIngest
from outbound_transfer.transfers.progress import IngestProgress
from support.feed_pages import CURSOR, PAGES, tables
from support.warehouses import Hook, refuse_rows


class Bent:
    """A connection or cursor of SQLite that a subclass bends."""

    def __init__(self, inner: Any) -> None:
        self.__dict__["inner"] = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def cursor(self) -> Any:
        return type(self)(self.inner.cursor())

    def execute(self, statement: str, *parameters: Any) -> Any:
        return self.inner.execute(self.bend(statement), *parameters)

    def bend(self, statement: str) -> str:
        return statement


@pytest.mark.parametrize("name", ["athena", "clickhouse", "mssql", "redshift", "snowflake", "trino"])
@pytest.mark.parametrize("attribute", ["conn_type", "dialect_name"])
def test_another_database_is_refused_by_its_name(name: str, attribute: str) -> None:
    names = {"conn_type": "postgres", "dialect_name": "postgresql"} | {attribute: name}
    with pytest.raises(UnsupportedDatabase, match=r"one of PostgreSQL, MySQL, MariaDB, SQLite or DuckDB; docs/ware"):
        Tables(SimpleNamespace(**names))


def test_a_type_of_connection_is_known_before_the_database_is_asked_for_its_name() -> None:
    class Hook:
        conn_type = "gcpbigquery"

        @property
        def dialect_name(self) -> str:
            raise OSError("no credentials")

    with pytest.raises(UnsupportedDatabase, match="No events or transfers are stored in gcpbigquery"):
        Tables(Hook())  # type: ignore[arg-type]


def test_a_page_that_is_refused_as_a_whole_is_in_the_log_of_polls(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    refuse_rows(hook.get_conn, hook.dialect_name, "%")
    ingest = FeedIngest(
        lambda _: PAGES[0],
        feed,
        IngestProgress(),
        address="acme.example.com",
        max_pages=None,
        max_rejected=None,
        sleep=lambda _: None,
    )
    with pytest.raises(PageRefused, match="refuses any row of the page after 0"):
        ingest.run()
    found = SqlFeedMaintenance(feed).status()
    assert (found.cursor, found.events, found.status) == (0, 0, 200)
    assert found.note is not None
    assert "not loaded: PageRefused: the database refuses any row" in found.note
    assert hook.fetch(CURSOR) == [(0,)]


def test_a_refusal_that_does_not_come_again_is_left_to_the_tasks_retries(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DataError(Exception):
        pass

    feed = tables(hook)
    feed.get_or_create_cursor()
    errors = [DataError("once")]
    insert = feed.warehouse.dialect.insert

    def fail(tx: Any, quoted: str, table: Any, rows: Any) -> int:
        if errors and table.name == "events":
            raise errors.pop()
        return insert(tx, quoted, table, rows)

    monkeypatch.setattr(feed.warehouse.dialect, "insert", fail)
    with pytest.raises(DataError):
        feed.load_page(PAGES[0])
    assert feed.load_page(PAGES[0]).new_events == 3


@pytest.mark.parametrize("name", ["sqlite", "mysqlclient"])
def test_a_connection_that_its_hook_keeps_is_rolled_back(name: str, hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of(name)

    class Unclosed(Bent):
        def cursor(self) -> Any:
            return self.inner.cursor()

        def close(self) -> None:
            pass

    connection = Unclosed(hook.get_conn())
    feed = tables(Hook(hook.dialect_name, lambda: connection))
    feed.warehouse.tables = Tables(hook)
    feed.get_or_create_cursor()

    def move_and_fail() -> None:
        with feed.warehouse.transaction() as tx:
            feed.compare_and_set_cursor(tx, 0, 7)
            feed.compare_and_set_cursor(tx, 0, 8)

    with pytest.raises(CursorMoved):
        move_and_fail()
    feed.log_poll(PollRecord(cursor_from=0, status=500))
    assert feed.get_or_create_cursor() == 0
    connection.inner.close()
