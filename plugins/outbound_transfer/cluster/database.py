"""The database that the processes of a cluster share. One that is down or slow is not waited for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

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

#: Maximum number of threads that were given up and still wait for the database.
MAX_GIVEN_UP: Final = 5

#: What a database is for, as the log says it.
CALLS: Final = "share the key's calls"
EVENTS: Final = "read new events"

#: By process, as a thread does not outlive a fork, connection and purpose; None for a database that cannot be shared.
_databases: Final[dict[tuple[int, str, str], SharedDatabase | None]] = {}


class DatabaseUnavailable(Exception):
    """The shared database has failed, or did not respond in time."""


class SharedDatabase:
    """Runs transactions in a thread of its own, so that a connection that hangs holds up nothing.

    A thread whose transaction takes too long is given up with its connection, and the next transaction gets another.

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
        self._open, self._prepare = open_warehouse, prepare
        self._worker: _Worker | None = None
        self._given_up: list[_Worker] = []
        self._lock = threading.Lock()
        self._retry_at = -inf
        self.has_failed = False

    def reopen(self, open_warehouse: Callable[[], Warehouse]) -> None:
        """Open the database anew before the next transaction, by this function."""
        with self._lock:
            if self._worker is not None:
                self._worker.finish()
            self._open, self._worker = open_warehouse, None

    def run(self, transaction: Callable[[Warehouse], T]) -> T:
        """Run a function in the thread and return its result.

        :raises DatabaseUnavailable: it has failed, or an earlier one did in the last :data:`RETRY_INTERVAL` seconds.
        """
        worker, future = self._submit(transaction)
        try:
            return future.result(TIMEOUT)
        except Exception as error:
            if worker is not None and not future.done():
                self._give_up(worker)
                self._record_failure(error)
            future.cancel()
            raise DatabaseUnavailable from error

    def submit(self, transaction: Callable[[Warehouse], T]) -> Future[T]:
        """Run a function in the thread; do not wait for its result."""
        return self._submit(transaction)[1]

    def _submit(self, transaction: Callable[[Warehouse], T]) -> tuple[_Worker | None, Future[T]]:
        future: Future[T] = Future()
        if self._clock() >= self._retry_at:
            try:
                with self._lock:
                    worker = self._worker = self._find_worker()
                    worker.submit(future, transaction)
            except (DatabaseUnavailable, RuntimeError) as error:  # the process cannot have more threads
                self._record_failure(error)
            else:
                return worker, future
        future.set_exception(DatabaseUnavailable())
        return None, future

    def _find_worker(self) -> _Worker:
        if self._worker is not None and self._worker.thread.is_alive():
            return self._worker
        self._given_up = [each for each in self._given_up if each.thread.is_alive()]
        if len(self._given_up) >= MAX_GIVEN_UP:
            raise DatabaseUnavailable(f"{len(self._given_up)} threads still wait for a response")
        return _Worker(self._open, self._prepare, self._record_result)

    def _give_up(self, worker: _Worker) -> None:
        with self._lock:
            if self._worker is worker:
                self._worker = None
                self._given_up.append(worker)
            worker.give_up()

    def _record_result(self, error: Exception | None) -> None:
        if error is not None:
            self._record_failure(error)
        elif self._clock() >= self._retry_at:  # or it was too late
            self.has_failed = False

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


class _Worker:
    """A thread that runs transactions one after the other.

    :param on_result: called with the error of each transaction, or None, unless the thread was given up.
    """

    def __init__(
        self,
        open_warehouse: Callable[[], Warehouse],
        prepare: Callable[[Warehouse], None],
        on_result: Callable[[Exception | None], None],
    ) -> None:
        self._open, self._prepare, self._on_result = open_warehouse, prepare, on_result
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[Warehouse], Any]] | None] = SimpleQueue()
        self._warehouse: Warehouse | None = None
        self._is_prepared = self._is_given_up = False
        # A daemon: a database that hangs must not keep the process from exiting.
        self.thread = threading.Thread(target=self._work, name="outbound-transfer-cluster", daemon=True)
        self.thread.start()

    def submit(self, future: Future[T], transaction: Callable[[Warehouse], T]) -> None:
        self._queue.put((future, transaction))

    def finish(self) -> None:
        """Let the thread stop after what was submitted."""
        self._queue.put(None)

    def give_up(self) -> None:
        """Break the thread's connection, so that it stops, and fail what it has not begun."""
        self._is_given_up = True
        if self._warehouse is not None:
            self._warehouse.abort()
        with suppress(Empty):
            while True:
                self._fail(self._queue.get_nowait())
        self.finish()

    @staticmethod
    def _fail(job: tuple[Future[Any], Callable[[Warehouse], Any]] | None) -> None:
        if job is not None and job[0].set_running_or_notify_cancel():
            job[0].set_exception(DatabaseUnavailable())

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._is_given_up:
                self._fail(job)
            elif job[0].set_running_or_notify_cancel():
                self._run(*job)

    def _run(self, future: Future[Any], transaction: Callable[[Warehouse], Any]) -> None:
        try:
            result = transaction(self._prepared_warehouse())
        except Exception as error:
            if not self._is_given_up:
                self._on_result(error)
            future.set_exception(error)
        else:
            if not self._is_given_up:
                self._on_result(None)
            future.set_result(result)

    def _prepared_warehouse(self) -> Warehouse:
        self._warehouse = self._warehouse or self._open()
        if self._is_given_up:  # while it was opened
            self._warehouse.abort()
        if not self._is_prepared:
            self._prepare(self._warehouse)
            self._is_prepared = True
        return self._warehouse


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
