"""The two pages: each reads the warehouse of Airflow's configuration and renders its template. Call them in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from fastapi import Response

from outbound_transfer.ledger.config import LedgerConfig, load_config, open_ledger
from outbound_transfer.links.transfer import find_web_url
from outbound_transfer.protocol.wording import clean
from outbound_transfer.ui import queries, view_models
from outbound_transfer.ui.filters import CHOICES, IN_FLIGHT, REFRESH_SECONDS, WINDOWS, Filter
from outbound_transfer.ui.queries import Row, TaskKey, row_position
from outbound_transfer.ui.rendering import render_page
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from outbound_transfer.warehouse.tables import DELIVERIES

#: Seconds to wait for DuckDB's file: less than a page waits, so that the page can show the error.
_LOCK_TIMEOUT: Final = 2.0


class NotConfigured(Exception):
    """No ledger is configured. The message says how to configure one."""


def deliveries_page(wanted: Filter, readable: Collection[str], now: datetime) -> Response:
    """Render the page of all deliveries: see :func:`.queries.overview`.

    :raises NotConfigured: no ledger is configured.
    """
    config = _load_config()
    warehouse = open_ledger(config, _LOCK_TIMEOUT)
    found = queries.overview(warehouse, wanted, readable, now, shows_recipients=not config.recipients.is_none)
    web_urls = _web_urls(found.deliveries)
    place = f"the database of connection '{clean(config.conn_id)}'"
    return render_page(
        "deliveries.html",
        now=now,
        wanted=wanted,
        refresh=REFRESH_SECONDS if wanted.refresh else 0,
        windows=WINDOWS,
        choices=CHOICES,
        in_flight=IN_FLIGHT,
        has_ledger=DELIVERIES in found.tables,
        ledger=place if config.conn_id else f"the file {LOCAL_FILE} in AIRFLOW_HOME",
        local_file="" if config.conn_id else LOCAL_FILE,
        deliveries=[view_models.show_delivery(row, now, web_urls, found.recipients) for row in found.deliveries],
        older=row_position(found.deliveries[-1]) if found.has_older else None,
        outcomes=view_models.OUTCOMES,
        totals=view_models.totals(found.outcomes),
        feeds=[view_models.show_feed(row, now) for row in found.feeds],
    )


def task_page(task: TaskKey, now: datetime) -> Response:
    """Render the deliveries of one task instance: see :func:`.queries.task_deliveries`.

    :raises NotConfigured: no ledger is configured.
    """
    config = _load_config()
    warehouse = open_ledger(config, _LOCK_TIMEOUT)
    found = queries.task_deliveries(warehouse, task, shows_recipients=not config.recipients.is_none)
    web_urls = _web_urls(found.deliveries)
    return render_page(
        "task.html",
        now=now,
        refresh=0,
        has_ledger=DELIVERIES in found.tables,
        deliveries=[
            view_models.show_delivery(row, now, web_urls, found.recipients, max_subject_length=2_000)
            for row in found.deliveries
        ],
    )


def _load_config() -> LedgerConfig:
    if config := load_config():
        return config
    raise NotConfigured(
        "Set ledger_conn_id in the section [outbound_transfer] of Airflow's configuration, or "
        "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID in its environment, to a connection of your SQL "
        "warehouse, for workers, triggerer and API server alike. The operators then record every delivery "
        "there, and this page shows them. Without it, deliveries are shown only where all of Airflow runs on "
        "one machine: with its SQLite database airflow.db in AIRFLOW_HOME and the LocalExecutor, and unless "
        "default_ledger is False."
    )


def _web_urls(rows: Iterable[Row]) -> dict[str, str]:
    return {conn_id: find_web_url(conn_id) for conn_id in {str(row["conn_id"]) for row in rows}}
