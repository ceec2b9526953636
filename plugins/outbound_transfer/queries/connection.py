"""Reads the result of a query over an Airflow connection, in batches and without holding it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.queries.errors import QueryFailed, redact_parameters
from outbound_transfer.queries.rows import Batch, Result
from outbound_transfer.queries.values import normalize_column
from outbound_transfer.warehouse.dialects.mysql import decode_as_utf8
from outbound_transfer.warehouse.errors import NotASqlConnection

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Rows of a batch. It begins small, as rows may be large, and grows while its estimated bytes allow.
_FIRST_ROWS: Final = 256
_MAX_ROWS: Final = 16 * 1024
_MAX_BYTES: Final = 4 * 1024 * 1024

#: Bytes of a value that is neither text nor bytes.
_VALUE_BYTES: Final = 32

#: Extra fields of a connection that hold a secret.
_SECRET_FIELD: Final = re.compile("pass|secret|token|key|credential|private|auth", re.IGNORECASE)


@contextmanager
def query_connection(
    sql_conn_id: str, hook_params: Mapping[str, Any] | None, zone: tzinfo
) -> Iterator[QueryConnection]:
    """Open a connection for queries; whatever they change is rolled back at its close.

    :param hook_params: arguments of the hook.
    :param zone: what timestamps with a zone are converted to.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    :raises QueryFailed: the database cannot be reached.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    airflow_connection = BaseHook.get_connection(sql_conn_id)
    errors = DatabaseErrors(airflow_connection)
    hook = airflow_connection.get_hook(hook_params=dict(hook_params or {}))
    if not isinstance(hook, DbApiHook):
        raise NotASqlConnection(f"connection '{sql_conn_id}' is not a SQL connection (its hook is not a DbApiHook)")
    with errors.translated("cannot be opened"):
        opened = hook.get_conn()
    queries = QueryConnection(opened, errors, zone)
    try:
        yield queries
    finally:
        queries.close()


class QueryConnection:
    """An open connection, for one query after another."""

    def __init__(self, opened: Any, errors: DatabaseErrors, zone: tzinfo) -> None:
        self._opened, self._errors, self._zone = opened, errors, zone
        self._cursors: list[Any] = []

    def close(self) -> None:
        """Close the connection, which rolls its transaction back."""
        # The connection first: at the close of a cursor, some drivers read the rows that nobody wants any more.
        for one in (self._opened, *self._cursors):
            with suppress(Exception):
                one.close()

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Result:
        """Start a query.

        :param parameters: in the driver's style; None if ``sql`` has no placeholders, then ``%`` is only a character.
        :return: its result, to be read before the next query starts.
        :raises QueryFailed: the database refuses it, or it returns no columns.
        """
        with self._errors.translated("refused the query", parameters):
            cursor = _streaming_cursor(self._opened)
            self._cursors.append(cursor)
            cursor.execute(sql, parameters) if parameters else cursor.execute(sql)
            rows = cursor.fetchmany(_FIRST_ROWS)  # before this, some drivers do not know the columns
            columns = [str(column[0]) for column in cursor.description or ()]
        if not columns:
            raise QueryFailed(f"connection '{self._errors.conn_id}': the query returns no columns: it must be a SELECT")
        return Result(columns, self._batches(cursor, rows, len(columns), parameters))

    def _batches(self, cursor: Any, rows: Sequence[Any], width: int, parameters: Any) -> Iterator[Batch]:
        size = _FIRST_ROWS
        while rows:
            if len(rows[0]) != width:  # a dictionary of a driver that has no other rows
                raise QueryFailed("the driver's rows have not all columns: give each column another name (AS …)")
            yield [normalize_column(column, self._zone) for column in zip(*map(_as_tuple, rows), strict=True)]
            size = _next_size(size, rows)
            with self._errors.translated("stopped while its rows were read", parameters):
                rows = cursor.fetchmany(size)


def _streaming_cursor(opened: Any) -> Any:
    """Return a cursor whose rows are tuples, and stay at the server until fetched, where the driver has one."""
    match type(opened).__module__.partition(".")[0]:
        case "psycopg2":
            from psycopg2.extensions import cursor

            opened.autocommit = False  # a cursor of the server lives in a transaction
            return opened.cursor("outbound_transfer", cursor_factory=cursor)
        case "psycopg":
            from psycopg.rows import tuple_row

            opened.autocommit = False
            return opened.cursor("outbound_transfer", row_factory=tuple_row)
        case "MySQLdb":
            from MySQLdb.cursors import SSCursor

            decode_as_utf8(opened)  # the server writes "?" for what the session's character set has not
            return opened.cursor(SSCursor)
        case "mysql":
            decode_as_utf8(opened)
            return opened.cursor(buffered=False, dictionary=False)
        case "_duckdb" | "duckdb":
            cursor = opened.cursor()
            cursor.begin()  # each statement would be committed otherwise
            return cursor
    return opened.cursor()


def _as_tuple(row: Any) -> Sequence[Any]:
    return tuple(row.values()) if isinstance(row, Mapping) else row


def _next_size(size: int, rows: Sequence[Any]) -> int:
    """Return how many rows to fetch next, by the bytes of some of the last ones."""
    sample = rows[:: max(len(rows) // 64, 1)]
    row_bytes = sum(map(_row_bytes, sample)) // len(sample) + 1
    return min(size * 4, max(_MAX_BYTES // row_bytes, 1), _MAX_ROWS)


def _row_bytes(row: Any) -> int:
    values = _as_tuple(row)
    return sum(len(value) if isinstance(value, str | bytes | memoryview) else _VALUE_BYTES for value in values)


class DatabaseErrors:
    """Words the errors of a connection, without its secrets and without the parameters of a query."""

    def __init__(self, connection: Connection) -> None:
        self.conn_id = connection.conn_id
        self._connection = connection

    @contextmanager
    def translated(self, what: str, parameters: Any = None) -> Iterator[None]:
        """Raise the errors of the block as :class:`QueryFailed`.

        :param what: what the connection does, for the message.
        :param parameters: of the query, which no error may quote.
        """
        try:
            yield
        except OutboundTransferError:
            raise
        except Exception as error:  # each driver has its own
            text = redact_parameters(str(error), parameters, self._secrets())
            advice = _LOCKED_ADVICE if _is_locked(error) else ""
            # Without its cause, whose text may quote a secret.
            raise QueryFailed(f"connection '{self.conn_id}' {what}: {type(error).__name__} {text}{advice}") from None

    def _secrets(self) -> list[str]:
        fields = self._connection.extra_dejson.items()
        secrets = [value for name, value in fields if isinstance(value, str) and _SECRET_FIELD.search(name)]
        return [secret for secret in (self._connection.password, *secrets) if secret]


_LOCKED_ADVICE: Final = (
    ". Another process has the DuckDB file open, and only one may: run the query once that has closed it (give the "
    "task retries, and both tasks one pool of one slot), or query a copy of the file"
)


def _is_locked(error: Exception) -> bool:
    # DuckDB has no class for this error.
    return type(error).__module__.lstrip("_").startswith("duckdb") and "lock on file" in str(error)
