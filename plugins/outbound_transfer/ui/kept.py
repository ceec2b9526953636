"""Counts that were made a moment ago, for whoever asks for the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any


class Kept:
    """Keeps results for some seconds, in the memory of this process.

    :param most: how many are kept; the oldest goes first.
    """

    def __init__(self, seconds: float, most: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._found: dict[Hashable, tuple[float, Any]] = {}
        self._lock = Lock()

    def __call__(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returned for this key, not long ago or now; two who ask at once may both make it."""
        with self._lock:
            until, result = self._found.get(key, (0.0, None))
        if self._clock() < until:
            return result
        result = make()
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = (self._clock() + self._seconds, result)
            while len(self._found) > self._most:
                del self._found[next(iter(self._found))]
        return result
