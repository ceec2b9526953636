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
from sqlalchemy.exc import DBAPIError, IntegrityError

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


JSONS = ["null", '"\\ud83d\\ude00 \u2028 % {x} ?"', "12345678901234567890123", "1.50", "[]", '{"a":[1e2,{"b":null}]}']


def test_json_is_text_whose_numbers_keep_their_digits(made: Database) -> None:
    for at, text in enumerate(JSONS):
        add(made, str(at), json=text)
    add(made, "none", json=None)
    *found, none = read(made, "json")
    as_values = {JSONS[1]: '"😀 \u2028 % {x} ?"', JSONS[5]: '{"a": [100, {"b": null}]}'}  # of PostgreSQL's jsonb
    assert found == [as_values.get(text, text) if made.name == "postgresql" else text for text in JSONS]
    assert none is None


def test_texts_bytes_and_flags_come_back_as_they_went(made: Database) -> None:
    keys = ["a", "A", "a ", "\u00e4", "a\u0308", "\U0001f600 % ? :x {y} '\"\\"]
    for key in keys:
        add(made, key, text=key * 100, bytes=key.encode() + b"\0\xff", flag=key == "a", version=2**63 - 1)
    with made.begin() as tx:
        rows = tx.execute(sa.select(THINGS.c["key", "text", "bytes", "flag", "version"])).all()
    expected = [(key, key * 100, key.encode() + b"\0\xff", key == "a", 2**63 - 1) for key in keys]
    assert sorted((key, text, bytes(raw), flag, number) for key, text, raw, flag, number in rows) == sorted(expected)


def test_a_write_that_compares_a_version_says_whether_it_has_changed_its_row(made: Database) -> None:
    add(made, version=1, text="same")
    change = sa.update(THINGS).where(THINGS.c.key == "k", THINGS.c.version == 1).values(version=2, text="same")
    for expected in (1, 0):
        with made.begin() as tx:
            assert tx.execute(change).rowcount == expected


def test_an_exception_leaves_nothing_of_a_transaction(made: Database) -> None:
    def add_twice(error: type[Exception]) -> None:
        with made.begin() as tx:
            tx.execute(sa.insert(THINGS).values(key="k"))
            if error is IntegrityError:
                tx.execute(sa.insert(THINGS).values(key="k"))
            raise error

    for error in (RuntimeError, IntegrityError):
        with pytest.raises(error):
            add_twice(error)
    assert read(made, "key") == []


def test_who_loses_a_race_for_a_row_tries_again_and_sees_it(made: Database) -> None:
    tries: list[int] = []

    def change() -> str:
        with made.begin() as tx:
            known = tx.scalar(sa.select(THINGS.c.text))
            if not tries and made.name in ("postgresql", "mysql"):
                tries.append(1)
                add(made, text="the other's")  # another session, right after this one has looked
            if known is None:
                tries.append(1)
                tx.execute(sa.insert(THINGS).values(key="k", text="mine"))
            return str(known)

    if made.name in ("sqlite", "duckdb"):  # no other session gets in between
        add(made, text="the other's")
    assert made.retry(change) == "the other's"


def test_many_first_runs_make_the_tables_once_and_lose_no_change(database: Database) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            database.create_tables([THINGS])
            database.retry(lambda: add(database, str(number)))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    assert len(read(database, "key")) == 8


# -------------------------------------------------------------------------------------------------------- refusals


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


def test_redshift_is_not_taken_for_postgresql() -> None:
    hook = Hook("postgresql", lambda: None)
    hook.conn_type = "redshift"  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedDatabase, match="stored in redshift"):
        Database(hook, "events or transfers")


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
def test_a_role_without_create_is_told_and_can_use_tables_that_are_there(postgres: Any, driver: str) -> None:
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


