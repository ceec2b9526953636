"""Formats values for people."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

#: Shown instead of a missing value.
DASH: Final = "\N{EN DASH}"

_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def format_duration(seconds: float) -> str:
    """Return for example ``2 d 3 h``: the largest unit, and the next one if there are fewer than 10 of it."""
    left = max(0, round(seconds))
    for (seconds_each, unit), (small, small_unit) in pairwise(_SPANS):
        if left >= seconds_each:
            more = left % seconds_each // small
            return f"{left // seconds_each} {unit}" + (
                f" {more} {small_unit}" if more and left < 10 * seconds_each else ""
            )
    return f"{left} s"


def parse_timestamp(value: Any) -> datetime | None:
    """Parse a timestamp as databases return it: a datetime or ISO 8601 text. None if it is neither."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
