"""SQLite."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.warehouse.dialects.base import Row, WarehouseDialect

#: Seconds to wait for another writer; a page takes a few milliseconds.
_LOCK_TIMEOUT: Final = 30.0

#: Errors that concern the file, and do not name it.
_FILE_ERRORS: Final = ("database or disk is full", "disk I/O error", "attempt to write a readonly database")


class SqliteDialect(WarehouseDialect):
    """SQLite, in WAL mode."""

    name = "sqlite"
    # A transaction that reads first and writes later can deadlock with another of its kind.
    begin = ("BEGIN IMMEDIATE",)
    clock = "SELECT (julianday('now') - 2440587.5) * 86400.0"

    def configure_connection(self, connection: Any) -> None:
        timeout = _LOCK_TIMEOUT if self.timeout is None else self.timeout
        connection.isolation_level = None  # the driver begins and ends no transaction by itself
        connection.execute(f"PRAGMA busy_timeout = {timeout * 1_000:.0f}")
        # WAL: readers and the ingestion do not block one another. It is a property of the file, so it is set once.
        deadline = time.monotonic() + timeout
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                return
            except connection.OperationalError:  # another session switches it; the busy timeout does not apply
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def find_file(self, connection: Any, error: Exception) -> str:
        databases = connection.execute("PRAGMA database_list") if str(error) in _FILE_ERRORS else ()
        return next((str(path) for _, name, path in databases if name == "main"), "")

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        placeholders = ", ".join("?" for _ in table.columns)
        tx.executemany(
            f"INSERT INTO {quoted} ({self.columns(table)}) VALUES ({placeholders})"  # noqa: S608
            f" ON CONFLICT ({self.key(table)}) DO NOTHING",
            rows,
        )
        return int(tx.rowcount)
