"""DuckDB: only one process at a time may open a file, so connections are short and wait for the file's lock.

Creating an instance of DuckDB takes longer than loading a page. So one instance stays open, and the file is attached to
it only while it is used.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Table

from outbound_transfer.store.duckdb import StaleFile, open_unchanged
from outbound_transfer.store.engine import HookLike
from outbound_transfer.store.errors import UnsupportedDatabase
from outbound_transfer.warehouse.dialects.base import Connect, Row, WarehouseDialect
from outbound_transfer.warehouse.errors import WarehouseBusy

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook

#: Name of the attached file; no schema should have the same name.
_NAME: Final = "outbound_transfer_file"
_DETACH: Final = f"DETACH {_NAME}"

#: Rows of a row group, from DuckDB 1.5 on: a page rewrites the group that it is added to, which stays in memory. The
#: default of 122,880 makes the file a sixth smaller.
_ROW_GROUP: Final = 16_384

#: What the URI of a hook begins with; the rest is what DuckDB opens.
_URI: Final = "duckdb:///"

#: What DuckDB opens that is not a file: ``:memory:``, and names with a prefix, as ``md:``.
_OTHER_DATABASE: Final = re.compile(r"$|\w*:")

#: Seconds to wait for other processes that have the file open; a page takes some hundredths of a second.
LOCK_TIMEOUT: Final = 120.0

#: Maximum seconds between two attempts to open a file that another process has open: of the first, and of later ones.
_FIRST_RETRY_DELAY: Final = 0.02
_MAX_RETRY_DELAY: Final = 0.5

#: Types of parameters by type of column; the others are the same. DuckDB casts text to timestamps and JSON.
_PARAMETER_TYPES: Final = {"TIMESTAMP WITH TIME ZONE": "VARCHAR", "JSON": "VARCHAR", "BOOLEAN": "BIGINT"}


class _SharedInstance:
    """An instance of DuckDB; a file is attached to it while there are users."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        import duckdb

        # Nearly all queries are small: more threads would only wait for one another.
        self._instance, self._path = duckdb.connect(config={**config, "threads": 1}), path
        self._users, self._lock = 0, threading.Lock()

    def attach(self) -> None:
        """Attach the file, unless it is attached.

        :raises StaleFile: DuckDB may have read the file before another process has changed it.
        """
        with self._lock:
            if not self._users:
                quoted = str(self._path).replace("'", "''")
                attach = f"ATTACH '{quoted}' AS {_NAME} (ROW_GROUP_SIZE {_ROW_GROUP})"
                open_unchanged(
                    self._path, lambda: self._instance.execute(attach), lambda _: self._instance.execute(_DETACH)
                )
            self._users += 1

    def detach(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                try:
                    self._instance.execute(_DETACH)
                except BaseException:
                    self._instance.close()  # releases the file
                    _instances.clear()
                    raise

    def cursor(self) -> Any:
        tx = self._instance.cursor()
        tx.execute(f"USE {_NAME}")
        return tx


class _AttachedConnection:
    """One use of a file. A cursor of DuckDB is a connection of its own, with transactions of its own."""

    def __init__(self, file: _SharedInstance) -> None:
        file.attach()
        self.cursor, self.close = file.cursor, file.detach


#: By path and process: an instance does not outlive a fork.
_instances: Final[dict[tuple[Path, int], _SharedInstance]] = {}


def _instance(path: Path, hook: HookLike) -> _SharedInstance:
    """Return the one instance of this process for a file: a second one could not open it."""
    key = (path, os.getpid())
    if (instance := _instances.get(key)) is None:
        # The hook of the provider that came before has no such method.
        config: dict[str, Any] = getattr(hook, "get_connect_config", dict)()
        instance = _instances.setdefault(key, _SharedInstance(path, config))
    return instance


class DuckDbConnections:
    """Opens connections to the database of a hook: by its file if it has one, otherwise with the hook.

    :param timeout: seconds to wait for other processes; default: :data:`LOCK_TIMEOUT`.
    """

    def __init__(self, hook: HookLike, timeout: float | None = None) -> None:
        self._hook, self._timeout = hook, timeout

    def __call__(self) -> Any:
        """Open a connection as soon as no other process has the file open.

        :raises WarehouseBusy: other processes had the file open for the whole timeout.
        """
        timeout = LOCK_TIMEOUT if self._timeout is None else self._timeout
        deadline = time.monotonic() + timeout
        pause = _FIRST_RETRY_DELAY
        while True:
            try:
                return self._connect()
            except Exception as error:
                if not _is_busy(error):
                    raise
                if time.monotonic() > deadline:
                    raise WarehouseBusy(
                        f"the DuckDB file was in use for {timeout:.0f} s, by a program that should close it: {error}"
                    ) from error
            # Random, so that two loops do not stay in step; and rarer, as the attempts of many processes take the
            # processor from the one that has the file.
            time.sleep(random.uniform(0.001, pause))  # noqa: S311
            pause = min(2 * pause, _MAX_RETRY_DELAY)

    def _connect(self) -> Any:
        if self.path is None:
            return self._hook.get_conn()
        try:
            return _AttachedConnection(_instance(self.path, self._hook))
        except Exception as error:
            if _is_open_here(error):
                return self._hook.get_conn()  # shares the instance that has the file open
            raise

    @cached_property
    def path(self) -> Path | None:
        """The path of the database's file; None if it is shared in memory, or remote.

        The hook's connection is not asked for it: to open a file that this process has open already ends the lock that
        keeps other processes out (fcntl(2)).
        """
        database = cast("DbApiHook", self._hook).get_uri().removeprefix(_URI)
        if database in ("", ":memory:"):
            raise UnsupportedDatabase(
                "the connection leads to a database of DuckDB in memory, which is lost when the process ends. Set its "
                "host to the path of a file"
            )
        return None if _OTHER_DATABASE.match(database) else Path(database).expanduser().resolve()


def _is_busy(error: Exception) -> bool:
    # Another process has the file open, an error without a class of its own; or this process opens or closes it now.
    return isinstance(error, StaleFile) or "lock on file" in str(error) or _is_open_here(error)


def _is_open_here(error: Exception) -> bool:
    return "Unique file handle conflict" in str(error)


class DuckDbDialect(WarehouseDialect):
    """DuckDB. A page is inserted with one statement, each column as one list."""

    name = "duckdb"
    begin = ("BEGIN TRANSACTION",)
    clock = "SELECT epoch(get_current_timestamp())"

    def connection_factory(self, hook: HookLike) -> Connect:
        return DuckDbConnections(hook, self.timeout)

    def commit(self, connection: Any, tx: Any) -> None:  # noqa: ARG002  # a cursor of DuckDB is a connection of its own
        tx.commit()

    def rowcount(self, tx: Any) -> int:
        return int(tx.fetchone()[0])

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        # A column is one list, or one value if all of its rows have the same. The key is always a list.
        columns, parameters, casts = [], [], []
        last_key = list(table.primary_key)[-1]
        for column, values in zip(table.columns, zip(*rows, strict=True), strict=True):
            name, type_ = self.quote(column.name), column.type.compile(self.sql())
            parameter_type = _PARAMETER_TYPES.get(type_, type_)
            casts.append(f"new.{name}::{type_}")
            if len(rows) == 1 or (column is not last_key and values.count(values[0]) == len(values)):
                columns.append(f"?::{parameter_type} AS {name}")
                parameters.append(values[0])
            else:
                columns.append(f"unnest(?::{parameter_type}[]) AS {name}")
                parameters.append(list(values))
        tx.execute(
            f"INSERT INTO {quoted} ({self.columns(table)}) SELECT {', '.join(casts)}"  # noqa: S608
            f" FROM (SELECT {', '.join(columns)}) AS new ON CONFLICT ({self.key(table)}) DO NOTHING",
            parameters,
        )
        return self.rowcount(tx)

    def is_conflict(self, error: BaseException) -> bool:
        import duckdb

        # Of two threads that add one key at the same time, the later gets either error.
        return isinstance(error, duckdb.TransactionException) or _is_duplicate(error)

    def is_refusal(self, error: BaseException) -> bool:
        import duckdb

        return super().is_refusal(error) or isinstance(error, duckdb.InvalidInputException)


def _is_duplicate(error: BaseException) -> bool:
    import duckdb

    return isinstance(error, duckdb.ConstraintException) and "duplicate key" in str(error).lower()
