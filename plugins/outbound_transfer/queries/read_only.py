"""Cursors for one statement that only reads, where the database has a way to say so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from outbound_transfer.queries.errors import QueryFailed
from outbound_transfer.warehouse.dialects.refused import check_driver
from outbound_transfer.warehouse.errors import UnsupportedWarehouse

#: Of MySQL's protocol.
_MULTI_STATEMENTS_OFF: Final = 1

#: Statements of DuckDB that only read; an older version makes two of a PIVOT, both without a text.
_DUCKDB_READS: Final = frozenset(("SELECT", "MULTI"))

#: Parts of a statement in which a semicolon does not end it, unless it has one of the others, which are not parsed.
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*"|--[^\n\r]*""")
_NOT_PARSED: Final = re.compile(r"[\\$]|/\*")


def open_cursor(connection: Any, sql: str) -> Any:
    """Open a cursor for a query on a new connection, in a transaction that only reads if the database has such.

    Its rows are tuples, and stay at the server until fetched, where the driver has such a cursor.

    :raises QueryFailed: ``sql`` has several statements or a statement that writes, as far as the driver would run it.
    """
    driver = type(connection).__module__.lstrip("_").partition(".")[0]
    return _OPENERS.get(driver, _open_any)(connection, sql)


def _open_any(connection: Any, sql: str) -> Any:  # noqa: ARG001  # its transaction is rolled back
    return connection.cursor()


def _open_sqlite(connection: Any, sql: str) -> Any:  # noqa: ARG001  # the driver runs one statement
    connection.execute("PRAGMA query_only = ON")
    return connection.cursor()


def _open_duckdb(connection: Any, sql: str) -> Any:
    statements = connection.extract_statements(sql)
    if sum(bool(one.query) for one in statements) > 1:
        raise QueryFailed(_SEVERAL)
    # A transaction that only reads still lets COPY and ATTACH write files.
    if any(one.query and one.type.name not in _DUCKDB_READS for one in statements):
        raise QueryFailed("a query must be a SELECT")
    cursor = connection.cursor()
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    return cursor


def _open_psycopg(connection: Any, sql: str) -> Any:  # noqa: ARG001  # a cursor of the server takes one statement
    from psycopg.rows import tuple_row

    connection.autocommit = False  # a cursor of the server lives in a transaction
    connection.read_only = True
    return connection.cursor("outbound_transfer", row_factory=tuple_row)


def _open_psycopg2(connection: Any, sql: str) -> Any:
    from psycopg2.extensions import cursor

    if not is_one_statement(sql):
        raise QueryFailed(f"{_SEVERAL}; psycopg2 would run them all")
    connection.set_session(readonly=True, autocommit=False)
    return connection.cursor("outbound_transfer", cursor_factory=cursor)


def _open_mysqlclient(connection: Any, sql: str) -> Any:  # noqa: ARG001  # the server takes one statement then
    from MySQLdb.cursors import SSCursor

    connection.set_server_option(_MULTI_STATEMENTS_OFF)
    connection.set_character_set("utf8mb4")  # the server writes "?" for what the session's character set has not
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION READ ONLY")
    cursor.close()
    return connection.cursor(SSCursor)


def _refuse_mysql_connector(connection: Any, sql: str) -> Any:  # noqa: ARG001
    try:
        check_driver(connection)
    except UnsupportedWarehouse as error:
        raise QueryFailed(str(error)) from None


def is_one_statement(sql: str) -> bool:
    """Return whether a text is one statement of PostgreSQL, for a driver that sends several as they are.

    No semicolon stands outside of quotes and comments, but at the end. A text with a backslash, a dollar or a block
    comment is not parsed: a semicolon in quotes then counts, too.
    """
    rest = sql if _NOT_PARSED.search(sql) else _QUOTED.sub(" ", sql)
    return ";" not in rest.rstrip("; \t\r\n\f\v")


_SEVERAL: Final = "a query must be one statement"

#: By the package of the connection's class.
_OPENERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "sqlite3": _open_sqlite,
    "duckdb": _open_duckdb,
    "psycopg": _open_psycopg,
    "psycopg2": _open_psycopg2,
    "MySQLdb": _open_mysqlclient,
    "mysql": _refuse_mysql_connector,
}
