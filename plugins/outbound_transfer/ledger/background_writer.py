"""A thread that writes to the ledger, so that tasks do not wait for the warehouse."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Runs writes in a thread of its own, in the order in which their keys were submitted first.

    A write replaces an earlier one of the same key that has not started. The first failure is logged. A failed write is
    not retried: a later update of a delivery has everything that the earlier ones had.

    An executor is not used: its threads are joined when the process exits, and it does not coalesce by key.

    :param connect: opens the tables; called in the thread, until it succeeds.
    :ivar has_failed: whether a write has failed.
    """

    def __init__(self, connect: Callable[[], T], log: Logger | logging.Logger) -> None:
        self._connect, self._log = connect, log
        self._tables: T | None = None
        self._pending: dict[Hashable, Callable[[T], None]] = {}
        self._changed = threading.Condition()
        self._is_closed = self._is_writing = self.has_failed = False
        self._thread: threading.Thread | None = None

    def submit(self, key: Hashable, write: Callable[[T], None]) -> None:
        """Run ``write`` soon, in place of the pending write of the same key."""
        with self._changed:
            self._pending[key] = write
            self._changed.notify_all()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        # A daemon: a warehouse that hangs must not keep the process from exiting.
        thread = threading.Thread(target=self._run, name="outbound-transfer-ledger", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process cannot have more threads
            self._log_once(error)
        else:
            self._thread = thread

    @property
    def backlog(self) -> int:
        """The number of pending writes."""
        return len(self._pending)

    def flush(self, timeout: float) -> bool:
        """Wait until what was submitted has run, at most ``timeout`` seconds; return whether it has."""
        if self._thread is None:
            return not self._pending
        with self._changed:
            return self._changed.wait_for(lambda: not (self._pending or self._is_writing), timeout)

    def close(self, timeout: float) -> bool:
        """Wait until all writes have run, at most ``timeout`` seconds; return whether they have."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while write := self._next():
            try:
                self._tables = self._tables or self._connect()
                write(self._tables)
            except Exception as error:  # a delivery must not fail because of it
                self._log_once(error)

    def _next(self) -> Callable[[T], None] | None:
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            self._is_writing = bool(self._pending)
            return self._pending.pop(next(iter(self._pending))) if self._pending else None

    def _log_once(self, error: Exception) -> None:
        if not self.has_failed:
            self.has_failed = True
            message = " ".join(str(error).split())[:300]
            self._log.warning("Could not write to the delivery ledger: %s: %s", type(error).__name__, message)
