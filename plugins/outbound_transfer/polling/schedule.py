"""When a poll looks. Instants are seconds since the epoch."""

from __future__ import annotations

from math import floor
from typing import Final

#: Seconds between two looks, at the least: an interval of 0 must not make a hot loop.
SHORTEST_INTERVAL: Final = 1.0


def next_look(looked: float, grid: float, interval: float) -> float:
    """The first of the instants ``grid``, ``grid + interval``, … after ``looked``.

    All who have one interval share these instants, and so one look, whenever each began.
    """
    interval = max(interval, SHORTEST_INTERVAL)
    return grid + max(floor((looked - grid) / interval) + 1, 0) * interval
