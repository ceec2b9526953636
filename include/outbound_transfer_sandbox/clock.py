"""The service's time: the machine's clock plus an offset that only grows. Instants are microseconds since 1970."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import lru_cache

SECOND = 1_000_000
DAY = 86_400 * SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Clock:
    """Virtual time. `offset` is what has been added to real time so far, in microseconds."""

    def __init__(self, offset: int = 0, real_time: Callable[[], float] = time.time) -> None:
        self.offset = offset
        self._real_time = real_time

    def now(self) -> int:
        return self.real() + self.offset

    def real(self) -> int:
        """The machine's time, for what `offset` must not end: who is signed in."""
        return int(self._real_time() * SECOND)


def iso(instant: int) -> str:
    """ISO 8601 in UTC with microseconds and `Z`, the form of every time that the service shows."""
    second, rest = divmod(instant, SECOND)
    return f"{_iso_second(second)}.{rest:06}Z"


@lru_cache(maxsize=1_024)  # a page of events has many in one second
def _iso_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


def when(instant: int, seconds: bool = False) -> str:
    """An instant for people: `21 Nov 2026, 07:05 UTC`."""
    moment = _EPOCH + timedelta(microseconds=instant)
    time_of_day = f"{moment:%H:%M:%S}" if seconds else f"{moment:%H:%M}"
    return f"{moment.day} {moment:%b %Y}, {time_of_day} UTC"


def iso_or_none(instant: int | None) -> str | None:
    return None if instant is None else iso(instant)
