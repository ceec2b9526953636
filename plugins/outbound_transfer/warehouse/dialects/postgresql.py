"""PostgreSQL, over psycopg 2 and 3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Table

from outbound_transfer.warehouse.dialects.base import SILENCE_FACTOR, DialectT, Row, WarehouseDialect

#: Classes of errors that rows may cause: data, constraints, limits of size and depth, triggers, limits of memory.
_ROW_ERROR_CLASSES: Final = ("22", "23", "54", "P0", "XX")

#: Bytes of JSON in one statement.
_BATCH_SIZE: Final = 4_000_000

#: What a string in JSON is decoded with, by type of column; the other types take a value of JSON as it is.
_DECODED: Final = {"JSONB": "{}::JSONB", "BYTEA": "decode({}, 'base64')"}

_encode: Final = msgspec.json.Encoder().encode


class PostgresDialect(WarehouseDialect):
    """PostgreSQL. A page is inserted as one JSON text."""

    name = "postgresql"
    placeholder = "%s"
    row_lock = " FOR UPDATE"
    # A stricter default of the database would turn a lost race for the cursor into an error.
    begin = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",)
    clock = "SELECT extract(epoch FROM clock_timestamp())"

    def with_timeout(self: DialectT, seconds: float) -> DialectT:
        changed = super().with_timeout(seconds)
        # Of the transaction alone: a pooler may give the session to others.
        changed.begin = (
            *self.begin,
            f"SET LOCAL statement_timeout = {seconds * 1_000:.0f}",
            # Otherwise a client that is gone without a word keeps its locks for hours.
            f"SET LOCAL idle_in_transaction_session_timeout = {SILENCE_FACTOR * seconds * 1_000:.0f}",
        )
        return changed

    def configure_connection(self, connection: Any) -> None:
        connection.autocommit = False  # psycopg 2 and 3 alike, whatever the connection's extra says

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        into = f"INSERT INTO {self.in_statement(quoted)} ({self.columns(table)})"
        columns = [(self.quote(column.name), column.type.compile(self.sql())) for column in table.columns]
        fields = ", ".join(f"{name} {'TEXT' if type_ in _DECODED else type_}" for name, type_ in columns)
        values = ", ".join(_DECODED.get(type_, "{}").format(f"r.{name}") for name, type_ in columns)
        from_json = f"SELECT {values} FROM json_to_recordset(%s::json) AS r({fields})"  # noqa: S608
        from_values = f"VALUES ({', '.join('%s' for _ in columns)})"
        new = 0
        for batch in _batches(table.columns.keys(), rows):
            source, parameters = (from_json, [batch]) if isinstance(batch, str) else (from_values, batch)
            tx.execute(f"{into} {source} ON CONFLICT ({self.key(table)}) DO NOTHING", parameters)
            new += self.rowcount(tx)
        return new

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or _sqlstate(error).startswith(_ROW_ERROR_CLASSES)


def _batches(names: Sequence[str], rows: Iterable[Row]) -> Iterator[str | list[Any]]:
    """Yield the rows in their order, as JSON arrays of objects; the values of a row that is larger than a batch alone.

    :param names: of the columns.
    """
    batch, size = list[bytes](), 0
    for row in rows:
        is_large = sum([len(value) for value in row if isinstance(value, str | bytes)]) > _BATCH_SIZE
        encoded = b"" if is_large else _encode(dict(zip(names, row, strict=True)))
        size += len(encoded)
        if batch and (is_large or size > _BATCH_SIZE):
            yield _array(batch)
            batch, size = [], len(encoded)
        if is_large:
            # Texts take the types of their columns. In JSON, the row would be in memory several times.
            yield [value if value is None or isinstance(value, bytes) else str(value) for value in row]
        else:
            batch.append(encoded)
    if batch:
        yield _array(batch)


def _array(rows: Sequence[bytes]) -> str:
    return f"[{b','.join(rows).decode()}]"


def _sqlstate(error: BaseException) -> str:
    # psycopg 3 and 2; their classes are not imported for this, as either may be missing.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
