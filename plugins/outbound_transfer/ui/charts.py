"""The chart as geometry in a box of 100 by 100, which the templates draw as SVG. Its text remains HTML.

The page's content security policy forbids scripts, and Airflow includes no library that draws SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from outbound_transfer.ui.queries import Row
from outbound_transfer.ui.view_models import OUTCOMES, outcome_for, to_int

#: The share of its slot that a bar fills.
_BAR_WIDTH: Final = 0.72


@dataclass(frozen=True)
class Rect:
    """A part of a bar."""

    x: float
    y: float
    width: float
    height: float
    css_class: str


@dataclass(frozen=True)
class Bar:
    """A bar, and its values for the table beside the chart."""

    label: str
    values: tuple[int, ...]
    parts: tuple[Rect, ...]


@dataclass(frozen=True)
class Plot:
    """Bars.

    :ivar top: the value at the upper edge.
    """

    bars: tuple[Bar, ...]
    top: int


def axis_limit(value: int) -> int:
    """Return the smallest of 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, … that is at least ``value``."""
    scale = 1
    while True:
        for step in (1, 2, 3, 4, 5, 6, 8):
            if step * scale >= value:
                return step * scale
        scale *= 10


def stacked_bars(labels: Sequence[str], values: Sequence[Sequence[int]], css_classes: Sequence[str]) -> Plot:
    """Plot stacked bars.

    :param labels: one label for each bar.
    :param values: the values of each bar, in the order of ``css_classes``.
    :param css_classes: class of each part; the first one is at the bottom.
    """
    top = axis_limit(max((sum(each) for each in values), default=0))
    slot = 100 / max(1, len(labels))
    return Plot(
        tuple(
            Bar(label, tuple(each), tuple(_stack(each, css_classes, (number + (1 - _BAR_WIDTH) / 2) * slot, slot, top)))
            for number, (label, each) in enumerate(zip(labels, values, strict=True))
        ),
        top,
    )


def _stack(values: Sequence[int], css_classes: Sequence[str], x: float, slot: float, top: int) -> Iterable[Rect]:
    foot = 100.0
    for value, css_class in zip(values, css_classes, strict=True):
        if value > 0:
            height = 100 * value / top
            foot -= height
            yield Rect(round(x, 3), round(foot, 3), round(slot * _BAR_WIDTH, 3), round(height, 3), css_class)


def outcomes_by_day(rows: Iterable[Row], starts: Sequence[datetime]) -> Plot:
    """Plot deliveries by day and outcome.

    :param starts: the time at which each bar starts.
    """
    counted = [dict.fromkeys(OUTCOMES, 0) for _ in starts]
    for row in rows:
        counted[to_int(row["bar"])][outcome_for(str(row["status"]))] += to_int(row["delivery_count"])
    return stacked_bars(
        [f"{start:%b} {start.day}" for start in starts], [list(day.values()) for day in counted], list(OUTCOMES)
    )
