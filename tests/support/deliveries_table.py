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

from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX
from outbound_transfer.warehouse.schema import LEDGER, ensure_schema
from outbound_transfer.warehouse.tables import DELIVERIES, DELIVERY_RECIPIENTS, RECIPIENTS, TRANSFERS
from support import sample_rows
from support.warehouses import Hook

#: The file in AIRFLOW_HOME that has them where Airflow is one machine and nothing is configured.
LOCAL_FILE = "outbound_transfer.db"

#: What Airflow's configuration is asked for.
SETTINGS = ("LEDGER_CONN_ID", "DELIVERIES_CONN_ID", "DEFAULT_LEDGER")

#: The setting that names the connection, as pages and commands tell it.
SETTING = "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID"

ACCOUNT, CONN_ID = sample_rows.ACCOUNT, sample_rows.CONN_ID


def settings(conn_id: str) -> dict[str, str]:
    """The environment of an Airflow that keeps in a connection's database whatever deliveries and waits keep."""
    return {SETTING: conn_id, "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": conn_id}


def use(monkeypatch: pytest.MonkeyPatch, conn_id: str, *, for_all: bool = False) -> None:
    """Record deliveries in the database of a connection.

    :param for_all: and keep there whatever else deliveries and waits keep.
    """
    for name, value in settings(conn_id).items() if for_all else [(SETTING, conn_id)]:
        monkeypatch.setenv(name, value)


def use_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record deliveries where they are if nothing is configured."""
    for name in SETTINGS:
        monkeypatch.delenv(f"AIRFLOW__OUTBOUND_TRANSFER__{name}", raising=False)


@dataclass
class DeliveriesTable:
    """The tables of deliveries in one database.

    :ivar hook: opens it; tests read it with ``fetch``.
    """

    hook: Hook
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _warehouse: Warehouse = field(init=False)

    def __post_init__(self) -> None:
        self._warehouse = Warehouse(self.hook)

    def make(self, *, for_all: bool = False) -> None:
        """Make all tables, with nothing in them.

        :param for_all: also those of whatever else deliveries and waits keep.
        """
        sample_rows.make_tables(self._warehouse, self.now())
        if for_all:
            Deliveries(self.hook, prefix=DEFAULT_PREFIX).read("")

    def add(self, transfer_id: str, **values: Any) -> None:
        """Add a delivery: pending, made an hour ago, unless the values, of documented columns, say otherwise."""
        ensure_schema(self._warehouse, LEDGER, self.now())
        sample_rows.insert(self._warehouse, DELIVERIES, [sample_rows.delivery(transfer_id, self.now(), **values)])

    def name_recipients(
        self, transfer_id: str, people: Sequence[Any], *, account: str = ACCOUNT, at: datetime | None = None
    ) -> None:
        """Add a delivery's recipients as its task and its waits have seen them."""
        ensure_schema(self._warehouse, LEDGER, self.now())
        row = (account, transfer_id, json.dumps(people), sample_rows.format_timestamp(at or self.now()))
        sample_rows.insert(self._warehouse, DELIVERY_RECIPIENTS, [row])

    def list_transfer(self, transfer_id: str, status: str, seen_at: datetime, picked_up: int = 0) -> None:
        """Add a transfer as a listing has it."""
        sample_rows.insert(self._warehouse, TRANSFERS, [sample_rows.transfer(transfer_id, status, seen_at, picked_up)])

    def list_recipient(
        self, transfer_id: str, position: int, email: str, name: str = "", picked_up_at: datetime | None = None
    ) -> None:
        """Add a recipient as a listing has it."""
        at = picked_up_at and sample_rows.format_timestamp(picked_up_at)
        sample_rows.insert(self._warehouse, RECIPIENTS, [(ACCOUNT, transfer_id, position, email, name, at)])

    def fill(self, count: int, **options: Any) -> None:
        """Add so many deliveries, their transfers and a feed: :func:`.sample_rows.fill`."""
        sample_rows.fill(self._warehouse, count, self.now(), **options)
