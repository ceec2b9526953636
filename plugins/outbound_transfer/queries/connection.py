"""Reads the result of a query over an Airflow connection, in batches and without holding it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.client.wording import redact
from outbound_transfer.queries.drivers import check_exact, open_cursor
from outbound_transfer.queries.errors import QueryFailed, describe_error
from outbound_transfer.queries.values import Batch, Result, normalize_column
from outbound_transfer.store.connection import find_connection, sql_hook

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
def query_result(
    sql_conn_id: str,
    sql: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    hook_params: Mapping[str, Any] | None = None,
    zone: tzinfo = UTC,
    is_personal: bool = False,
) -> Iterator[Result]:
    """Run a query on a connection of its own, and close that at the end without a commit.

    :param parameters: in the driver's style; None if ``sql`` has no placeholders, then ``%`` is only a character.
    :param hook_params: arguments of the hook.
    :param zone: what timestamps with a zone are converted to.
    :param is_personal: whether errors are told by class and code alone, as a driver's text may quote a row.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    :raises QueryFailed: the database cannot be reached or refuses the query, or the query returns no columns.
    """
    airflow_connection = find_connection(sql_conn_id)
    hook = sql_hook(airflow_connection, hook_params)
    with _worded_errors(airflow_connection, "cannot be opened"):
        opened = hook.get_conn()
    worded = partial(_worded_errors, airflow_connection, is_personal=is_personal)
    cursor: Any = None
    try:
        with worded("refused the query"):
            cursor = open_cursor(opened)
            sql = sql.removeprefix("\ufeff")  # some editors begin a file with it
            cursor.execute(sql, parameters) if parameters else cursor.execute(sql)
            rows = cursor.fetchmany(_FIRST_ROWS)  # before this, some drivers do not know the columns
            columns = [str(column[0]) for column in cursor.description or ()]
            if not columns:
                raise QueryFailed("it returned no columns: write a statement that ends with a SELECT")
        yield Result(columns, _batches(opened, cursor, rows, zone, worded))
    finally:
        # The connection first, which rolls its transaction back: at the close of a cursor, some drivers read the rows
        # that nobody wants any more.
        for one in (opened, cursor):
            with suppress(Exception):
                one.close()


def _batches(
    opened: Any, cursor: Any, rows: Sequence[Any], zone: tzinfo, worded: Callable[[str], AbstractContextManager[None]]
) -> Iterator[Batch]:
    """Yield the rows that were fetched, and the further ones."""
    size = _FIRST_ROWS
    while rows:
        if isinstance(rows[0], Mapping):
            raise QueryFailed("the driver returns dictionaries: choose a cursor of tuples in the connection's extra")
        columns = list(zip(*rows, strict=True))
        check_exact(opened, cursor.description, columns)
        yield [normalize_column(column, zone) for column in columns]
        size = _next_size(size, rows)
        with worded("stopped while its rows were read"):
            rows = cursor.fetchmany(size)


def _next_size(size: int, rows: Sequence[Any]) -> int:
    """Return how many rows to fetch next, by the bytes of some of the last ones."""
    sample = rows[:: max(len(rows) // 64, 1)]
    row_bytes = sum(map(_row_bytes, sample)) // len(sample) + 1
    return min(size * 4, max(_MAX_BYTES // row_bytes, 1), _MAX_ROWS)


def _row_bytes(row: Any) -> int:
    return sum(len(value) if isinstance(value, str | bytes | memoryview) else _VALUE_BYTES for value in row)


@contextmanager
def _worded_errors(connection: Connection, what: str, *, is_personal: bool = False) -> Iterator[None]:
    """Raise the errors of the block as :class:`QueryFailed`, without secrets of the connection.

    :param what: what the connection does, for the message.
    """
    try:
        yield
    except OutboundTransferError as error:
        raise QueryFailed(f"connection '{connection.conn_id}' {what}: {error}") from None
    except Exception as error:  # each driver has its own
        kind, text = describe_error(error)
        shown = kind if is_personal else f"{kind} {redact(text, _secrets(connection))}"
        # Without its cause, whose text may quote a secret.
        raise QueryFailed(f"connection '{connection.conn_id}' {what}: {shown}") from None


def _secrets(connection: Connection) -> list[str]:
    fields = connection.extra_dejson.items()
    secrets = [value for name, value in fields if isinstance(value, str) and _SECRET_FIELD.search(name)]
    return [secret for secret in (connection.password, *secrets) if secret]
