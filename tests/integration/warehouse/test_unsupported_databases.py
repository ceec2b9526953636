"""What a database must keep to be a warehouse: found out by its name or by a probe, before a table is made in it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.transfers.feed_ingest import FeedIngest
from outbound_transfer.transfers.progress import IngestProgress
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.destination import PollRecord
from outbound_transfer.warehouse.dialects.refused import REFUSED
from outbound_transfer.warehouse.errors import CursorMoved, PageRefused, UnsupportedWarehouse
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance
from outbound_transfer.warehouse.schema import (
    GROUPS,
    TableGroup,
    ensure_schema,
)
from outbound_transfer.warehouse.timestamps import utc_now
from support.feed_pages import CURSOR, PAGES, TABLE_NAMES, tables
from support.warehouses import Hook, InventedPostgresql, InventedSqlite, refuse_rows


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


class CommitsEachStatement(Bent):
    def cursor(self) -> Any:
        self.inner.isolation_level = None
        return super().cursor()


class CountsNoRows(Bent):
    rowcount = -1


class HasNoKeys(Bent):
    def bend(self, statement: str) -> str:
        return re.sub(r",\s*PRIMARY KEY \([^)]*\)", "", statement)


class IgnoresCase(Bent):
    def bend(self, statement: str) -> str:
        return re.sub(r"VARCHAR\((\d+)\)", r"VARCHAR(\1) COLLATE NOCASE", statement)


class HasEmptyForNull(Bent):
    def bend(self, statement: str) -> str:
        return statement.replace("SELECT", 'SELECT "name", coalesce("value", \'\') FROM (SELECT', 1) + (
            ")" if "SELECT" in statement else ""
        )


class CutsText(Bent):
    def execute(self, statement: str, *parameters: Any) -> Any:
        return super().execute(
            statement, *([value[:255] if isinstance(value, str) else value for value in each] for each in parameters)
        )


BENT = {
    CommitsEachStatement: "commits by itself",
    CountsNoRows: "how many rows a statement changed",
    HasNoKeys: "two rows of one key",
    IgnoresCase: "differ by case",
    HasEmptyForNull: "changes text",
    CutsText: "changes text",
}


def bent_hook(bent: type[Bent], file: Path) -> Hook:
    return Hook(InventedSqlite.name, lambda: bent(sqlite3.connect(file)), "?")


def table_names(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return sorted(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
@pytest.mark.parametrize("bent", BENT, ids=lambda bent: bent.__name__)
def test_an_unknown_database_that_keeps_less_is_refused(bent: type[Bent], group: TableGroup, tmp_path: Path) -> None:
    file = tmp_path / "warehouse.db"
    with pytest.raises(UnsupportedWarehouse, match=BENT[bent]) as refused:
        ensure_schema(Warehouse(bent_hook(bent, file)), group, utc_now())
    assert "EventFeedToIcebergOperator" in str(refused.value)
    assert table_names(file) == []


def test_an_unknown_database_that_keeps_what_it_is_given_is_used(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.db"
    feed = tables(bent_hook(Bent, file))
    assert feed.get_or_create_cursor() == 0
    assert feed.load_page(PAGES[0]) == 3
    assert table_names(file) == sorted(f"outbound_transfer_{name}" for name in TABLE_NAMES)


@pytest.mark.parametrize("prefix", ['x"{a}%s?[b]', "100%% "])
def test_a_probe_quotes_the_prefix(prefix: str, tmp_path: Path, hook_of: Callable[[str], Hook]) -> None:
    for hook in (bent_hook(Bent, tmp_path / "w.db"), Hook(InventedPostgresql.name, hook_of("psycopg").get_conn)):
        assert tables(hook, prefix=prefix).get_or_create_cursor() == 0


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("attribute", ["conn_type", "dialect_name"])
def test_a_database_that_is_known_not_to_work_is_refused_by_its_name(name: str, attribute: str) -> None:
    names = {"conn_type": "other", "dialect_name": "postgresql"} | {attribute: name}
    with pytest.raises(UnsupportedWarehouse, match=r"Use PostgreSQL, .* or load the event feed with EventFeedTo"):
        Warehouse(SimpleNamespace(**names, placeholder="%s"))


def test_a_type_of_connection_is_known_before_the_database_is_asked_for_its_name() -> None:
    class Hook:
        conn_type = "gcpbigquery"

        @property
        def dialect_name(self) -> str:
            raise OSError("no credentials")

    with pytest.raises(UnsupportedWarehouse, match="BigQuery"):
        Warehouse(Hook())  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_a_server_whose_default_has_no_transactions_is_probed(engine: str, hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("mysqlclient")

    def connect() -> Any:
        connection = hook.get_conn()
        connection.cursor().execute(f"SET default_storage_engine = {engine}, sql_mode = 'ANSI_QUOTES'")
        return connection

    with pytest.raises(UnsupportedWarehouse, match="keeps rows of a transaction that is rolled back"):
        tables(Hook("another", connect)).get_or_create_cursor()
    assert hook.fetch("SHOW TABLES") == []


def test_a_database_behind_mysqls_protocol_is_probed(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("mysqlclient")

    class Poolers(Bent):
        """Ignores what it is told about commits."""

        def cursor(self) -> Any:
            self.inner.autocommit(True)
            return self.inner.cursor()

    with pytest.raises(UnsupportedWarehouse, match="keeps rows of a transaction that is rolled back"):
        tables(Hook("mysql", lambda: Poolers(hook.get_conn()))).get_or_create_cursor()
    assert hook.fetch("SHOW TABLES") == []


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
    assert feed.load_page(PAGES[0]) == 3


@pytest.mark.parametrize("name", ["sqlite", "mysqlclient"])
def test_a_connection_that_its_hook_keeps_is_rolled_back(name: str, hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of(name)

    class Unclosed(Bent):
        def cursor(self) -> Any:
            return self.inner.cursor()

        def close(self) -> None:
            pass

    connection = Unclosed(hook.get_conn())
    feed = tables(Hook(hook.dialect_name, lambda: connection, hook.placeholder))
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
