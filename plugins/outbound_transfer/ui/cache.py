"""In-memory cache for the page's aggregate counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache

_MISSING: Final = object()


class ResultCache:
    """Caches results for a fixed time in this process; safe to use from several threads.

    :param seconds: how long a result is cached.
    :param max_entries: maximum number of cached results. The least recently used is evicted first.
    :param clock: monotonic time in seconds.
    """

    def __init__(self, seconds: float, max_entries: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: TTLCache[Hashable, Any] = TTLCache(max_entries, seconds, timer=clock)
        self._lock = Lock()

    def get_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the cached result for ``key``, or compute and cache it.

        ``compute`` runs outside the lock, so a slow query blocks no other key. Two threads that miss at the same time
        both compute. An error is not cached.
        """
        with self._lock:
            result = self._entries.get(key, _MISSING)
        if result is not _MISSING:
            return result
        result = compute()
        with self._lock:
            self._entries[key] = result
        return result
