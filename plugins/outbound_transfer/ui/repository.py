"""Reads deliveries from the warehouse of Airflow's configuration. Calls block, so they run in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.ledger.config import load_config
from outbound_transfer.ui import queries
from outbound_transfer.ui.cache import ResultCache
from outbound_transfer.ui.filters import Filter
from outbound_transfer.ui.rows import DeliveryRow
from outbound_transfer.warehouse.connection import open_warehouse
from outbound_transfer.warehouse.database import Warehouse

#: Seconds to wait for DuckDB's file: less than a page waits, so that the page can show the error.
_LOCK_TIMEOUT = 2.0


class NotConfigured(Exception):
    """No ledger is configured. The message says how to configure one."""


@dataclass(frozen=True)
class QueryResult:
    """Rows, with the URL of the service's web application by connection id."""

    rows: Any
    web_urls: dict[str, str]


@dataclass(frozen=True)
class DeliveryRepository:
    """Reads the deliveries of a warehouse.

    :ivar cache: caches the counts behind the charts.
    """

    warehouse: Warehouse
    cache: ResultCache

    @classmethod
    def configured(cls, cache: ResultCache) -> DeliveryRepository:
        """Return the repository of Airflow's configuration.

        :raises NotConfigured: none is configured.
        """
        config = load_config()
        if config is None:
            raise NotConfigured(
                "Set ledger_conn_id in the section [outbound_transfer] of Airflow's configuration, or "
                "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID in its environment, to a connection of your SQL "
                "warehouse. The operators then record every delivery there, and this page shows them."
            )
        return cls(
            open_warehouse(config.conn_id, prefix=config.prefix, schema=config.schema, timeout=_LOCK_TIMEOUT), cache
        )

    def overview(self, wanted: Filter, readable: Collection[str], now: datetime) -> QueryResult:
        """Read the page of all deliveries: see :func:`.queries.overview`."""
        rows = queries.overview(self.warehouse, wanted, readable, now, self.cache)
        return QueryResult(rows, _web_urls(rows.deliveries))

    def for_task(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> QueryResult:
        """Read the deliveries of one task instance: see :func:`.queries.task_deliveries`."""
        rows = queries.task_deliveries(self.warehouse, dag_id, run_id, task_id, map_index)
        return QueryResult(rows, _web_urls(rows.deliveries))


def _web_urls(rows: Iterable[DeliveryRow]) -> dict[str, str]:
    return {conn_id: _web_url(conn_id) for conn_id in {str(row.conn_id) for row in rows}}


def _web_url(conn_id: str) -> str:
    """Return the connection's ``web_url``, or its address. Empty if the connection does not exist."""
    with suppress(Exception):  # any secrets backend may fail in its own way; the page works without links
        settings = settings_from_connection(BaseHook.get_connection(conn_id))
        return settings.web_url or settings.base_url
    return ""
