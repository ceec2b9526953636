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
from typing import TYPE_CHECKING, Final, TypeVar

from outbound_transfer.airflow_compat.connections import with_parsed_extra
from outbound_transfer.warehouse.config import state_conn_id, table_naming
from outbound_transfer.warehouse.connection import find_connection, open_warehouse
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now

if TYPE_CHECKING:
    from outbound_transfer.warehouse.database import Warehouse

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a transaction may take; it takes milliseconds.
TIMEOUT: Final = 5.0

#: Seconds that it may wait for another session's lock, or a statement of it may take.
LOCK_TIMEOUT: Final = 3.0

#: Seconds for which a database is left alone after it has failed.
RETRY_INTERVAL: Final = 60.0

#: Maximum number of threads that run a transaction, or wait until another one is over: each upload at once has one.
MAX_THREADS: Final = 100

#: What a database is for, as the log says it.
CALLS: Final = "share the key's calls"
EVENTS: Final = "read new events"

#: By process, as a thread does not outlive a fork, connection and purpose; None for a database that cannot be shared.
_databases: Final[dict[tuple[int, str, str], SharedDatabase | None]] = {}


class DatabaseUnavailable(Exception):
    """The shared database has failed, or did not respond in time."""


class SharedDatabase:
    """Runs transactions one after the other, each in a thread, so that a connection that hangs holds up nothing.

    A transaction that takes too long is given up with its connection, and the next one gets another.

    :param conn_id: the connection's id, for the log.
    :param open_warehouse: returns the database without connecting; called in the thread.
    :param prepare: called with the database before its first transaction.
    :param purpose: what the database is for, for the log.
    :param clock: returns monotonic seconds.
    :ivar has_failed: whether the last transaction has failed.
    """

    def __init__(
        self,
        conn_id: str,
        open_warehouse: Callable[[], Warehouse],
        *,
        prepare: Callable[[Warehouse], None] = lambda _: None,
        purpose: str = CALLS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conn_id, self._purpose, self._clock = conn_id, purpose, clock
        self._prepare = prepare
        self._threads: list[threading.Thread] = []
        self._retry_at = -inf
        self.has_failed = False
        self.reopen(open_warehouse)

    def reopen(self, open_warehouse: Callable[[], Warehouse]) -> None:
        """Open the database anew before the next transaction, by this function."""
        self._session = _Session(open_warehouse, self._prepare)

    def run(self, transaction: Callable[[Warehouse], T]) -> T:
        """Run a function in a thread and return its result.

        :raises DatabaseUnavailable: it has failed, or an earlier one did in the last :data:`RETRY_INTERVAL` seconds.
        """
        session, future = self._session, self.submit(transaction)
        try:
            return future.result(TIMEOUT)
        except Exception as error:
            if not future.done():
                self._give_up(session)
                self._record_failure(error)
            future.cancel()
            raise DatabaseUnavailable from error

    def submit(self, transaction: Callable[[Warehouse], T]) -> Future[T]:
        """Run a function in a thread; do not wait for its result."""
        future: Future[T] = Future()
        if self._clock() < self._retry_at:
            future.set_exception(DatabaseUnavailable())
            return future
        try:
            self._start_thread(partial(self._run, self._session, future, transaction))
        except (DatabaseUnavailable, RuntimeError) as error:  # the process cannot have more threads
            self._record_failure(error)
            future.set_exception(DatabaseUnavailable())
        return future

    def _start_thread(self, target: Callable[[], None]) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        if len(self._threads) >= MAX_THREADS:
            raise DatabaseUnavailable(f"{len(self._threads)} threads still wait for a response")
        # A daemon: a database that hangs must not keep the process from exiting.
        thread = threading.Thread(target=target, name="outbound-transfer-cluster", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self, session: _Session, future: Future[T], transaction: Callable[[Warehouse], T]) -> None:
        with session.lock:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = transaction(session.prepared_warehouse())
            except Exception as error:
                if not session.is_given_up:
                    self._record_failure(error)
                future.set_exception(error)
            else:
                if not session.is_given_up and self._clock() >= self._retry_at:
                    self.has_failed = False
                future.set_result(result)

    def _give_up(self, session: _Session) -> None:
        if self._session is session:
            self.reopen(session.open_warehouse)
        session.give_up()

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


class _Session:
    """The database from its opening until a transaction hangs. A transaction holds ``lock``."""

    def __init__(self, open_warehouse: Callable[[], Warehouse], prepare: Callable[[Warehouse], None]) -> None:
        self.open_warehouse, self._prepare = open_warehouse, prepare
        self._warehouse: Warehouse | None = None
        self._is_prepared = self.is_given_up = False
        self.lock = threading.Lock()

    def prepared_warehouse(self) -> Warehouse:
        self._warehouse = self._warehouse or self.open_warehouse()
        if self.is_given_up:  # while it was opened
            self._warehouse.abort()
        if not self._is_prepared:
            self._prepare(self._warehouse)
            self._is_prepared = True
        return self._warehouse

    def give_up(self) -> None:
        """Break the connection, so that its thread stops."""
        self.is_given_up = True
        if self._warehouse is not None:
            self._warehouse.abort()


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
        connection, naming = with_parsed_extra(find_connection(conn_id)), table_naming()
    except Exception as error:
        log.warning("This process cannot %s: %s: %s", purpose, type(error).__name__, error)
        return None
    open_database = partial(open_warehouse, conn_id, **naming, timeout=LOCK_TIMEOUT, connection=connection)
    if known:  # the connection may have been corrected since it failed
        known.reopen(open_database)
    # A process that uses a file of DuckDB locks out all others.
    opened = (
        None
        if connection.conn_type == "duckdb"
        else SharedDatabase(conn_id, open_database, prepare=_create_tables, purpose=purpose)
    )
    return _databases.setdefault(key, opened)


def _create_tables(warehouse: Warehouse) -> None:
    ensure_schema(warehouse, CLUSTER, utc_now())
