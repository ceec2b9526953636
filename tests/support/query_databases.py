"""Databases of real kinds behind an Airflow connection, for what runs queries on them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

DRIVERS = ["sqlite", "duckdb", "psycopg", "psycopg2", "mysqlclient"]

#: What the rows of ``customers`` have: a number, a text, a sum, a day, a time and bytes.
COLUMNS = "id INTEGER, name VARCHAR(100), total NUMERIC(20, 2), born DATE, seen TIMESTAMP, photo {bytes}"
ROWS = [
    (1, 'Ann 報告, "x"\n', "1234567890123.45", "1980-02-29", "2026-01-31 12:30:00", b"\x00\xff"),
    (2, "=1+1", "-1.00", "2026-01-31", "2026-01-31 00:00:00", b""),
    (3, None, None, None, None, None),
]

#: Whom no error may quote.
CONTACT = "Ann Miller +1 555 010 4477"

#: By driver: an expression whose error quotes the column ``contact``.
FAILING = {
    "sqlite": "contact",  # which is not UTF-8
    "duckdb": "CAST(contact AS BIGINT)",
    **dict.fromkeys(("psycopg", "psycopg2"), "CAST(contact AS BIGINT)"),
    "mysqlclient": "extractvalue('<a/>', (SELECT contact FROM contacts))",
}


@dataclass
class QueryDatabase:
    connect: Callable[[], Any]
    airflow_connection: str
    placeholder: str = "%s"
    bytes_type: str = "BLOB"
    options: str = ""

    def run(self, statement: str, rows: list[tuple[Any, ...]] | None = None) -> None:
        with closing(self.connect()) as connection:
            tx = connection.cursor()
            tx.execute(statement) if rows is None else tx.executemany(statement, rows)
            connection.commit()
            tx.close()

    def create(self, table: str = "customers", rows: list[tuple[Any, ...]] = ROWS) -> None:
        self.run(f"CREATE TABLE {table} ({COLUMNS.format(bytes=self.bytes_type)}) {self.options}")
        self.insert(table, rows)

    def read(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            tx = connection.cursor()
            tx.execute(query)
            return [tuple(row) for row in tx.fetchall()]

    def insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self.run(f"INSERT INTO {table} VALUES ({', '.join([self.placeholder] * 6)})", rows)


def create_contacts(database: QueryDatabase, driver: str) -> None:
    """Create the table ``contacts``, whose one row makes :data:`FAILING` fail."""
    not_utf_8 = f"CAST(X'{CONTACT.encode().hex()}ff' AS TEXT)"
    database.run("CREATE TABLE contacts (contact VARCHAR(100))")
    database.run(f"INSERT INTO contacts VALUES ({not_utf_8 if driver == 'sqlite' else repr(CONTACT)})")


def connect_file(file: Path) -> Any:
    if file.suffix == ".sqlite":
        return sqlite3.connect(file)
    import duckdb

    return duckdb.connect(str(file))


@pytest.fixture
def database_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], QueryDatabase]:
    def make(driver: str) -> QueryDatabase:
        database = _database(request, tmp_path, monkeypatch, driver)
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database.airflow_connection)
        return database

    return make


def _database(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str) -> QueryDatabase:
    if driver in ("sqlite", "duckdb"):
        file = tmp_path / f"warehouse.{driver}"
        return QueryDatabase(partial(connect_file, file), json.dumps({"conn_type": driver, "host": str(file)}), "?")
    if driver == "mysqlclient":
        mariadb = request.getfixturevalue("mariadb")
        connect, options = partial(mariadb.connect, driver, charset="utf8mb4"), "ENGINE InnoDB DEFAULT CHARSET utf8mb4"
        return QueryDatabase(connect, mariadb.airflow_connection(driver), options=options)
    postgres = request.getfixturevalue("postgres")
    if driver == "psycopg2":  # what the hook takes where SQLAlchemy is of version 1
        import psycopg2
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        monkeypatch.setattr(PostgresHook, "_create_connection", lambda _, arguments: psycopg2.connect(**arguments))
    return QueryDatabase(partial(postgres.connect, driver), postgres.airflow_connection, bytes_type="BYTEA")
