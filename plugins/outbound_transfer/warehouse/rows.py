"""From a page to rows: pure."""

from __future__ import annotations

from datetime import datetime, timezone

import pendulum

from outbound_transfer.protocol.feed import Page
from outbound_transfer.warehouse.dialects import Row


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
            event.data,
            event.other,
            page.cursor,
            event.line,
            landed,
        )
        for event in page.events
    ]


def rejected_rows(feed: str, page: Page, landed_at: datetime) -> list[Row]:
    """The rows of :data:`.tables.REJECTED_LINES`."""
    landed = instant(landed_at)
    return [(feed, page.cursor, line.line, line.raw, line.reason, landed) for line in page.rejected]


def occurred_at(timestamp: str | None) -> str | None:
    """An event's timestamp as an instant, where it is an ISO 8601 date and time; None where it is anything else."""
    # Its format is not documented (service.md, Events). pendulum takes "now" for a time too.
    if not timestamp or not timestamp[0].isdecimal():
        return None
    try:
        moment = pendulum.parse(timestamp, exact=True)
        return instant(moment) if isinstance(moment, datetime) else None
    except (ValueError, OverflowError):
        return None


def instant(moment: datetime) -> str:
    """``2026-01-31T23:59:59.123456Z``: always as long, so that text sorts as time does."""
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