def test_a_user_of_mariadb_without_create_is_told(mariadb: Any) -> None:
    import MySQLdb

    with closing(mariadb.connect(autocommit=True)) as owner, owner.cursor() as tx:
        tx.execute(f"GRANT SELECT ON {mariadb.name}.* TO limited@localhost IDENTIFIED BY 'p'")
        hook = Hook(
            "mysql",
            lambda: MySQLdb.connect(unix_socket=mariadb.socket, user="limited", password="p", database=mariadb.name),
        )
        with pytest.raises(UnusableDatabase, match="The user may not create tables"):
            Database(hook, "events or transfers").create_tables([THINGS])
        tx.execute("DROP USER limited@localhost")


def test_a_file_of_sqlite_is_changed_where_tables_are_made_only(store_hook_of: Callable[[str], Hook]) -> None:
    hook = store_hook_of("sqlite")
    hook.run("CREATE TABLE of_another_program (id INTEGER)")
    database = Database(hook, "events or transfers")
    with database.begin() as tx:
        assert not sa.inspect(tx).has_table("things")
    assert hook.fetch("PRAGMA journal_mode") == [("delete",)]
    database.create_tables([THINGS])
    assert hook.fetch("PRAGMA journal_mode") == [("wal",)]
    add(database)
    assert read(database, "key") == ["k"]


def test_tables_of_mysql_have_a_row_format_for_long_keys_whatever_the_servers_is(mariadb: Any) -> None:
    hook = Hook("mysql", mariadb.connect)
    with closing(mariadb.connect()) as connection, connection.cursor() as tx:
        tx.execute("SET GLOBAL innodb_default_row_format = compact")
        try:
            Database(hook, "events or transfers").create_tables([THINGS])
        finally:
            tx.execute("SET GLOBAL innodb_default_row_format = dynamic")
    query = "SELECT row_format FROM information_schema.tables WHERE table_name = 'things' AND table_schema = database()"
    assert hook.fetch(query) == [("Dynamic",)]


@pytest.mark.parametrize("state", ["sqlstate", "pgcode"])
def test_an_error_is_shown_by_class_code_and_first_line(state: str) -> None:
    error = type("CheckViolation", (Exception,), {state: "23514"})("a rule was broken\nDETAIL: (ann@example.com)")
    assert words_of(DBAPIError("INSERT", {}, error)) == "CheckViolation 23514: a rule was broken"


# ---------------------------------------------------------------------------------------------------------- DuckDB


def test_a_duckdb_file_that_a_program_has_open_is_waited_for(store_hook_of: Callable[[str], Hook]) -> None:
    hook = store_hook_of("duckdb")
    file = Path(hook.uri.removeprefix("duckdb:///"))
    Database(hook, "events or transfers").create_tables([THINGS])
    with held_by_another_process(file) as let_go:
        with pytest.raises(WarehouseBusy, match="was in use for 0 s, by a program"):
            add(Database(hook, "events or transfers", timeout=0.2))
        threading.Timer(0.2, let_go).start()
        add(Database(hook, "events or transfers"))


def test_a_database_of_duckdb_that_is_no_file_is_refused() -> None:
    for uri in ("duckdb:///", "duckdb:///:memory:", "duckdb:///md:acme"):
        with (
            pytest.raises(UnsupportedDatabase, match="leads to no file of DuckDB"),
            Database(Hook("duckdb", duckdb.connect, uri=uri), "events or transfers").begin(),
        ):
            pass


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
        UnusableDatabase, match=r"The table things that is there is not .*Rename it, or set another pre"
    ):
        Database(hook, "events or transfers").create_tables([THINGS])
    assert hook.fetch("SELECT * FROM things") == []


@pytest.mark.parametrize("path", ["~/things.duckdb", "things.duckdb", "folder/../things.duckdb"])
def test_a_duckdb_file_has_one_lock_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    database = Database(Hook("duckdb", lambda: duckdb.connect(path), uri=f"duckdb:///{path}"), "events or transfers")
    assert not database.is_there()
    database.create_tables([THINGS])
    assert database.is_there()
    assert (tmp_path / "things.duckdb.lock").exists()
