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
        text = "".join("\t".join(map(_copied, row)) + "\n" for row in new)
        _copy(cursor, f"COPY {quoted} ({POSTGRESQL.columns(table)}) FROM STDIN", text)
    return len(new)


def _copy(cursor: Any, statement: str, text: str) -> None:
    if hasattr(cursor, "copy_expert"):  # psycopg 2
        # The encoding of the connection is the client's; PostgreSQL is told which one this is.
        cursor.copy_expert(f"{statement} (ENCODING 'UTF8')", io.BytesIO(text.encode()))
        return
    with cursor.copy(f"{statement} (ENCODING 'UTF8')") as copy:
        copy.write(text.encode())


def _copied(value: Any) -> str:
    """A value in COPY's text format."""
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return f"\\\\x{value.hex()}"
    text = str(value)
    return _SPECIAL.sub(lambda match: _ESCAPED[match[0]], text) if _SPECIAL.search(text) else text


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
    exists="SELECT to_regclass(%(quoted)s) IS NOT NULL",
    insert=_insert,
    hurried=_hurried,
)
