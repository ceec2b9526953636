"""Runs a query over an Airflow connection and writes its result, in batches and without holding it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from functools import partial
from importlib import import_module
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, TypeAlias

import msgspec

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.queries.errors import QueryError, QueryFailed, ResultNotWritable, ResultTooLong, describe_error
from outbound_transfer.queries.exact import ExactQuery, Parser, can_copy, driver_of, is_exact, parsed
from outbound_transfer.queries.formats import csv
from outbound_transfer.queries.values import Batch, Result, check_names, normalize_column, to_text
from outbound_transfer.store.config import find_connection, sql_hook
from outbound_transfer.wording import clean, pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.queries.spec import QuerySpec

#: Rows of a batch: few at first, as rows may be large, then as many as their estimated bytes allow.
_FIRST_ROWS: Final = 256
_MAX_ROWS: Final = 16 * 1024
_MAX_BYTES: Final = 4 * 1024 * 1024

#: Raises what a driver raises in the block as :class:`QueryFailed`; takes what the connection does there.
Worded: TypeAlias = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class QueryExport:
    """How the queries of one delivery are run and written; ``max_rows`` is that of each result, None for any number."""

    sql_conn_id: str
    log: Logger
    hook_params: Mapping[str, Any] | None = None
    max_rows: int | None = None
    zone: tzinfo = UTC
    escape_formulas: bool = True

    def write(self, query: QuerySpec, file: BinaryIO) -> int:
        """Write a query's result in bounded memory to an empty file with a descriptor; return the number of rows."""
        self.log.info("%s: running the query on connection '%s'", query.file_name, self.sql_conn_id)
        started = time.monotonic()
        try:
            rows = self._write(query, file)
        except QueryError as error:
            raise type(error)(f"{query.file_name}: {error}") from None
        size, seconds = file.seek(0, 2), time.monotonic() - started
        self.log.info("%s: %s rows, %s bytes in %.1f s", query.file_name, f"{rows:,}", f"{size:,}", seconds)
        return rows

    def _write(self, query: QuerySpec, file: BinaryIO) -> int:
        rows = 0

        def counted(batches: Iterable[Batch]) -> Iterator[Batch]:
            nonlocal rows
            for batch in batches:
                rows = self._checked(rows + len(batch[0]))
                yield batch

        with open_connection(self.sql_conn_id, self.hook_params) as (connection, worded):
            if query.file_format == "csv" and can_copy(connection):
                limit = None if self.max_rows is None else self.max_rows + 1
                with worded("refused the query"):
                    exact = ExactQuery(connection, query.sql, query.parameters, self.zone)
                    return self._checked(exact.copy(file, limit=limit, escape_formulas=self.escape_formulas))
            with read_result(connection, worded, query.sql, query.parameters, self.zone) as result:
                counting = Result(result.columns, counted(result.batches))
                write_result(counting, query.file_format, file, escape_formulas=self.escape_formulas)
        return rows

    def _checked(self, rows: int) -> int:
        if self.max_rows is not None and rows > self.max_rows:
            allowed = pluralize(self.max_rows, "row")
            raise ResultTooLong(f"the result has more than {allowed} (max_rows): nothing is created")
        return rows


@contextmanager
def open_connection(
    conn_id: str, hook_params: Mapping[str, Any] | None = None, *, is_personal: bool = False
) -> Iterator[tuple[Any, Worded]]:
    """Open a connection, and close it at the end without a commit.

    :param is_personal: whether errors show only class and code, as a driver's text may quote a row.
    """
    hook = sql_hook(find_connection(conn_id), hook_params)
    with _worded(conn_id, False, "cannot be opened"):
        connection = hook.get_conn()
    try:
        yield connection, partial(_worded, conn_id, is_personal)
    finally:
        with suppress(Exception):
            connection.close()


@contextmanager
def _worded(conn_id: str, is_personal: bool, what: str) -> Iterator[None]:
    try:
        yield
    except QueryError:
        raise
    except Exception as error:  # each driver has its own
        kind, text = describe_error(error)
        shown = kind if is_personal else f"{kind} {clean(redact(text), 500)}"
        # Without its cause, whose text may quote a secret.
        raise QueryFailed(f"connection '{conn_id}' {what}: {shown}") from None


