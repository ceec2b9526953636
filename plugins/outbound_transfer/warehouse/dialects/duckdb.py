"""DuckDB: a file that one process at a time may write, so every connection is short and waits for the file's lock."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from outbound_transfer.warehouse.dialects.base import Dialect, Hook, Row
from outbound_transfer.warehouse.errors import WarehouseBusy
from outbound_transfer.warehouse.tables import Kind, Table

#: Seconds to wait for the processes that have the file open; a page of ours takes some hundredths of one.
PATIENCE: Final = 120.0

_TYPES: Final = {
    Kind.TEXT: "VARCHAR",
    Kind.WHOLE: "BIGINT",
    Kind.FLAG: "BOOLEAN",
    Kind.TIME: "TIMESTAMPTZ",
    Kind.JSON: "JSON",
    Kind.BYTES: "BLOB",
}

#: What columns of rows travel as; DuckDB makes instants and JSON of the text.
_WIRE: Final = _TYPES | {Kind.TIME: "VARCHAR", Kind.JSON: "VARCHAR", Kind.FLAG: "BIGINT"}


def connect(hook: Hook, patience: float | None = None) -> Any:
    """A connection, as soon as no other process has the file open.

    :raises WarehouseBusy: others had it for all the patience.
    """
    patience = PATIENCE if patience is None else patience
    until = time.monotonic() + patience
    while True:
        try:
            return hook.get_conn()
        except Exception as error:
            if not _is_busy(error):
                raise
            if time.monotonic() > until:
                raise WarehouseBusy(f"the DuckDB file was in use for {patience:.0f} s: {error}") from error
        # Irregular, so as not to keep step with a reader's loop.
        time.sleep(random.uniform(0.001, 0.02))  # noqa: S311


def _hurried(dialect: Dialect, seconds: float) -> Dialect:
    return replace(dialect, connect=partial(connect, patience=seconds))


def _is_busy(error: Exception) -> bool:
    # Another process has the file; or this one is opening or closing it just now. The first has no class of its own.
    return "lock on file" in str(error) or "Unique file handle conflict" in str(error)


def _commit(connection: Any, cursor: Any) -> None:  # noqa: ARG001  # a cursor of DuckDB is a connection of its own
    cursor.commit()


def _changed(cursor: Any) -> int:
    return int(cursor.fetchone()[0])


def _is_race(error: BaseException) -> bool:
    import duckdb

    # Of two threads that add one key at once, the later is told of either.
    return isinstance(error, duckdb.TransactionException | duckdb.ConstraintException)


def _insert(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    # One statement a page: the rows go as one list a column.
    lists = ", ".join(f"unnest(?::{_WIRE[column.kind]}[]) AS {DUCKDB.quote(column.name)}" for column in table.columns)
    casts = ", ".join(f"new.{DUCKDB.quote(column.name)}::{_TYPES[column.kind]}" for column in table.columns)
    cursor.execute(
        f"INSERT INTO {quoted} ({DUCKDB.columns(table)}) SELECT {casts} FROM (SELECT {lists}) AS new"  # noqa: S608
        " ON CONFLICT DO NOTHING",
        [list(values) for values in zip(*rows, strict=True)],
    )
    return _changed(cursor)


DUCKDB: Final = Dialect(
    name="duckdb",
    mark="?",
    types=_TYPES,
    longest_name=1_000,
    begin=("BEGIN TRANSACTION",),
    exists="SELECT count(*) > 0 FROM information_schema.tables"
    " WHERE table_name = $plain AND table_schema = coalesce($schema, current_schema()) AND $quoted IS NOT NULL",
    insert=_insert,
    connect=connect,
    commit=_commit,
    changed=_changed,
    is_race=_is_race,
    hurried=_hurried,
)
