"""Reads the result of a query over an Airflow connection, in batches and without holding it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, tzinfo
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from outbound_transfer.queries.errors import QueryError, QueryFailed, ResultNotWritable, describe_error
from outbound_transfer.queries.exact import ExactQuery, Parser, driver_of, is_exact, parsed
from outbound_transfer.queries.values import Batch, Result, check_names, normalize_column
from outbound_transfer.store.config import find_connection, sql_hook
from outbound_transfer.wording import redact

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Rows of a batch: few at first, as rows may be large, then as many as their estimated bytes allow.
_FIRST_ROWS: Final = 256
_MAX_ROWS: Final = 16 * 1024
_MAX_BYTES: Final = 4 * 1024 * 1024

#: Extra fields of a connection that hold a secret.
_SECRET_FIELD: Final = re.compile("pass|secret|token|key|credential|private|auth", re.IGNORECASE)

#: Raises what a driver raises in the block as :class:`QueryFailed`; takes what the connection does there.
Worded: TypeAlias = Callable[[str], AbstractContextManager[None]]


@contextmanager
def query_result(sql_conn_id: str, sql: str, parameters: Any = None, *, is_personal: bool = False) -> Iterator[Result]:
    """Run a query on a connection of its own, and close that at the end without a commit.

    :param parameters: in the driver's style; None if ``sql`` has no placeholders, then ``%`` is only a character.
    :param is_personal: whether errors are told by class and code alone, as a driver's text may quote a row.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    :raises QueryFailed: the database cannot be reached or refuses the query, or the query returns no columns.
    """
    with (
        open_connection(sql_conn_id, is_personal=is_personal) as (connection, worded),
        read_result(connection, worded, sql, parameters, UTC) as result,
    ):
        yield result


@contextmanager
def open_connection(
    sql_conn_id: str, hook_params: Mapping[str, Any] | None = None, *, is_personal: bool = False
) -> Iterator[tuple[Any, Worded]]:
    """Open a connection, and close it at the end; see :func:`query_result`."""
    airflow_connection = find_connection(sql_conn_id)
    hook = sql_hook(airflow_connection, hook_params)
    with _worded_errors(airflow_connection, "cannot be opened"):
        connection = hook.get_conn()
    try:
        yield connection, partial(_worded_errors, airflow_connection, is_personal=is_personal)
    finally:
        with suppress(Exception):
            connection.close()


@contextmanager
def read_result(connection: Any, worded: Worded, sql: str, parameters: Any, zone: tzinfo) -> Iterator[Result]:
    """Run a query on an open connection, which is closed at the end; see :func:`query_result`."""
    cursor: Any = None
    try:
        with worded("refused the query"):
            arguments: list[Any] = [parameters] if parameters else []
            parsers: Iterable[Parser | None] = repeat(None)
            if is_exact(connection):
                sql, arguments, parsers = ExactQuery(connection, sql, parameters, zone).selection()
            cursor = open_cursor(connection)
            cursor.execute(sql.removeprefix("\ufeff"), *arguments)  # some editors begin a file with it
            rows = cursor.fetchmany(_FIRST_ROWS)  # before this, some drivers do not know the columns
            columns = [str(column[0]) for column in cursor.description or ()]
            check_names(columns, unique=False)
        yield Result(columns, _batches(cursor, rows, parsers, zone, worded))
    finally:
        # The connection first, which rolls its transaction back: at the close of a cursor, some drivers read the rows
        # that nobody wants any more.
        for one in (connection, cursor):
            with suppress(Exception):
                one.close()


def open_cursor(connection: Any) -> Any:
    """Open a cursor whose rows are tuples, and stay at the server where the driver can do that.

    :raises QueryFailed: the driver is not one that this package knows how to use.
    """
    driver = driver_of(connection)
    if driver in ("psycopg", "psycopg2") and connection.autocommit:
        connection.autocommit = False  # a cursor of the server lives in a transaction
    match driver:
        case "psycopg":
            from psycopg.rows import tuple_row

            return connection.cursor("outbound_transfer", row_factory=tuple_row)
        case "psycopg2":
            from psycopg2 import extensions

            return connection.cursor("outbound_transfer", cursor_factory=extensions.cursor)
        case "MySQLdb":
            return _open_mysqlclient(connection)
        case "mysql":
            raise QueryFailed(
                "the connection's driver is mysql-connector-python, and this package knows mysqlclient: take the field "
                "client out of the connection's extra"
            )
    return connection.cursor()


def _open_mysqlclient(connection: Any) -> Any:
    from MySQLdb.constants import FIELD_TYPE
    from MySQLdb.cursors import SSCursor

    def refuse_float(_: str) -> NoReturn:
        raise ResultNotWritable("MySQL rounds a FLOAT to six digits: CAST the column AS DOUBLE in the query")

    connection.set_character_set("utf8mb4")  # the server writes "?" for what the session's character set has not
    for kind in (FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP):
        convert = connection.converter[kind]  # which makes NULL of a zero date
        connection.converter[kind] = lambda text, convert=convert: text if (value := convert(text)) is None else value
    connection.converter[FIELD_TYPE.TIME] = str
    connection.converter[FIELD_TYPE.FLOAT] = refuse_float
    return connection.cursor(SSCursor)


def _batches(
    cursor: Any, rows: Sequence[Any], parsers: Iterable[Parser | None], zone: tzinfo, worded: Worded
) -> Iterator[Batch]:
    """Yield the rows that were fetched, and the further ones."""
    size = _FIRST_ROWS
    while rows:
        if isinstance(rows[0], Mapping):
            raise QueryFailed("the driver returns dictionaries: choose a cursor of tuples in the connection's extra")
        columns = list(zip(*rows, strict=True))
        sample = [value for row in rows[:: max(len(rows) // 64, 1)] for value in row]
        some_bytes = sum(len(value) if isinstance(value, str | bytes | memoryview) else 32 for value in sample)
        size = min(size * 4, _MAX_BYTES * len(sample) // (some_bytes * len(columns) + 1) + 1, _MAX_ROWS)
        pairs = zip(columns, parsers, strict=False)
        values = [[parsed(text, parse) for text in column] if parse else column for column, parse in pairs]
        yield [normalize_column(column, zone) for column in values]
        with worded("stopped while its rows were read"):
            rows = cursor.fetchmany(size)


@contextmanager
def _worded_errors(connection: Connection, what: str, *, is_personal: bool = False) -> Iterator[None]:
    try:
        yield
    except QueryError:
        raise
    except Exception as error:  # each driver has its own
        kind, text = describe_error(error)
        extra = connection.extra_dejson.items()
        secrets = [connection.password, *(value for name, value in extra if _SECRET_FIELD.search(name))]
        known = [secret for secret in secrets if isinstance(secret, str) and secret]
        shown = kind if is_personal else f"{kind} {redact(text, known)}"
        # Without its cause, whose text may quote a secret.
        raise QueryFailed(f"connection '{connection.conn_id}' {what}: {shown}") from None
