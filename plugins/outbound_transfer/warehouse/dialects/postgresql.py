"""PostgreSQL, over psycopg 2 and 3."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from outbound_transfer.warehouse.dialects.base import Dialect, Row, is_of_values, missing
from outbound_transfer.warehouse.errors import KnownRow
from outbound_transfer.warehouse.tables import Kind, Table

_UNIQUE_VIOLATION: Final = "23505"

#: Classes of errors that rows may cause: data, constraints, limits of size and depth, triggers, limits of memory.
_OF_ROWS: Final = ("22", "23", "54", "P0", "XX")


def _prepare(connection: Any) -> None:
    connection.autocommit = False  # psycopg 2 and 3 alike, whatever the connection's extra says


def _hurried(dialect: Dialect, seconds: float) -> Dialect:
    # Of the transaction alone: a pooler may hand the session to others.
    return replace(dialect, begin=(*dialect.begin, f"SET LOCAL statement_timeout = {seconds * 1_000:.0f}"))


def _insert(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    # COPY knows no ON CONFLICT. Those that race for a page queue at the cursor's row, so what is new here stays new.
    new = missing(cursor, POSTGRESQL, quoted, table, rows)
    if new:
        _copy(cursor, quoted, table, new)
    return len(new)


def _append(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    try:
        _copy(cursor, quoted, table, rows)
    except Exception as error:
        if _sqlstate(error) == _UNIQUE_VIOLATION:
            raise KnownRow(f"a row of {quoted} is there, or comes twice") from error
        raise
    return len(rows)


def _sqlstate(error: BaseException) -> str:
    # psycopg 3 and 2; their classes are not imported for this, as either may be missing.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _is_refusal(error: BaseException) -> bool:
    return is_of_values(error) or _sqlstate(error).startswith(_OF_ROWS)


def _copy(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> None:
    statement, text = f"COPY {quoted} ({POSTGRESQL.columns(table)}) FROM STDIN", _copy_text(rows)
    if hasattr(cursor, "copy_expert"):  # psycopg 2
        # The encoding of the connection is the client's; PostgreSQL is told which one this is.
        cursor.copy_expert(f"{statement} (ENCODING 'UTF8')", io.BytesIO(text.encode()))
        return
    with cursor.copy(f"{statement} (ENCODING 'UTF8')") as copy:
        copy.write(text.encode())


def _copy_text(rows: Sequence[Row]) -> str:
    """The rows in COPY's text format."""
    columns = [_column(values) for values in zip(*rows, strict=True)]
    return "".join(["\t".join(row) + "\n" for row in zip(*columns, strict=True)])


def _column(values: Sequence[Any]) -> Sequence[str]:
    if values.count(values[0]) == len(values):
        return [_field(values[0])] * len(values)
    # Most columns are text without anything to escape, which is seen at once.
    if set(map(type, values)) == {str} and _is_plain("".join(values)):
        return values
    return list(map(_field, values))


def _is_plain(text: str) -> bool:
    return not ("\\" in text or "\n" in text or "\r" in text or "\t" in text)


def _field(value: Any) -> str:
    if value is None:
        return "\\N"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _index(name: str, table: str, schema: str, columns: list[str], covers: list[str]) -> str:  # noqa: ARG001
    # It reads a table about as fast as an index, and an index has no room for a long text: nothing is covered.
    return f"CREATE INDEX IF NOT EXISTS {name} ON {schema}{table} ({', '.join(columns)})"


POSTGRESQL: Final = Dialect(
    name="postgresql",
    mark="%s",
    types={
        Kind.TEXT: "text",
        Kind.WHOLE: "bigint",
        Kind.FLAG: "boolean",
        Kind.TIME: "timestamptz",
        Kind.JSON: "jsonb",
        Kind.BYTES: "bytea",
    },
    longest_name=63,
    prepare=_prepare,
    # A stricter default of the database would turn a lost race for the cursor into an error.
    begin=("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",),
    # Two that create one table at once collide in the catalog.
    lock=("SELECT pg_advisory_xact_lock(8029759185026510692)",),
    takes_lists=True,
    exists="SELECT to_regclass(%(quoted)s) IS NOT NULL",
    insert=_insert,
    append=_append,
    index=_index,
    is_refusal=_is_refusal,
    hurried=_hurried,
)
