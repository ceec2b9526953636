"""Transactions, types and refusals of the store, in real databases."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from outbound_transfer.store.engine import Database
from outbound_transfer.store.errors import UnsupportedDatabase, UnusableDatabase, WarehouseBusy, words_of
from outbound_transfer.store.types import BYTES, FLAG, JSON, WHOLE, Text, Time
from support.warehouses import Hook, held_by_another_process


def things(schema: str | None = None) -> sa.Table:
    return sa.Table(
        "things",
        sa.MetaData(schema=schema),
        sa.Column("key", Text(100), primary_key=True),
        sa.Column("version", WHOLE, autoincrement=False),
        sa.Column("at", Time),
        sa.Column("json", JSON),
        sa.Column("text", Text),
        sa.Column("bytes", BYTES),
        sa.Column("flag", FLAG),
        sa.Index("things_1", "version"),
    )


THINGS = things()


@pytest.fixture
def made(database: Database) -> Database:
    database.create_tables([THINGS])
    database.create_tables([THINGS])
    return database


def add(database: Database, key: str = "k", **values: Any) -> None:
    with database.begin() as tx:
        tx.execute(sa.insert(THINGS).values(key=key, **values))


def read(database: Database, column: str) -> list[Any]:
    with database.begin() as tx:
        return list(tx.scalars(sa.select(THINGS.c[column]).order_by(THINGS.c.key)))


TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, 3, 0, 0, 1, timezone(timedelta(hours=2))),
    datetime(2026, 7, 1, 12, 0, 0, 123456, timezone(timedelta(hours=-3, minutes=-30))),
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
]


def test_a_time_is_the_same_instant_in_utc_whatever_the_database(made: Database) -> None:
    for at, moment in enumerate(TIMES):
        add(made, str(at), at=moment)
    found = read(made, "at")
    assert found == TIMES
    assert {each.tzinfo for each in found} == {UTC}
    for at, moment in enumerate(TIMES):
        with made.begin() as tx:
            same = tx.scalars(sa.select(THINGS.c.key).where(THINGS.c.at == moment)).all()
            earlier = tx.scalars(sa.select(THINGS.c.key).where(THINGS.c.at < moment)).all()
        assert (same, len(earlier)) == ([str(at)], at)


@pytest.mark.parametrize(
    ("dialect", "use", "message"),
    [
        ("mssql", "events or transfers", "No events or transfers are stored in mssql: name a .* or DuckDB;"),
        ("mssql+pyodbc", "deliveries", "stored in mssql: name a .* one of PostgreSQL, MySQL, MariaDB or SQLite$"),
        ("duckdb", "deliveries", "No deliveries are stored in duckdb: name .* PostgreSQL, MySQL, MariaDB or SQLite$"),
    ],
)  # fmt: skip
def test_a_database_that_is_not_known_is_refused_with_those_that_are(dialect: str, use: Any, message: str) -> None:
    with pytest.raises(UnsupportedDatabase, match=message):
        Database(Hook(dialect, lambda: None), use)


@pytest.mark.parametrize("kind", ["redshift", "gcpbigquery"])
def test_a_type_of_connection_is_known_before_a_database_that_is_like_postgresql_or_needs_an_account(kind: str) -> None:
    class Typed:
        conn_type = kind

        @property
        def dialect_name(self) -> str:
            if kind == "gcpbigquery":
                raise OSError("no credentials")
            return "postgresql"

    with pytest.raises(UnsupportedDatabase, match=f"No events or transfers are stored in {kind}"):
        Database(Typed(), "events or transfers")  # type: ignore[arg-type]


def test_a_driver_that_is_not_known_is_refused_and_closed() -> None:
    closed: list[bool] = []
    connection = type("Connection", (), {"__module__": "pg8000.dbapi", "close": lambda self: closed.append(True)})
    with (
        pytest.raises(UnsupportedDatabase, match="The driver pg8000 is not supported"),
        Database(Hook("postgresql", connection), "events or transfers").begin(),
    ):
        pass
    assert closed == [True]


@pytest.mark.parametrize("name", ["sqlite", "duckdb", "psycopg", "psycopg2", "mysqlclient"])
def test_a_schema_that_is_missing_is_named(store_hook_of: Callable[[str], Hook], name: str) -> None:
    database = Database(store_hook_of(name), "events or transfers")
    with pytest.raises(UnusableDatabase, match="There is no place for the tables: create the schema 'nowhere'"):
        database.create_tables([things("nowhere")])


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_role_without_create_is_told_so_and_can_use_existing_tables(postgres: Any, driver: str) -> None:
    with closing(postgres.connect(autocommit=True)) as owner:
        owner.execute("DROP ROLE IF EXISTS limited")
        owner.execute("CREATE ROLE limited")
        database = Database(
            Hook("postgresql", lambda: postgres.connect(driver, options="-c role=limited")), "events or transfers"
        )
        with pytest.raises(UnusableDatabase, match="The user may not create tables in the connection's schema: grant"):
            database.create_tables([THINGS])
        owner.execute("GRANT CREATE ON SCHEMA public TO limited")
        database.create_tables([THINGS])
        owner.execute("REVOKE CREATE ON SCHEMA public FROM limited")
        database.create_tables([THINGS])
        add(database)
        owner.execute("DROP OWNED BY limited")
        owner.execute("DROP ROLE limited")


def test_a_mariadb_user_without_create_is_told_so_and_can_use_existing_tables(mariadb: Any) -> None:
    import MySQLdb

    login = {"unix_socket": mariadb.socket, "user": "limited", "password": "p", "database": mariadb.name}
    limited = Database(Hook("mysql", lambda: MySQLdb.connect(**login)), "events or transfers")
    with closing(mariadb.connect(autocommit=True)) as owner, owner.cursor() as tx:
        tx.execute(f"GRANT SELECT, INSERT ON {mariadb.name}.* TO limited@localhost IDENTIFIED BY 'p'")
        with pytest.raises(UnusableDatabase, match="The user may not create tables"):
            limited.create_tables([THINGS])
        Database(Hook("mysql", mariadb.connect), "events or transfers").create_tables([THINGS])
        limited.create_tables([THINGS])
        add(limited)
        tx.execute("DROP USER limited@localhost")


@pytest.mark.parametrize("state", ["sqlstate", "pgcode"])
def test_an_error_is_shown_by_class_code_and_first_line(state: str) -> None:
    error = type("CheckViolation", (Exception,), {state: "23514"})("a rule was broken\nDETAIL: (ann@example.com)")
    assert words_of(DBAPIError("INSERT", {}, error)) == "CheckViolation 23514: a rule was broken"


def test_a_duckdb_file_that_a_program_has_open_is_waited_for(store_hook_of: Callable[[str], Hook]) -> None:
    hook = store_hook_of("duckdb")
    file = Path(hook.uri.removeprefix("duckdb:///"))
    Database(hook, "events or transfers").create_tables([THINGS])
    with held_by_another_process(file) as let_go:
        with pytest.raises(WarehouseBusy, match="was in use for 0 s, by a program"):
            add(Database(hook, "events or transfers", timeout=0.2))
        threading.Timer(0.2, let_go).start()
        add(Database(hook, "events or transfers"))


def test_no_program_changes_a_duckdb_file_while_it_is_opened(store_hook_of: Callable[[str], Hook]) -> None:
    """DuckDB 2.0.0 reads the header, then locks the file: what was committed in between would be lost."""
    hook, others = store_hook_of("duckdb"), []
    command = [sys.executable, "-c", "import duckdb, sys; duckdb.connect(sys.argv[1])", hook.uri[len("duckdb:///") :]]
    Database(hook, "events or transfers").create_tables([THINGS])

    def open_late() -> Any:
        others.append(subprocess.run(command, capture_output=True, text=True, check=False).stderr)
        return hook.get_conn()

    add(Database(replace(hook, get_conn=open_late), "events or transfers"), "own")
    assert "Could not set lock on file" in others[0]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("name", ["sqlite", "duckdb", "psycopg", "mysqlclient"])
def test_a_table_of_another_program_is_refused_in_words(store_hook_of: Callable[[str], Hook], name: str) -> None:
    hook = store_hook_of(name)
    hook.run("CREATE TABLE things (number INTEGER)")
    with pytest.raises(
        UnusableDatabase, match=r"The existing table things is not .*Rename it, or set another table pre"
    ):
        Database(hook, "events or transfers").create_tables([THINGS])
    assert hook.fetch("SELECT * FROM things") == []


@pytest.mark.parametrize(
    "path", ["~/it's 100%? & #1.duckdb", "it's 100%? & #1.duckdb", "folder/../it's 100%? & #1.duckdb"]
)
def test_a_duckdb_file_is_the_hooks_and_has_one_lock_however_its_path_is_written(tmp_path, monkeypatch, path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    hook = Hook("duckdb", lambda: duckdb.connect(path), uri=f"duckdb:///{path}")
    database = Database(hook, "events or transfers")
    assert not database.is_there()
    database.create_tables([THINGS])
    assert database.is_there()
    assert hook.fetch("SELECT * FROM things") == []
    assert {each.name for each in tmp_path.iterdir()} == {"folder", (name := "it's 100%? & #1.duckdb"), f"{name}.lock"}


def test_a_file_that_cannot_be_created_is_named(store_hook_of: Callable[[str], Hook], memory: Path) -> None:
    hook = replace(store_hook_of("duckdb"), uri=f"duckdb:///{memory}/no folder/warehouse")
    with pytest.raises(OSError, match="no folder/warehouse"):
        Database(hook, "events or transfers").create_tables([THINGS])
