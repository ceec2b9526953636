"""How many calls this process has made, by minute, until they are taken to the ledger."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from outbound_transfer.protocol.exchange import Operation
from outbound_transfer.warehouse.rows import instant

#: Counts kept at most while they cannot be taken anywhere: of calls over some hours.
MOST: Final = 5_000


class CallCounts:
    """Counts calls. ``clock`` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts: Counter[tuple[int, str, str, str, int]] = Counter()
        self._lock = threading.Lock()

    def add(self, account: str, conn_id: str, operation: Operation, status: int | None) -> None:
        """One more try of a call; ``status`` is None where no answer came."""
        key = (int(self._clock()) // 60 * 60, account, conn_id, operation.value, status or 0)
        with self._lock:
            if key in self._counts or len(self._counts) < MOST:
                self._counts[key] += 1

    def take(self) -> list[tuple[Any, ...]]:
        """What was counted since this was last asked, as rows of :data:`outbound_transfer.warehouse.tables.CALLS`."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return [
            (uuid.uuid4().hex, instant(datetime.fromtimestamp(minute, timezone.utc)), *rest, count)
            for (minute, *rest), count in counts.items()
        ]


#: Of this process.
CALLS: Final = CallCounts()
