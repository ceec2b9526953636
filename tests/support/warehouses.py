"""Real databases for tests, through what the warehouse uses of a ``DbApiHook``.

Import the fixtures into the test module, with those of :mod:`support.postgres`::

    from support.warehouses import hook, hook_of, memory  # noqa: F401
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import psycopg.rows
import psycopg2.extras
import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook

from outbound_transfer.warehouse.dialects import dialect_of
from support.postgres import Database


@dataclass
class Hook:
    """What the warehouse uses of a ``DbApiHook``."""

    dialect_name: str
    get_conn: Callable[[], Any]
    placeholder: str = "%s"

    @property
    def supports_autocommit(self) -> bool:
        return self.placeholder == "%s"  # of these drivers, PostgreSQL's alone

    def set_autocommit(self, conn: Any, autocommit: bool) -> None:
        DbApiHook.set_autocommit(self, conn, autocommit)

    @cached_property
    def connect(self) -> Callable[[], Any]:
        return dialect_of(self).connector(self)

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(query)
            return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in cursor.fetchall()]

    def run(self, statement: str) -> None:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            (cursor if self.dialect_name == "duckdb" else connection).commit()


def refuse_rows(connect: Callable[[], Any], dialect_name: str, pattern: str, column: str = "type") -> None:
    """Make the database refuse events whose column is like a pattern, of its own accord."""
    table = "outbound_transfer_events"
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        if dialect_name == "sqlite":
            cursor.execute(
                f"CREATE TRIGGER refusing BEFORE INSERT ON {table} WHEN NEW.{column} LIKE '{pattern}'"
                " BEGIN SELECT RAISE(ABORT, 'no such row'); END"
            )
        elif dialect_name == "duckdb":  # adds no constraint to a table that is there
            cursor.execute(f"SELECT sql FROM duckdb_tables() WHERE table_name = '{table}'")
            made = cursor.fetchall()[0][0].rstrip(" ;")[:-1]
            cursor.execute(f"DROP TABLE {table}")
            cursor.execute(f"{made}, CHECK ({column} NOT LIKE '{pattern}'))")
        else:
            check = f"CHECK ({column}::text NOT LIKE '{pattern}')"
            cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT refusing {check}")
        connection.commit()


DRIVERS: dict[str, dict[str, Any]] = {
    "psycopg": {},
    "psycopg-autocommit": {"driver": "psycopg", "autocommit": True},
    "psycopg-dictionaries": {"driver": "psycopg", "row_factory": psycopg.rows.dict_row},
    "psycopg2": {"driver": "psycopg2"},
    "psycopg2-dictionaries": {"driver": "psycopg2", "cursor_factory": psycopg2.extras.RealDictCursor},
}


def sqlite_hook(file: Path) -> Hook:
    return Hook("sqlite", lambda: sqlite3.connect(f"file:{file}", uri=True))


def duckdb_hook(file: Path) -> Hook:
    return Hook("duckdb", lambda: duckdb.connect(file))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder that no disk is waited for: DuckDB writes its file anew whenever it is closed."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def hook_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Hook]:
    def make(name: str) -> Hook:
        if name == "sqlite":
            return sqlite_hook(tmp_path / "warehouse.db")
        if name == "duckdb":
            return duckdb_hook(request.getfixturevalue("memory") / "warehouse.duckdb")
        database: Database = request.getfixturevalue("postgres")
        return Hook("postgresql", lambda: database.connect(**DRIVERS[name]))

    return make


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "psycopg2"])
def hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    return hook_of(request.param)


@pytest.fixture(params=["sqlite", "duckdb", *DRIVERS])
def any_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    return hook_of(request.param)
