"""The two pages: each reads the table of deliveries and renders its template. Call them in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fastapi import Response

from outbound_transfer.client.wording import clean
from outbound_transfer.delivery.place import DeliveriesPlace, find_deliveries
from outbound_transfer.links.transfer import find_web_url
from outbound_transfer.store.config import LOCAL_FILE, stores_recipients
from outbound_transfer.ui import queries, view_models
from outbound_transfer.ui.filters import CHOICES, IN_FLIGHT, REFRESH_SECONDS, WINDOWS, Filter
from outbound_transfer.ui.queries import Row, TaskKey, row_position
from outbound_transfer.ui.rendering import render_page

if TYPE_CHECKING:
    from outbound_transfer.store.deliveries import Deliveries

#: Seconds to wait for other sessions: less than a page waits, so that the page can show the error.
_TIMEOUT: Final = 2.0


class NotConfigured(Exception):
    """There is no table of deliveries. The message says how to configure one."""


def deliveries_page(wanted: Filter, readable: Collection[str], now: datetime) -> Response:
    """Render the page of all deliveries: see :func:`.queries.overview`.

    :raises NotConfigured: there is no table of deliveries.
    """
    place = _find_place()
    found = queries.overview(_open(place), wanted, readable, now)
    web_urls, shows_recipients = _web_urls(found.deliveries), stores_recipients()
    return render_page(
        "deliveries.html",
        now=now,
        wanted=wanted,
        refresh=REFRESH_SECONDS if wanted.refresh else 0,
        windows=WINDOWS,
        choices=CHOICES,
        in_flight=IN_FLIGHT,
        has_table=found.has_table,
        place=f"the file {LOCAL_FILE} in AIRFLOW_HOME" if place.file else f"the database of {clean(str(place))}",
        local_file=LOCAL_FILE if place.file else "",
        deliveries=[
            view_models.show_delivery(row, now, web_urls, shows_recipients=shows_recipients) for row in found.deliveries
        ],
        older=row_position(found.deliveries[-1]) if found.has_older else None,
        outcomes=view_models.OUTCOMES,
        totals=view_models.totals(found.outcomes),
        feeds=[view_models.show_feed(row, now) for row in found.feeds],
    )


def task_page(task: TaskKey, now: datetime) -> Response:
    """Render the deliveries of one task instance: see :func:`.queries.task_deliveries`.

    :raises NotConfigured: there is no table of deliveries.
    """
    rows = queries.task_deliveries(_open(_find_place()), task)
    web_urls, shows_recipients = _web_urls(rows), stores_recipients()
    return render_page(
        "task.html",
        now=now,
        refresh=0,
        deliveries=[
            view_models.show_delivery(row, now, web_urls, shows_recipients=shows_recipients, max_subject_length=2_000)
            for row in rows
        ],
    )


def _open(place: DeliveriesPlace) -> Deliveries:
    return place.open(patience=0.0, timeout=_TIMEOUT)


def _find_place() -> DeliveriesPlace:
    if place := find_deliveries():
        return place
    raise NotConfigured(
        "Set deliveries_conn_id in the section [outbound_transfer] of Airflow's configuration, or "
        "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID in its environment, to a connection of PostgreSQL, MySQL or "
        "SQLite, for workers, triggerer and API server alike: no delivery begins without. Only where all of Airflow "
        "runs on one machine, with its SQLite database airflow.db in AIRFLOW_HOME and the LocalExecutor, is a file "
        "beside it enough."
    )


def _web_urls(rows: Iterable[Row]) -> dict[str, str]:
    return {conn_id: find_web_url(conn_id) for conn_id in {str(row["conn_id"]) for row in rows}}
