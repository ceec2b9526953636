"""In-memory cache for the page's aggregate counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any


class ResultCache:
    """Caches results for a fixed time in this process; safe to use from several threads.

    :param seconds: how long a result is cached.
    :param max_entries: maximum number of cached results. The oldest is evicted first.
    :param clock: monotonic time in seconds.
    """

    def __init__(self, seconds: float, max_entries: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._max_entries, self._clock = seconds, max_entries, clock
        self._entries: dict[Hashable, tuple[float, Any]] = {}
        self._lock = Lock()

    def get_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the cached result for ``key``, or compute and cache it.

        ``compute`` runs outside the lock, so a slow query blocks no other key. Two threads that miss at the same time
        both compute. An error is not cached.
        """
        with self._lock:
            cached = self._entries.get(key)
        if cached and self._clock() < cached[0]:
            return cached[1]
        result = compute()
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = self._clock() + self._seconds, result
            if len(self._entries) > self._max_entries:
                del self._entries[next(iter(self._entries))]
        return result
