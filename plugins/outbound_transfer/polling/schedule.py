"""When a poll looks."""

from __future__ import annotations

import time
from math import floor, isfinite
from typing import Any, Final, NamedTuple

#: Seconds between two looks, at the least: an interval of 0 must not make a hot loop.
SHORTEST_INTERVAL: Final = 1.0

#: Seconds between two looks where what was asked for is no interval.
USUAL_INTERVAL: Final = 60.0


class Now(NamedTuple):
    """One moment by two clocks, in seconds.

    :ivar steady: goes on evenly whatever happens to the machine's clock, so it paces; means nothing elsewhere.
    :ivar wall: since the epoch; deadlines and the service's times are compared with it.
    """

    steady: float
    wall: float


def now() -> Now:
    """This moment."""
    return Now(time.monotonic(), time.time())


def next_look(looked: float, grid: float, interval: float) -> float:
    """The first of the instants ``grid``, ``grid + interval``, … after ``looked``.

    All who have one interval share these instants, and so one look, whenever each began.
    """
    interval = max(interval, SHORTEST_INTERVAL)
    passed = max(floor((looked - grid) / interval) + 1, 0)
    upcoming = grid + passed * interval
    # Rounding may give the very instant of the look, or one before it.
    return upcoming if upcoming > looked else grid + (passed + 1) * interval


def interval_of(given: Any) -> float:
    """Seconds between two looks, whatever an older version has stored."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return float(given) if is_number and isfinite(given) and given >= 0 else USUAL_INTERVAL
