"""The picture on the page: deliveries sent, picked up and overdue, by the day in UTC on which they began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from outbound_transfer.ui.filters import OUTCOME_OF

#: Days in the picture, and the height of its highest bar.
DAYS: Final = 30
HEIGHT: Final = 100

#: Parts of a bar from below: what its deliveries are, by their outcome.
PARTS: Final = {"complete": "picked up", "in-flight": "waiting", "in-doubt": "in doubt", "expired": "overdue"}


def draw(counts: Iterable[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
    """Return a bar for each of the last days, with its text and parts, and a text for all of them.

    :param counts: the ``count`` of deliveries with a ``day`` and a ``status``.
    """
    days = [f"{now - timedelta(days=back):%Y-%m-%d}" for back in reversed(range(DAYS))]
    numbers: Counter[tuple[str, str | None]] = Counter()
    for row in counts:
        numbers[str(row["day"]), OUTCOME_OF.get(row["status"])] += row["count"]
    by_day = {day: [numbers[day, part] for part in PARTS] for day in days}
    most = max(map(sum, by_day.values()))
    return {
        "bars": [{"text": f"{day}: {_text(parts)}", "parts": _stack(parts, most)} for day, parts in by_day.items()],
        "first": days[0],
        "last": days[-1],
        "most": most,
        "text": _text([sum(each) for each in zip(*by_day.values(), strict=True)]),
        "legend": PARTS,
    }


def _text(numbers: list[int]) -> str:
    parts = (f"{number:,} {label}" for number, label in zip(numbers, PARTS.values(), strict=True))
    return f"{sum(numbers):,} sent: {', '.join(parts)}"


def _stack(numbers: list[int], most: int) -> list[tuple[str, float, float]]:
    """Return the outcome, the top and the height of each part."""
    parts, top = [], float(HEIGHT)
    for number, outcome in zip(numbers, PARTS, strict=True):
        height = HEIGHT * number / max(most, 1)
        top -= height
        parts.append((outcome, round(top, 2), round(height, 2)))
    return parts
