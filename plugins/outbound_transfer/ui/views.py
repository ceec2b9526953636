"""Renders the two pages from what was read."""

from __future__ import annotations

from datetime import datetime

from fastapi import Response

from outbound_transfer.protocol.wording import clean
from outbound_transfer.ui import charts, rendering, view_models
from outbound_transfer.ui.filters import CHOICES, DAYS_PER_BAR, IN_FLIGHT, REFRESH_SECONDS, Filter, bar_starts
from outbound_transfer.ui.queries import Overview, TaskDeliveries, row_position
from outbound_transfer.ui.repository import QueryResult
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from outbound_transfer.warehouse.tables import CALLS, DELIVERIES, RECIPIENTS


def deliveries_page(result: QueryResult, wanted: Filter, now: datetime) -> Response:
    """Render the page of all deliveries."""
    rows: Overview = result.rows
    conn_id = result.ledger_conn_id
    first, last = (row_position(rows.deliveries[at]) if rows.deliveries else None for at in (0, -1))
    return rendering.render_page(
        "deliveries.html",
        now=now,
        wanted=wanted,
        refresh=REFRESH_SECONDS if wanted.refresh else 0,
        windows=DAYS_PER_BAR,
        choices=CHOICES,
        in_flight=IN_FLIGHT,
        has_ledger=DELIVERIES in rows.tables,
        has_calls=CALLS in rows.tables,
        has_recipients=RECIPIENTS in rows.tables,
        ledger=f"the database of connection '{clean(conn_id)}'"
        if conn_id
        else f"the file {LOCAL_FILE} in AIRFLOW_HOME",
        local_file="" if conn_id else LOCAL_FILE,
        deliveries=[view_models.delivery_from_row(row, result.web_urls, rows.recipients) for row in rows.deliveries],
        newer=first if rows.has_newer else None,
        older=last if rows.has_older else None,
        outcomes=view_models.OUTCOMES,
        totals=view_models.totals(rows.outcomes),
        by_day=charts.outcomes_by_day(rows.outcomes, bar_starts(wanted.days, now)),
        pickup_times=charts.pickup_histogram(rows.pickups),
        feeds=[view_models.feed_from_row(row, now) for row in rows.feeds],
        connections=[
            (each, charts.calls_sparkline(each.minutes, each.limit))
            for each in view_models.calls_by_connection(rows.calls, rows.allowances, rows.leases, now)
        ],
    )


def task_page(result: QueryResult, now: datetime) -> Response:
    """Render the deliveries of one task instance."""
    rows: TaskDeliveries = result.rows
    return rendering.render_page(
        "task.html",
        now=now,
        refresh=0,
        has_ledger=DELIVERIES in rows.tables,
        awaited=clean(rows.awaited),
        deliveries=[
            view_models.delivery_from_row(row, result.web_urls, rows.recipients, max_length=2_000)
            for row in rows.deliveries
        ],
    )
