"""How a task leaves a long retry delay: its retry hook raises :class:`.DeferRequested` and the task defers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from outbound_transfer.protocol.deferral import DeferRequested
from outbound_transfer.protocol.messages import Api, Call, Operation
from outbound_transfer.protocol.retry_rules import READS

#: Seconds; a longer wait frees the worker slot.
MAX_BLOCKING_WAIT: Final = 5.0

#: A task that would make more calls again, before it comes to the one that waits, waits in its worker.
MAX_REPEATED_CALLS: Final = 8


class CallProgress:
    """How far the calls of a process have come, for the process that resumes the task after a deferral.

    That one begins with the reads of this one again, and counts the time that the unfinished calls have waited.

    :param waited: of the :class:`.DeferRequested` that this process resumes from.
    :param clock: returns monotonic seconds.
    """

    def __init__(self, waited: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = {operation: clock() - seconds for operation, seconds in waited.items()}
        self._lock = threading.Lock()
        self._finished = self._pending = 0

    @property
    def repeats(self) -> int:
        """The number of calls that another process of the task would make again before it comes to the next one."""
        return self._finished + self._pending

    def take_repeats(self) -> int:
        """Return the same, once: calls at once that are deferred together repeat them once."""
        with self._lock:
            repeats, self._finished = self.repeats, 0
        return repeats

    def began(self, operation: Operation) -> float | None:
        """Return when an operation's first attempt began in an earlier process, if it has not succeeded since."""
        return self._began.get(operation.value)

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Count a call, which is reserved but not made yet, as one that comes before those within the block."""
        self._count(pending=1)
        try:
            yield
        finally:
            self._count(pending=-1)

    def record_success(self, call: Call[Any]) -> None:
        if call.method == "GET" and call.api is Api.TRANSFER:
            self.record_repeat()
            return
        self._finished = 1  # another process begins with one read of what was changed
        self._forget(call.operation, *READS)

    def record_repeat(self) -> None:
        """Record a call that has changed nothing, so that another process makes it again."""
        self._count(finished=1)
        if self._finished > MAX_REPEATED_CALLS:  # the task is not deferred for a read any more
            self._forget(*READS)

    def add_waited(self, request: DeferRequested, call: Call[Any], began: float | None) -> None:
        """Add to a deferral how long the unfinished calls will have waited.

        :param began: when the first attempt of ``call`` began; None if none has.
        """
        own = {} if began is None else {call.operation.value: began}
        for operation, timestamp in {**self._began, **own}.items():
            waited = self._clock() - timestamp + request.seconds
            request.waited[operation] = max(request.waited.get(operation, 0.0), waited)

    def _count(self, finished: int = 0, pending: int = 0) -> None:
        with self._lock:
            self._finished += finished
            self._pending += pending

    def _forget(self, *operations: Operation) -> None:
        for operation in operations:
            self._began.pop(operation.value, None)
