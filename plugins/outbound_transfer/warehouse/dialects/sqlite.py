"""SQLite."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from outbound_transfer.warehouse.dialects.base import Dialect, Row
from outbound_transfer.warehouse.tables import Kind, Table

#: Seconds to wait for another writer; a page takes some thousandths of one.
_PATIENCE: Final = 30.0


def _prepare(connection: Any, patience: float = _PATIENCE) -> None:
    connection.isolation_level = None  # transactions begin and end where it is said, not where the driver thinks
    connection.execute(f"PRAGMA busy_timeout = {patience * 1_000:.0f}")
    # WAL: readers never block the ingest, nor it them. It is a property of the file, so it is set once.
    until = time.monotonic() + patience
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except connection.OperationalError:  # another is switching it, which does not wait for the busy timeout
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _hurried(dialect: Dialect, seconds: float) -> Dialect:
    return replace(dialect, prepare=partial(_prepare, patience=seconds))


def _insert(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    marks = ", ".join("?" for _ in table.columns)
    cursor.executemany(
        f"INSERT INTO {quoted} ({SQLITE.columns(table)}) VALUES ({marks})"  # noqa: S608
        f" ON CONFLICT ({', '.join(table.key)}) DO NOTHING",
        rows,
    )
    return int(cursor.rowcount)


def _index(name: str, table: str, schema: str, columns: list[str], covers: list[str]) -> str:
    return f"CREATE INDEX IF NOT EXISTS {schema}{name} ON {table} ({', '.join([*columns, *covers])})"


SQLITE: Final = Dialect(
    name="sqlite",
    mark="?",
    types={
        Kind.TEXT: "TEXT",
        Kind.WHOLE: "INTEGER",
        Kind.FLAG: "INTEGER",
        Kind.TIME: "TEXT",
        Kind.JSON: "TEXT",
        Kind.BYTES: "BLOB",
    },
    longest_name=1_000,
    prepare=_prepare,
    # A transaction that reads first and writes later can deadlock with another of its kind.
    begin=("BEGIN IMMEDIATE",),
    exists="SELECT count(*) > 0 FROM pragma_table_info(:plain, :schema)",
    insert=_insert,
    index=_index,
    hurried=_hurried,
)
