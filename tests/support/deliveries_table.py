"""Where deliveries are recorded: how a test configures it, and fills it with rows that nobody has delivered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from outbound_transfer.delivery.attempt import TaskTry
from outbound_transfer.delivery.row import Entry, Row
from outbound_transfer.files.attached import Held
from outbound_transfer.store.config import DEFAULT_PREFIX
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.tables import DELIVERIES as DELIVERIES
from outbound_transfer.store.tables import Tables
from support import sample_rows
from support.warehouses import Hook

LOCAL_FILE = "outbound_transfer.db"

SETTING = "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID"

ACCOUNT, CONN_ID = sample_rows.ACCOUNT, sample_rows.CONN_ID


def settings(conn_id: str) -> dict[str, str]:
    return {SETTING: conn_id}


def use(monkeypatch: pytest.MonkeyPatch, conn_id: str) -> None:
    monkeypatch.setenv(SETTING, conn_id)


def use_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)


@dataclass
class DeliveriesTable:
    hook: Hook
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _rows: Deliveries = field(init=False)

    def __post_init__(self) -> None:
        self._rows = Deliveries(self.hook, prefix=DEFAULT_PREFIX)

    def make(self) -> None:
        self._rows.read("")

    def add(self, transfer_id: str, **values: Any) -> None:
        """Add a delivery: pending, made an hour ago, unless the values, of documented columns, say otherwise."""
        sample_rows.add(self._rows, [sample_rows.delivery(transfer_id, self.now(), **values)])

    def name_recipients(self, transfer_id: str, people: Sequence[Any]) -> None:
        table = self._rows.table
        update = sa.update(table).where(table.c.transfer_id == transfer_id).values(recipients=json.dumps(people))
        with self._rows.database.begin() as tx:
            tx.execute(update)

    def fill(self, count: int, **options: Any) -> None:
        sample_rows.fill(self._rows, count, self.now(), **options)
        warehouse = Tables(self.hook)
        sample_rows.make_tables(warehouse)
        sample_rows.add_feed(warehouse, self.now())

    def reject_lines(self, count: int) -> None:
        sample_rows.reject_lines(Tables(self.hook), count, self.now())


class ManyFiles:
    """The row of a delivery with so many files, which :meth:`save` stores once more."""

    def __init__(self, hook: Hook, files: int) -> None:
        self._deliveries = Deliveries(hook, prefix="outbound_transfer_")
        self._row = Row.of_task(self._deliveries, ("dag", f"with {files}", "task", -1))
        self._row.claim(TaskTry("dag", f"with {files}", "task", -1, 1, "1"))
        self._held = {f"report_{n:05}.csv": Held(f"fl_{n:024}", n, "x" * 43, "f" * 16) for n in range(files)}

    def save(self) -> None:
        self._row.save(entries={"": Entry(self._row.memory.claim, False, self._held)})

    def size(self) -> int:
        return len(self._deliveries.read(self._row.key)[1].encode())
