"""Counts of the calls that this process has made, by minute, until the ledger has them."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from outbound_transfer.protocol.messages import Operation
from outbound_transfer.warehouse.timestamps import format_epoch

#: Maximum number of counts while the ledger cannot be written; enough for some hours.
MAX_KEYS: Final = 5_000


class CallCounter:
    """Counts calls.

    :param clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts: Counter[tuple[int, str, str, str, int]] = Counter()
        self._lock = threading.Lock()

    def add(self, account: str, conn_id: str, operation: Operation, status: int | None) -> None:
        """Count an attempt of a call; ``status`` is None if there was no response."""
        key = (int(self._clock()) // 60 * 60, account, conn_id, operation.value, status or 0)
        with self._lock:
            if key in self._counts or len(self._counts) < MAX_KEYS:
                self._counts[key] += 1

    def drain(self) -> list[tuple[Any, ...]]:
        """Return the counts since the last call, as rows of :data:`outbound_transfer.warehouse.tables.CALLS`."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return [(uuid.uuid4().hex, format_epoch(minute), *rest, count) for (minute, *rest), count in counts.items()]


#: The counter of this process.
CALL_COUNTER: Final = CallCounter()
