"""Arithmetic of the limits (service.md, Limits). Pure: no clock, no storage."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from .clock import SECOND

MEGABYTE = 1_048_576


def retry_after(counted: Sequence[int], now: int, limit: int, window_seconds: float) -> int | None:
    """Seconds until a sliding window has room again, or None when it has room now.

    `counted` holds the instants of the counted requests, oldest first. A request leaves the window once it is a full
    window old. The answer is rounded up to whole seconds and at least 1.
    """
    window = int(window_seconds * SECOND)
    inside = len(counted) - bisect_right(counted, now - window)
    if inside < limit:
        return None
    return whole_seconds(counted[len(counted) - limit] + window - now)


def whole_seconds(microseconds: int) -> int:
    """A wait in the form of Retry-After: rounded up, at least 1."""
    return max(1, math.ceil(microseconds / SECOND))


def megabytes(size: int) -> int:
    """`size` bytes rounded up to whole binary megabytes (service.md, POST .../files, 413)."""
    return -(-size // MEGABYTE)
