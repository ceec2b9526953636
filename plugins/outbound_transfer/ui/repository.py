"""Reads deliveries from the warehouse of Airflow's configuration. Calls block, so they run in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.airflow_compat.xcoms import read_xcom
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.ledger.config import load_config, open_ledger
from outbound_transfer.links.transfer import AWAITED_KEY
from outbound_transfer.ui import queries
from outbound_transfer.ui.cache import ResultCache
from outbound_transfer.ui.filters import Filter
from outbound_transfer.ui.rows import DeliveryRow
from outbound_transfer.warehouse.database import Warehouse

#: Seconds to wait for DuckDB's file: less than a page waits, so that the page can show the error.
_LOCK_TIMEOUT = 2.0


class NotConfigured(Exception):
    """No ledger is configured. The message says how to configure one."""


@dataclass(frozen=True)
class QueryResult:
    """Rows, with the URL of the service's web application by connection id.

    :ivar ledger_conn_id: the ledger's connection; "" if it is a file of this machine, which nobody has configured.
    """

    rows: Any
    web_urls: dict[str, str]
    ledger_conn_id: str


@dataclass(frozen=True)
class DeliveryRepository:
    """Reads the deliveries of a warehouse.

    :ivar cache: caches the counts behind the charts.
    :ivar conn_id: that of the ledger; "" if it is a file.
    :ivar shows_recipients: whether recipients are read, and not only their number.
    """

    warehouse: Warehouse
    cache: ResultCache
    conn_id: str = ""
    shows_recipients: bool = True

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
                "warehouse, for workers, triggerer and API server alike. The operators then record every delivery "
                "there, and this page shows them. Without it, deliveries are shown only where all of Airflow runs on "
                "one machine: with its SQLite database airflow.db in AIRFLOW_HOME and the LocalExecutor, and unless "
                "default_ledger is False."
            )
        return cls(open_ledger(config, _LOCK_TIMEOUT), cache, config.conn_id, config.shows_recipients)

    def overview(self, wanted: Filter, readable: Collection[str], now: datetime) -> QueryResult:
        """Read the page of all deliveries: see :func:`.queries.overview`."""
        rows = queries.overview(
            self.warehouse, wanted, readable, now, self.cache, shows_recipients=self.shows_recipients
        )
        return QueryResult(rows, _web_urls(rows.deliveries), self.conn_id)

    def for_task(self, task: queries.TaskKey, readable: Collection[str]) -> QueryResult:
        """Read the deliveries of one task instance: see :func:`.queries.task_deliveries`."""
        rows = queries.task_deliveries(
            self.warehouse, task, readable, _find_awaited, shows_recipients=self.shows_recipients
        )
        return QueryResult(rows, _web_urls(rows.deliveries), self.conn_id)


def _find_awaited(task: queries.TaskKey) -> queries.AwaitedTransfer | None:
    """Return the transfer that a sensor waits for, as it has told Airflow; None if the task is no such sensor."""
    found = read_xcom(AWAITED_KEY, **task._asdict())
    awaited = found if isinstance(found, dict) else {}
    account, transfer_id = awaited.get("account"), awaited.get("transfer_id")
    if isinstance(account, str) and isinstance(transfer_id, str) and "\0" not in account + transfer_id:
        return queries.AwaitedTransfer(account, transfer_id)
    return None


def _web_urls(rows: Iterable[DeliveryRow]) -> dict[str, str]:
    return {conn_id: _web_url(conn_id) for conn_id in {str(row.conn_id) for row in rows}}


def _web_url(conn_id: str) -> str:
    """Return the connection's ``web_url``, or its address. Empty if the connection does not exist."""
    with suppress(Exception):  # any secrets backend may fail in its own way; the page works without links
        settings = settings_from_connection(BaseHook.get_connection(conn_id))
        return settings.web_url or settings.base_url
    return ""
