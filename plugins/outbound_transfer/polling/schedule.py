"""When transfers are polled."""

from __future__ import annotations

import time
from math import floor, isfinite
from typing import Any, Final, NamedTuple

#: Minimum seconds between two polls: an interval of 0 must not become a busy loop.
MIN_INTERVAL: Final = 1.0

#: Seconds between two polls if the stored interval is invalid.
DEFAULT_INTERVAL: Final = 60.0


class Now(NamedTuple):
    """The current time by two clocks, in seconds.

    :ivar monotonic: unaffected by changes of the system clock; for intervals within this process.
    :ivar wall: seconds since the epoch; for deadlines and the service's timestamps.
    """

    monotonic: float
    wall: float


class PollTimes(NamedTuple):
    """When a poller polls, in monotonic seconds.

    :ivar origin: of the times of polls.
    :ivar rare_interval: minimum seconds between two polls of a transfer that is read when an event names it.
    """

    origin: float
    rare_interval: float = 0.0

    def next_after(self, polled_at: float, interval: float, *, has_hints: bool = False) -> float:
        """Return the time of the next poll.

        :param has_hints: whether the poll may be a rare one.
        """
        return next_poll_at(polled_at, self.origin, max(interval, self.rare_interval) if has_hints else interval)


def now() -> Now:
    """Return the current time."""
    return Now(time.monotonic(), time.time())


def next_poll_at(polled_at: float, origin: float, interval: float) -> float:
    """Return the first of ``origin``, ``origin + interval``, … that is after ``polled_at``, in monotonic seconds.

    All waiters of one interval share these times, and so one poll, whenever each of them started.
    """
    interval = max(interval, MIN_INTERVAL)
    elapsed = max(floor((polled_at - origin) / interval) + 1, 0)
    upcoming = origin + elapsed * interval
    # Floating-point rounding may give the time of the last poll, or an earlier one.
    return upcoming if upcoming > polled_at else origin + (elapsed + 1) * interval


def interval_or_default(given: Any) -> float:
    """Return ``given`` if it is a valid interval in seconds, else :data:`DEFAULT_INTERVAL`.

    A stored trigger may hold any value.
    """
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return float(given) if is_number and isfinite(given) and given >= 0 else DEFAULT_INTERVAL
