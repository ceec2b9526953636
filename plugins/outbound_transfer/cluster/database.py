"""The database that the processes of a cluster share. One that is down or slow is not waited for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outbound_transfer.ledger.config import find_connection
from outbound_transfer.warehouse.config import state_conn_id, table_naming
from outbound_transfer.warehouse.connection import open_warehouse
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from outbound_transfer.warehouse.database import Warehouse

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a transaction may take; it takes milliseconds.
TIMEOUT: Final = 5.0

#: Seconds that it may wait for another session's lock, or a statement of it may take.
LOCK_TIMEOUT: Final = 3.0

#: Seconds for which a database is left alone after it has failed.
RETRY_INTERVAL: Final = 60.0

#: What a database is for, as the log says it.
CALLS: Final = "share the key's calls"
EVENTS: Final = "read new events"

#: By process, as a thread does not outlive a fork, connection and purpose; None for a database that cannot be shared.
_databases: Final[dict[tuple[int, str, str], SharedDatabase | None]] = {}


class DatabaseUnavailable(Exception):
    """The shared database has failed, or did not respond in time."""


class SharedDatabase:
    """Runs transactions in a thread of its own, so that a connection that hangs holds up nothing.

    :param conn_id: the connection's id, for the log.
    :param purpose: what the database is for, for the log.
    :param open_warehouse: returns the database; called in the thread.
    :param clock: returns monotonic seconds.
    :ivar has_failed: whether the last transaction has failed.
    """

    def __init__(
        self,
        conn_id: str,
        open_warehouse: Callable[[], Warehouse],
        *,
        purpose: str = CALLS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conn_id, self._purpose, self._clock = conn_id, purpose, clock
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[Warehouse], Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._warehouse: Warehouse | None = None
        self._retry_at = -inf
        self.has_failed = False
        self.reopen(open_warehouse)

    def reopen(self, open_warehouse: Callable[[], Warehouse]) -> None:
        """Open the database anew before the next transaction, by this function."""
        self._open, self._warehouse = open_warehouse, None

    def run(self, transaction: Callable[[Warehouse], T]) -> T:
        """Run a function in the thread and return its result.

        :raises DatabaseUnavailable: it has failed, or an earlier one did in the last :data:`RETRY_INTERVAL` seconds.
        """
        future = self.submit(transaction)
        try:
            return future.result(TIMEOUT)
        except Exception as error:
            if not future.done():
                self._record_failure(error)
            future.cancel()
            raise DatabaseUnavailable from error

    def submit(self, transaction: Callable[[Warehouse], T]) -> Future[T]:
        """Run a function in the thread; do not wait for its result."""
        future: Future[T] = Future()
        if self._clock() < self._retry_at:
            future.set_exception(DatabaseUnavailable())
            return future
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # A daemon: a database that hangs must not keep the process from exiting.
                self._thread = threading.Thread(target=self._work, name="outbound-transfer-cluster", daemon=True)
                self._thread.start()
        self._queue.put((future, transaction))
        return future

    def _work(self) -> None:
        while True:
            future, transaction = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self._warehouse = self._warehouse or self._open()
                result = transaction(self._warehouse)
            except Exception as error:
                self._record_failure(error)
                future.set_exception(error)
            else:
                if self._clock() >= self._retry_at:  # or it was too late
                    self.has_failed = False
                future.set_result(result)

    def _record_failure(self, error: Exception) -> None:
        self._retry_at = self._clock() + RETRY_INTERVAL
        if not self.has_failed:
            self.has_failed = True
            # Its first line: a database may quote rows in others.
            message = "".join(str(error).strip().splitlines()[:1])[:300]
            log.warning(
                "Could not %s through connection '%s'; this process goes on alone and asks again every %.0f s: %s: %s",
                self._purpose,
                self._conn_id,
                RETRY_INTERVAL,
                type(error).__name__,
                message or f"no response within {TIMEOUT:.0f} s",
            )


def find_database(purpose: str) -> SharedDatabase | None:
    """Return the shared database of this process; None if none is configured or its connection cannot be used.

    :param purpose: :data:`CALLS` or :data:`EVENTS`. Each has a thread and a connection of its own.

    Asks Airflow for the connection, so call it where this is allowed. Never raises.
    """
    try:
        conn_id = state_conn_id()
        key = (os.getpid(), conn_id, purpose)
        known = _databases.get(key)
        if not conn_id or (key in _databases and not (known and known.has_failed)):
            return known
        connection = find_connection(conn_id)
    except Exception as error:
        log.warning("This process cannot %s: %s: %s", purpose, type(error).__name__, error)
        return None
    open_database = partial(_open, conn_id, connection)
    if known:  # the connection may have been corrected since it failed
        known.reopen(open_database)
    # A process that uses a file of DuckDB locks out all others.
    opened = None if connection.conn_type == "duckdb" else SharedDatabase(conn_id, open_database, purpose=purpose)
    return _databases.setdefault(key, opened)


def _open(conn_id: str, connection: Connection) -> Warehouse:
    warehouse = open_warehouse(conn_id, **table_naming(), timeout=LOCK_TIMEOUT, connection=connection)
    ensure_schema(warehouse, CLUSTER, utc_now())
    return warehouse
