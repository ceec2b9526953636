"""The service's time: the machine's clock plus an offset that only grows. Timestamps are microseconds since 1970."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND = 1_000_000
DAY = 86_400 * SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Virtual time. `offset` is the sum of all advances so far, in microseconds."""

    def __init__(self, offset: int = 0, real_time: Callable[[], float] = time.time) -> None:
        self.offset = offset
        self._real_time = real_time

    def now(self) -> int:
        return self.real() + self.offset

    def real(self) -> int:
        """Return the machine's time. Sessions use it, so that advancing the clock signs nobody out."""
        return int(self._real_time() * SECOND)


def iso(timestamp: int) -> str:
    """Return ISO 8601 in UTC with microseconds and `Z`, the form of every time in the API."""
    second, microseconds = divmod(timestamp, SECOND)
    return f"{_iso_second(second)}.{microseconds:06}Z"


@lru_cache(maxsize=1_024)  # many events of a page are in the same second
def _iso_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


def format_for_people(timestamp: int, seconds: bool = False) -> str:
    """Return a timestamp for a page or an email: `21 Nov 2026, 07:05 UTC`."""
    date = _EPOCH + timedelta(microseconds=timestamp)
    time_of_day = f"{date:%H:%M:%S}" if seconds else f"{date:%H:%M}"
    return f"{date.day} {date:%b %Y}, {time_of_day} UTC"


def iso_or_none(timestamp: int | None) -> str | None:
    return None if timestamp is None else iso(timestamp)
