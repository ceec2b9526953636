"""Real databases for tests, through what the warehouse uses of a ``DbApiHook``; fixtures: :mod:`support.databases`."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import psycopg.rows
import psycopg2.extras

from outbound_transfer.warehouse.dialects import dialect_of


@dataclass
class Hook:
    """What the warehouse uses of a ``DbApiHook``."""

    dialect_name: str
    get_conn: Callable[[], Any]
    uri: str = ""

    def get_uri(self) -> str:
        return self.uri

    @cached_property
    def connect(self) -> Callable[[], Any]:
        dialect = dialect_of(self)
        open_connection = dialect.connection_factory(self)

        def connect() -> Any:
            connection = open_connection()
            if dialect.name == "mysql":  # otherwise the server's defaults decide what is read
                dialect.configure_connection(connection)
            return connection

        return connect

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            self._speak_standard_sql(cursor)
            cursor.execute(query)
            return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in cursor.fetchall()]

    def run(self, statement: str) -> None:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            self._speak_standard_sql(cursor)
            cursor.execute(statement)
            (cursor if self.dialect_name == "duckdb" else connection).commit()

    def _speak_standard_sql(self, cursor: Any) -> None:
        if self.dialect_name == "mysql":  # so that all tests quote names alike
            cursor.execute("SET SESSION sql_mode = 'TRADITIONAL,ANSI_QUOTES,PIPES_AS_CONCAT'")


class ObservedConnection:
    """A connection or cursor whose statements and commits are steps.

    :param step: is given each one's text, and what does it, in place of it.
    """

    def __init__(self, inner: Any, step: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.__dict__.update(inner=inner, step=step)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "cursor":
            return lambda: ObservedConnection(found(), self.step)
        if name in ("execute", "executemany", "copy", "copy_expert", "commit"):
            return lambda *args: self.step(str(args[0]) if args else name, lambda: found(*args))
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


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
            tested = column if dialect_name == "mysql" else f"{column}::text"
            check = f"CHECK ({tested} NOT LIKE '{pattern}')"
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
    return Hook("duckdb", lambda: duckdb.connect(file), uri=f"duckdb:///{file}")


def hook_at(driver: str, database: Any) -> Hook:
    """A hook of a driver.

    :param database: a file, or a server's database.
    """
    if driver == "sqlite":
        return sqlite_hook(database)
    if driver == "duckdb":
        return duckdb_hook(database)
    return Hook("mysql" if driver == "mysqlclient" else "postgresql", lambda: database.connect(driver))


_HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.readline()"


@contextmanager
def held_by_another_process(file: Path) -> Iterator[Callable[[], None]]:
    """A DuckDB file that another process has open; what is yielded lets it go."""
    command = [sys.executable, "-c", _HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        yield other.stdin.close
