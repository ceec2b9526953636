"""The two pages: what was read, as values for their templates."""

from __future__ import annotations

from datetime import datetime

from fastapi import Response

from outbound_transfer.ui import pages, plots, shapes
from outbound_transfer.ui.filters import CHOICES, IN_FLIGHT, REFRESH, WINDOWS, Filter, bounds
from outbound_transfer.ui.ledger import Read
from outbound_transfer.ui.queries import OfTask, Overview, position_of
from outbound_transfer.warehouse.tables import CALLS, DELIVERIES, RECIPIENTS


def deliveries_page(read: Read, wanted: Filter, now: datetime) -> Response:
    """The page of all deliveries."""
    rows: Overview = read.rows
    first, last = (position_of(rows.deliveries[at]) if rows.deliveries else None for at in (0, -1))
    return pages.page(
        "deliveries.html",
        now=now,
        wanted=wanted,
        refresh=REFRESH if wanted.refresh else 0,
        windows=WINDOWS,
        choices=CHOICES,
        in_flight=IN_FLIGHT,
        has_ledger=DELIVERIES in rows.has,
        has_calls=CALLS in rows.has,
        has_recipients=RECIPIENTS in rows.has,
        deliveries=[shapes.delivery(row, read.web) for row in rows.deliveries],
        newer=first if rows.before else None,
        older=last if rows.after else None,
        outcomes=shapes.OUTCOMES,
        totals=shapes.totals(rows.outcomes),
        by_day=plots.outcomes(rows.outcomes, bounds(wanted.days, now)),
        waits=plots.pickups(rows.pickups),
        feeds=[shapes.feed(row, now) for row in rows.feeds],
        keys=[(key, plots.minutes(key.minutes, shapes.CALLS_A_MINUTE)) for key in shapes.keys(rows.calls, now)],
        limit=shapes.CALLS_A_MINUTE,
    )


def task_page(read: Read, now: datetime) -> Response:
    """The deliveries of one task instance."""
    rows: OfTask = read.rows
    return pages.page(
        "task.html",
        now=now,
        refresh=0,
        has_ledger=DELIVERIES in rows.has,
        deliveries=[shapes.delivery(row, read.web, rows.recipients, most=2_000) for row in rows.deliveries],
    )
