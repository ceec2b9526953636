"""The plots, as geometry in a box of 100 by 100 that the templates draw: pure. No text: that stays text beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from outbound_transfer.ui.shapes import OUTCOMES, outcome_of, whole
from outbound_transfer.ui.text import moment, span

#: Of a bar's place, how much it fills.
_FILLED: Final = 0.72

#: Where the bars of the time to pickup end, in seconds.
_EDGES: Final = (300, 900, 3_600, 4 * 3_600, 12 * 3_600, 86_400, 2 * 86_400, 4 * 86_400, 7 * 86_400)


@dataclass(frozen=True)
class Rect:
    """A part of a bar; ``kind`` is its class."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True)
class Bar:
    """A bar, and its numbers for the table. ``label`` is what it stands for."""

    label: str
    values: tuple[int, ...]
    parts: tuple[Rect, ...]

    @property
    def total(self) -> int:
        return sum(self.values)


@dataclass(frozen=True)
class Plot:
    """Bars under a ``top``, the value at the upper edge."""

    bars: tuple[Bar, ...]
    top: int

    @property
    def total(self) -> int:
        return sum(bar.total for bar in self.bars)


def nice(value: int) -> int:
    """The least of 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, ... that is not below."""
    scale = 1
    while True:
        for step in (1, 2, 3, 4, 5, 6, 8):
            if step * scale >= value:
                return step * scale
        scale *= 10


def bars(labels: Sequence[str], values: Sequence[Sequence[int]], kinds: Sequence[str]) -> Plot:
    """Stacked bars: of each label, a value of each kind; the first kind at the foot."""
    top = nice(max((sum(each) for each in values), default=0))
    place = 100 / max(1, len(labels))
    return Plot(
        tuple(
            Bar(label, tuple(each), tuple(_stack(each, kinds, (number + (1 - _FILLED) / 2) * place, place, top)))
            for number, (label, each) in enumerate(zip(labels, values, strict=True))
        ),
        top,
    )


def _stack(values: Sequence[int], kinds: Sequence[str], x: float, place: float, top: int) -> Iterable[Rect]:
    foot = 100.0
    for value, kind in zip(values, kinds, strict=True):
        if value > 0:
            height = 100 * value / top
            foot -= height
            yield Rect(round(x, 3), round(foot, 3), round(place * _FILLED, 3), round(height, 3), kind)


def outcomes(rows: Iterable[Sequence[Any]], starts: Sequence[datetime]) -> Plot:
    """Deliveries by day and outcome.

    :param rows: bar, status, how many.
    """
    counted = [dict.fromkeys(OUTCOMES, 0) for _ in starts]
    for bar, status, count in rows:
        counted[whole(bar)][outcome_of(str(status))] += whole(count)
    return bars(
        [f"{start:%b} {start.day}" for start in starts], [list(day.values()) for day in counted], list(OUTCOMES)
    )


@dataclass(frozen=True)
class Waits:
    """How long recipients took: a plot, half of them, and nine of ten, in words."""

    plot: Plot
    median: str
    most: str


def pickups(rows: Iterable[Sequence[Any]]) -> Waits | None:
    """The distribution of the times to pickup; None where nobody has picked up.

    :param rows: ``sent_at``, ``picked_up_at``.
    """
    pairs = ((moment(sent), moment(picked)) for sent, picked in rows)
    took = sorted((picked - sent) / timedelta(seconds=1) for sent, picked in pairs if sent and picked)
    if not took:
        return None
    counts = [0] * (len(_EDGES) + 1)
    for seconds in took:
        counts[sum(seconds >= edge for edge in _EDGES)] += 1
    labels = [f"under {span(_EDGES[0])}", *(f"{span(a)} to {span(b)}" for a, b in pairwise(_EDGES))]
    plot = bars([*labels, f"{span(_EDGES[-1])} or more"], [[count] for count in counts], ["time"])
    return Waits(plot, span(took[(len(took) - 1) // 2]), span(took[(len(took) - 1) * 9 // 10]))


def minutes(values: Sequence[int], limit: int) -> Plot:
    """Calls by minute; ``top`` is no lower than the limit, so that the eye compares keys."""
    place = 100 / len(values)
    top = max(limit, *values)
    parts = [
        Rect(round(number * place, 3), round(100 - 100 * value / top, 3), round(place * 0.8, 3),
             round(100 * value / top, 3), "limited" if value > limit else "time")
        for number, value in enumerate(values)
    ]  # fmt: skip
    return Plot((Bar("calls", tuple(values), tuple(parts)),), top)
