"""A thread that writes to the ledger, so that nobody waits for the warehouse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from outbound_transfer.logs import Log

T = TypeVar("T")


class Writer(Generic[T]):
    """Does what it is given in a thread of its own, in the order in which it was given first.

    Of what is given under one key only the latest is done. What fails is told in the log, once, and is done again only
    where it is given again: a later note of a delivery holds all of the earlier ones.

    :ivar has_failed: whether anything ever did.
    :param begin: leads to the tables; called in the thread, until it succeeds.
    """

    def __init__(self, begin: Callable[[], T], log: Log) -> None:
        self._begin, self._log = begin, log
        self._left: dict[Hashable, Callable[[T], None]] = {}
        self._changed = threading.Condition()
        self._is_closed = self.has_failed = False
        self._thread: threading.Thread | None = None

    def put(self, key: Hashable, write: Callable[[T], None]) -> None:
        """Have ``write`` done soon."""
        with self._changed:
            self._left[key] = write
            self._changed.notify_all()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        # A daemon: a warehouse that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._run, name="outbound-transfer-ledger", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left
            self._tell(error)
        else:
            self._thread = thread

    @property
    def backlog(self) -> int:
        """How much is yet to be begun."""
        return len(self._left)

    def close(self, patience: float) -> bool:
        """Wait until everything is done, so many seconds at most; whether it was done, or failed, by then."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(patience)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        tables: T | None = None
        while write := self._next():
            try:
                tables = tables or self._begin()
                write(tables)
            except Exception as error:  # whatever it is, no delivery fails with it
                self._tell(error)

    def _next(self) -> Callable[[T], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._left or self._is_closed)
            return self._left.pop(next(iter(self._left))) if self._left else None

    def _tell(self, error: Exception) -> None:
        if not self.has_failed:
            self.has_failed = True
            said = " ".join(str(error).split())[:300]
            self._log.warning("The delivery ledger cannot be written: %s: %s", type(error).__name__, said)
