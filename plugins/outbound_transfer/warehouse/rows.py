"""From a page to rows: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Final

import pendulum

from outbound_transfer.protocol.feed import Page, RejectedLine
from outbound_transfer.warehouse.dialects import Row

_USUAL: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}|\.\d{6})?Z", re.ASCII)

#: Of every instant's text.
_LENGTH: Final = len("2026-01-31T23:59:59.123456Z")

#: Characters of a text that is looked at as a time.
_LONGEST: Final = 100

#: The years that a time zone may leave.
_EDGES: Final = ("0001", "9999")


def event_rows(feed: str, page: Page, landed_at: datetime) -> list[Row]:
    """The rows of :data:`.tables.EVENTS`."""
    landed = instant(landed_at)
    return [
        (
            feed,
            event.event_id,
            event.type,
            event.timestamp,
            occurred_at(event.timestamp),
            event.data if event.raw is None else None,
            event.other if event.raw is None else None,
            event.raw,
            page.cursor,
            event.line,
            landed,
        )
        for event in page.events
    ]


def rejected_rows(feed: str, start: int, lines: Iterable[RejectedLine], landed_at: datetime) -> list[Row]:
    """The rows of :data:`.tables.REJECTED_LINES`; ``start``: the cursor that their page was asked with."""
    landed = instant(landed_at)
    return [(feed, start, line.line, line.raw, line.reason, landed) for line in lines]


def occurred_at(timestamp: str | None) -> str | None:
    """An event's timestamp as an instant, where it is an ISO 8601 date and time; None where it is anything else.

    Of the first and the last year that there are, it is none either: in another time zone, which readers have, it may
    be in no year at all.
    """
    # Its format is not documented (service.md, Events). pendulum takes "now" for a time too.
    if not timestamp or len(timestamp) > _LONGEST or not timestamp[0].isdecimal():
        return None
    found = _usual(timestamp) if _USUAL.fullmatch(timestamp) else _other(timestamp)
    return found if found and not found.startswith(_EDGES) else None


def _usual(timestamp: str) -> str | None:
    # The same as below in a tenth of the time.
    try:
        usual = datetime.fromisoformat(timestamp[:-1])
    except ValueError:
        return None
    return timestamp if len(timestamp) == _LENGTH else usual.isoformat(timespec="microseconds") + "Z"


def _other(timestamp: str) -> str | None:
    try:
        moment = pendulum.parse(timestamp, exact=True)
        return instant(moment) if isinstance(moment, datetime) else None
    except Exception:  # of a parser of others, given anything: "12:" is a TypeError
        return None


def instant(moment: datetime) -> str:
    """``2026-01-31T23:59:59.123456Z``: always as long, so that text sorts as time does."""
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
