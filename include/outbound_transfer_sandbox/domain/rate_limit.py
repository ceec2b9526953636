"""Arithmetic of the rate limits (service-api.md, R53 and R58), without clock or storage."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from .clock import SECOND


def retry_after(counted: Sequence[int], now: int, limit: int, window_seconds: float) -> int | None:
    """Return the seconds until a sliding window accepts a request again, or None if it accepts one now.

    `counted` has the timestamps of the counted requests, oldest first. A request leaves the window when it is a full
    window old. The result is rounded up to whole seconds and at least 1.
    """
    window = int(window_seconds * SECOND)
    inside = len(counted) - bisect_right(counted, now - window)
    if inside < limit:
        return None
    return whole_seconds(counted[len(counted) - limit] + window - now)


def whole_seconds(microseconds: int) -> int:
    """Return a duration as Retry-After needs it: rounded up to seconds, at least 1."""
    return max(1, math.ceil(microseconds / SECOND))