@contextmanager
def read_result(connection: Any, worded: Worded, sql: str, parameters: Any, zone: tzinfo = UTC) -> Iterator[Result]:
    """Run a query on an open connection, which is closed at the end. ``%`` is special only with parameters."""
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
        yield Result(columns, _batches(cursor, rows, parsers, zone, worded))
    finally:
        # The connection first: at the close of a cursor, some drivers read the remaining rows.
        for one in (connection, cursor):
            with suppress(Exception):
                one.close()


def open_cursor(connection: Any) -> Any:
    """Open a cursor whose rows are tuples, and stay at the server where the driver can do that."""
    driver = driver_of(connection)
    if driver in ("psycopg", "psycopg2") and connection.autocommit:
        connection.autocommit = False  # a cursor of the server lives in a transaction
    match driver:
        case "psycopg":
            from psycopg.rows import tuple_row

            return connection.cursor("outbound_transfer", row_factory=tuple_row)
        case "psycopg2":
            connection.cursor_factory = None
            return connection.cursor("outbound_transfer")
        case "MySQLdb":
            from MySQLdb.constants import FIELD_TYPE
            from MySQLdb.cursors import SSCursor

            connection.set_character_set("utf8mb4")  # the server writes "?" for what another one has not
            for kind in (FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP):
                convert = connection.converter[kind]  # which makes NULL of a zero date
                connection.converter[kind] = lambda text, convert=convert: convert(text) or text
            connection.converter |= {FIELD_TYPE.TIME: str, FIELD_TYPE.FLOAT: _refuse_float}
            return connection.cursor(SSCursor)
        case "mysql":
            raise QueryFailed(
                "the connection's driver is mysql-connector-python, and this package uses mysqlclient: remove the "
                "field client from the connection's extra"
            )
    return connection.cursor()


def _refuse_float(_: str) -> NoReturn:
    raise ResultNotWritable("MySQL rounds a FLOAT to six digits: CAST the column AS DOUBLE in the query")


def _batches(
    cursor: Any, rows: Sequence[Any], parsers: Iterable[Parser | None], zone: tzinfo, worded: Worded
) -> Iterator[Batch]:
    size = _FIRST_ROWS
    while rows:
        if isinstance(rows[0], Mapping):
            raise QueryFailed("the driver returns dictionaries: choose a tuple cursor in the connection's extra")
        columns = list(zip(*rows, strict=True))
        sample = [value for row in rows[:: max(len(rows) // 64, 1)] for value in row]
        some_bytes = sum(len(value) if isinstance(value, str | bytes | memoryview) else 32 for value in sample)
        size = min(size * 4, _MAX_BYTES * len(sample) // (some_bytes * len(columns) + 1) + 1, _MAX_ROWS)
        pairs = zip(columns, parsers, strict=False)
        values = [[parsed(text, parse) for text in column] if parse else column for column, parse in pairs]
        yield [normalize_column(column, zone) for column in values]
        with worded("stopped while its rows were read"):
            rows = cursor.fetchmany(size)


def write_result(result: Result, file_format: str, file: BinaryIO, *, escape_formulas: bool = True) -> None:
    check_names(result.columns)
    try:
        if file_format == "jsonl":
            _write_lines(result, file)
        elif file_format == "csv":
            csv.write(result, file, escape_formulas=escape_formulas)
        else:  # whose library is imported only where it is used
            import_module(f"outbound_transfer.queries.formats.{file_format}").write(result, file)
    except UnicodeEncodeError as error:  # without its text
        raise ResultNotWritable(f"a text cannot be encoded as UTF-8: {error.reason}") from None
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "xlsxwriter"):
            raise
        raise InvalidDelivery(
            f"{file_format} needs a package that is not installed: pip install "
            f"'airflow-provider-outbound-transfer[{file_format}]'"
        ) from None


def _write_lines(result: Result, file: BinaryIO) -> None:
    """Write a result as JSON Lines: one object a row, with the text of what JSON has no type for, or rounds."""
    encoder = msgspec.json.Encoder()
    for batch in result.batches:
        columns = [[to_text(each) if type(each) in (Decimal, datetime) else each for each in one] for one in batch]
        rows = zip(*columns, strict=True)
        file.write(encoder.encode_lines([dict(zip(result.columns, row, strict=True)) for row in rows]))
