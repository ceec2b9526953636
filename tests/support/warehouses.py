"""Real databases for tests, through what the warehouse uses of a ``DbApiHook``; fixtures: :mod:`support.databases`."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg.rows
import psycopg2.extras

from outbound_transfer.store.engine import Database


@dataclass
class Hook:
    dialect_name: str
    get_conn: Callable[[], Any]
    uri: str = ""

    def get_uri(self) -> str:
        return self.uri

    def connect(self) -> Any:
        """Open a connection, as soon as no other process has the file of DuckDB open."""
        while True:
            try:
                connection = self.get_conn()
            except duckdb.IOException as error:
                if "lock on file" not in str(error):
                    raise
                time.sleep(0.01)
                continue
            if self.dialect_name == "mysql":  # otherwise the server's defaults decide what is read
                connection.set_character_set("utf8mb4")
                connection.query("SET NAMES utf8mb4 COLLATE utf8mb4_nopad_bin")
                connection.query("SET SESSION time_zone = '+00:00', autocommit = 0")
            return connection

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


def observe(database: Database, step: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Make a step of each statement and commit of a database: ``step`` gets its text, and what does it, instead."""
    make_engine = database._make_engine

    def make() -> Any:
        engine = make_engine()
        for name in ("do_execute", "do_executemany", "do_execute_no_params", "do_commit"):
            setattr(engine.dialect, name, partial(observed, getattr(engine.dialect, name), name))
        return engine

    def observed(run: Callable[..., Any], name: str, *args: Any) -> Any:
        return step("commit" if name == "do_commit" else args[1], lambda: run(*args))

    database._make_engine = make  # type: ignore[method-assign]


def refuse_rows(connect: Callable[[], Any], dialect_name: str, pattern: str, column: str = "type") -> None:
    """Make the database refuse events whose column is like a pattern, of its own accord."""
    table = "outbound_transfer_events"
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        if dialect_name == "sqlite":
            act = "BEGIN SELECT RAISE(ABORT, 'no such row'); END"
            when = f"BEFORE INSERT ON {table} WHEN NEW.{column} LIKE '{pattern}'"
            cursor.execute(f"CREATE TRIGGER refusing {when} {act}")
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
    return Hook("sqlite", lambda: sqlite3.connect(f"file:{file}", uri=True), uri=f"sqlite:///{file}")


def duckdb_hook(file: Path) -> Hook:
    return Hook("duckdb", lambda: duckdb.connect(file), uri=f"duckdb:///{file}")


def hook_at(driver: str, database: Any) -> Hook:
    if driver == "sqlite":
        return sqlite_hook(database)
    if driver == "duckdb":
        return duckdb_hook(database)
    return Hook("mysql" if driver == "mysqlclient" else "postgresql", lambda: database.connect(driver))


_HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.readline()"


@contextmanager
def held_by_another_process(file: Path) -> Iterator[Callable[[], None]]:
    command = [sys.executable, "-c", _HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        yield other.stdin.close
