"""PostgreSQL, over psycopg 2 and 3."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from outbound_transfer.warehouse.dialects.base import Dialect, Row, missing
from outbound_transfer.warehouse.tables import Kind, Table

_SPECIAL: Final = re.compile(r"[\\\n\r\t]")
_ESCAPED: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _prepare(connection: Any) -> None:
    connection.autocommit = False  # psycopg 2 and 3 alike, whatever the connection's extra says


def _hurried(dialect: Dialect, seconds: float) -> Dialect:
    # Of the transaction alone: a pooler may hand the session to others.
    return replace(dialect, begin=(*dialect.begin, f"SET LOCAL statement_timeout = {seconds * 1_000:.0f}"))


def _insert(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    # COPY knows no ON CONFLICT. Those that race for a page queue at the cursor's row, so what is new here stays new.
    new = missing(cursor, POSTGRESQL, quoted, table, rows)
    if new:
        text = "".join(map(_line, new))
        _copy(cursor, f"COPY {quoted} ({POSTGRESQL.columns(table)}) FROM STDIN", text)
    return len(new)


def _copy(cursor: Any, statement: str, text: str) -> None:
    if hasattr(cursor, "copy_expert"):  # psycopg 2
        # The encoding of the connection is the client's; PostgreSQL is told which one this is.
        cursor.copy_expert(f"{statement} (ENCODING 'UTF8')", io.BytesIO(text.encode()))
        return
    with cursor.copy(f"{statement} (ENCODING 'UTF8')") as copy:
        copy.write(text.encode())


def _line(row: Row) -> str:
    """A row in COPY's text format."""
    texts = [value if isinstance(value, str) else _text(value) for value in row]
    if _SPECIAL.search("".join(texts)):
        texts = [_SPECIAL.sub(lambda match: _ESCAPED[match[0]], text) for text in texts]
    return "\t".join("\\N" if value is None else text for value, text in zip(row, texts, strict=True)) + "\n"


def _text(value: Any) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


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
    index=_index,
    hurried=_hurried,
)
