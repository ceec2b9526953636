"""The warehouse that Airflow's configuration names, as the page reads it: in a thread, which may hang."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.sdk import BaseHook

from outbound_transfer.hooks.outbound_transfer import settings_of
from outbound_transfer.ledger.place import place
from outbound_transfer.transfers.common import warehouse_of
from outbound_transfer.ui import queries
from outbound_transfer.ui.filters import Filter
from outbound_transfer.ui.kept import Kept
from outbound_transfer.warehouse.database import Warehouse

#: Seconds to wait for DuckDB's file; less than a page waits, so that it can say what is the matter.
_PATIENCE = 2.0


class NotConfigured(Exception):
    """No ledger is set; the text says how to."""


@dataclass(frozen=True)
class Read:
    """What was read, with the web applications of the connections that occur."""

    rows: Any
    web: dict[str, str]


@dataclass(frozen=True)
class Ledger:
    """The warehouse, and the counts of it that are kept."""

    warehouse: Warehouse
    kept: Kept

    @classmethod
    def configured(cls, kept: Kept) -> Ledger:
        """The one of Airflow's configuration.

        :raises NotConfigured: there is none.
        """
        where = place()
        if where is None:
            raise NotConfigured(
                "Set ledger_conn_id in the section [outbound_transfer] of Airflow's configuration, or "
                "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID in its environment, to a connection of your SQL "
                "warehouse. The operators then record every delivery there, and this page shows them."
            )
        return cls(warehouse_of(where.conn_id, where.prefix, where.schema, patience=_PATIENCE), kept)

    def overview(self, wanted: Filter, readable: Collection[str], now: datetime) -> Read:
        """As :func:`.queries.overview`."""
        rows = queries.overview(self.warehouse, wanted, readable, now, self.kept)
        return Read(rows, _web(rows.deliveries))

    def of_task(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> Read:
        """As :func:`.queries.of_task`."""
        rows = queries.of_task(self.warehouse, dag_id, run_id, task_id, map_index)
        return Read(rows, _web(rows.deliveries))


def _web(rows: queries.Rows) -> dict[str, str]:
    return {conn_id: _web_application(conn_id) for conn_id in {str(row[2]) for row in rows}}


def _web_application(conn_id: str) -> str:
    """The connection's ``web_url``, or else its address; "" where there is no such connection any more."""
    with suppress(Exception):  # of whatever secrets backend there is; a link is the least of the page
        settings = settings_of(BaseHook.get_connection(conn_id))
        return settings.web_url or settings.base_url
    return ""
