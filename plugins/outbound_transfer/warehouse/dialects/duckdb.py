"""DuckDB: a file that one process at a time may write, so every connection is short and waits for the file's lock.

An instance of DuckDB takes longer to make than a page to land. So one is kept, and the file is attached to it only
while it is used.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from outbound_transfer.warehouse.dialects.base import Dialect, Hook, Row, is_of_values
from outbound_transfer.warehouse.errors import KnownRow, WarehouseBusy
from outbound_transfer.warehouse.tables import Kind, Table

#: What the file is called where it is attached; no schema should be called the same.
_NAME: Final = "outbound_transfer_file"

#: Rows that DuckDB keeps together, from 1.5 on: a page rewrites those that it is added to, and they stay in memory. Its
#: own 122,880 make the file a sixth smaller.
_ROW_GROUP: Final = 16_384

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


class _File:
    """A file that is attached while it has users."""

    def __init__(self, path: str) -> None:
        import duckdb

        # Nearly all that is asked here is small: more threads would only wait for each other.
        self._instance, self._path = duckdb.connect(config={"threads": 1}), path
        self._users, self._lock = 0, threading.Lock()

    def attach(self) -> None:
        with self._lock:
            if not self._users:
                quoted = self._path.replace("'", "''")
                self._instance.execute(f"ATTACH '{quoted}' AS {_NAME} (ROW_GROUP_SIZE {_ROW_GROUP})")
            self._users += 1

    def detach(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                try:
                    self._instance.execute(f"DETACH {_NAME}")
                except BaseException:
                    self._instance.close()  # which gives the file back
                    _file.cache_clear()
                    raise

    def cursor(self) -> Any:
        cursor = self._instance.cursor()
        cursor.execute(f"USE {_NAME}")
        return cursor


class _Connection:
    """A use of a file. A cursor of DuckDB is a connection of its own, and commits by itself."""

    def __init__(self, file: _File) -> None:
        file.attach()
        self.cursor, self.close = file.cursor, file.detach


@cache
def _file(path: str, pid: int) -> _File:  # noqa: ARG001  # an instance does not outlive a fork
    return _File(path)


class Connector:
    """Connections to the database of a hook: by its file where it is one, otherwise as the hook makes them.

    :param patience: seconds to wait for other processes; :data:`PATIENCE` where not given.
    """

    def __init__(self, hook: Hook, patience: float | None = None) -> None:
        self._hook, self._patience = hook, patience
        self._path: str | None = None

    def __call__(self) -> Any:
        """A connection, as soon as no other process has the file open.

        :raises WarehouseBusy: others had it for all the patience.
        """
        patience = PATIENCE if self._patience is None else self._patience
        until = time.monotonic() + patience
        while True:
            try:
                return self._connect()
            except Exception as error:
                if not _is_busy(error):
                    raise
                if time.monotonic() > until:
                    raise WarehouseBusy(f"the DuckDB file was in use for {patience:.0f} s: {error}") from error
            # Irregular, so as not to keep step with a reader's loop.
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311

    def _connect(self) -> Any:
        if self._path is None:
            connection = self._hook.get_conn()
            self._path = _path_of(connection)
            if not self._path:
                return connection
            connection.close()
        try:
            return _Connection(_file(self._path, os.getpid())) if self._path else self._hook.get_conn()
        except Exception as error:
            if _is_open_here(error):
                return self._hook.get_conn()  # shares the instance of whoever has it open
            raise


def _path_of(connection: Any) -> str:
    """The file of a database; empty where it is none: in memory, or elsewhere."""
    connection.execute(
        "SELECT path FROM duckdb_databases() WHERE database_name = current_database() AND type = 'duckdb'"
    )
    (path,) = connection.fetchone() or (None,)
    return path or ""


def _hurried(dialect: Dialect, seconds: float) -> Dialect:
    return replace(dialect, connector=partial(Connector, patience=seconds))


def _is_busy(error: Exception) -> bool:
    # Another process has the file; or this one is opening or closing it just now. The first has no class of its own.
    return "lock on file" in str(error) or _is_open_here(error)


def _is_open_here(error: Exception) -> bool:
    return "Unique file handle conflict" in str(error)


def _commit(connection: Any, cursor: Any) -> None:  # noqa: ARG001  # a cursor of DuckDB is a connection of its own
    cursor.commit()


def _changed(cursor: Any) -> int:
    return int(cursor.fetchone()[0])


def _is_race(error: BaseException) -> bool:
    import duckdb

    # Of two threads that add one key at once, the later is told of either.
    return isinstance(error, duckdb.TransactionException) or _is_duplicate(error)


def _is_duplicate(error: BaseException) -> bool:
    import duckdb

    return isinstance(error, duckdb.ConstraintException) and "duplicate key" in str(error).lower()


def _is_refusal(error: BaseException) -> bool:
    import duckdb

    return is_of_values(error) or isinstance(error, duckdb.InvalidInputException)


def _insert(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    return _add(cursor, quoted, table, rows, f" ON CONFLICT ({', '.join(map(DUCKDB.quote, table.key))}) DO NOTHING")


def _append(cursor: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
    try:
        return _add(cursor, quoted, table, rows)
    except Exception as error:
        if _is_duplicate(error):
            raise KnownRow(f"a row of {quoted} is there, or comes twice") from error
        raise


def _add(cursor: Any, quoted: str, table: Table, rows: Sequence[Row], conflict: str = "") -> int:
    # One statement a page: a column goes as one list, or as one value where it has no other. The key makes the rows.
    columns, parameters = [], []
    for column, values in zip(table.columns, zip(*rows, strict=True), strict=True):
        wire, name = _WIRE[column.kind], DUCKDB.quote(column.name)
        if len(rows) == 1 or (column.name != table.key[-1] and values.count(values[0]) == len(values)):
            columns.append(f"?::{wire} AS {name}")
            parameters.append(values[0])
        else:
            columns.append(f"unnest(?::{wire}[]) AS {name}")
            parameters.append(list(values))
    casts = ", ".join(f"new.{DUCKDB.quote(column.name)}::{_TYPES[column.kind]}" for column in table.columns)
    cursor.execute(
        f"INSERT INTO {quoted} ({DUCKDB.columns(table)}) SELECT {casts}"  # noqa: S608
        f" FROM (SELECT {', '.join(columns)}) AS new{conflict}",
        parameters,
    )
    return _changed(cursor)


DUCKDB: Final = Dialect(
    name="duckdb",
    mark="?",
    types=_TYPES,
    longest_name=1_000,
    begin=("BEGIN TRANSACTION",),
    exists="SELECT count(*) > 0 FROM information_schema.tables"
    " WHERE table_name = $plain AND table_schema = coalesce($schema, current_schema())"
    " AND table_catalog = current_database() AND $quoted IS NOT NULL",
    insert=_insert,
    append=_append,
    connector=Connector,
    commit=_commit,
    changed=_changed,
    is_race=_is_race,
    is_refusal=_is_refusal,
    keeps=False,
    hurried=_hurried,
)
