"""Where deliveries are recorded: how a test configures it, and fills it with rows that nobody has delivered.

What these rows look like is this module's alone: tests read them by the page, the commands and the metrics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from outbound_transfer.store.config import DEFAULT_PREFIX
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.tables import DELIVERIES as DELIVERIES
from outbound_transfer.store.tables import Tables
from support import sample_rows
from support.warehouses import Hook

#: The file in AIRFLOW_HOME that has them where Airflow is one machine and nothing is configured.
LOCAL_FILE = "outbound_transfer.db"

#: The setting that names the connection, as pages and commands tell it.
SETTING = "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID"

ACCOUNT, CONN_ID = sample_rows.ACCOUNT, sample_rows.CONN_ID


def settings(conn_id: str) -> dict[str, str]:
    """The environment of an Airflow that keeps deliveries in a connection's database."""
    return {SETTING: conn_id}


def use(monkeypatch: pytest.MonkeyPatch, conn_id: str) -> None:
    """Keep deliveries in the database of a connection."""
    monkeypatch.setenv(SETTING, conn_id)


def use_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep deliveries where they are if nothing is configured."""
    monkeypatch.delenv(SETTING, raising=False)


@dataclass
class DeliveriesTable:
    """The table of deliveries in one database.

    :ivar hook: opens it; tests read it with ``fetch``.
    """

    hook: Hook
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _rows: Deliveries = field(init=False)

    def __post_init__(self) -> None:
        self._rows = Deliveries(self.hook, prefix=DEFAULT_PREFIX)

    def make(self) -> None:
        """Make the table, with nothing in it."""
        self._rows.read("")

    def add(self, transfer_id: str, **values: Any) -> None:
        """Add a delivery: pending, made an hour ago, unless the values, of documented columns, say otherwise."""
        sample_rows.add(self._rows, [sample_rows.delivery(transfer_id, self.now(), **values)])

    def name_recipients(self, transfer_id: str, people: Sequence[Any]) -> None:
        """Name a delivery's recipients as its task and its waits have seen them."""
        table = self._rows.table
        update = sa.update(table).where(table.c.transfer_id == transfer_id).values(recipients=json.dumps(people))
        with self._rows.database.begin() as tx:
            tx.execute(update)

    def fill(self, count: int, **options: Any) -> None:
        """Add so many deliveries and a feed: :func:`.sample_rows.fill`."""
        sample_rows.fill(self._rows, count, self.now(), **options)
        warehouse = Tables(self.hook)
        sample_rows.make_tables(warehouse)
        sample_rows.add_feed(warehouse, self.now())

    def reject_lines(self, count: int) -> None:
        """Add so many rejected lines to the feed of :meth:`fill`."""
        sample_rows.reject_lines(Tables(self.hook), count, self.now())
