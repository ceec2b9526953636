"""Find a person in the table of deliveries, and erase them from rows that can no longer be sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from outbound_transfer.client.models import DRAFT
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import Memory
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.personal_data import ERASED, AddressSearch, erase_list
from outbound_transfer.store.persons import PersonalData

TABLE = "deliveries"


class DeliveriesPersonalData(PersonalData):
    """The rows of deliveries that have an address.

    :ivar unfinished: transfers whose rows the last erasure has left as they are: they may still be sent, and are then
        compared with what was meant.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries, self.location = deliveries, deliveries.name

    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        rows = self._find(search) if self._deliveries.is_made() else []
        return {TABLE: rows} if rows else {}

    def erase(self, search: AddressSearch) -> dict[str, int]:
        rows = self.find(search).get(TABLE, [])
        self.unfinished = [row["transfer_id"] for row in rows if not self._erase(row, search)]
        return {TABLE: count} if (count := len(rows) - len(self.unfinished)) else {}

    def _find(self, search: AddressSearch) -> list[dict[str, Any]]:
        table = self._deliveries.table
        personal = [column.name for column in table.columns if column.info.get("personal")]
        with self._deliveries.database.begin() as tx:
            rows = tx.execute(sa.select(table).execution_options(yield_per=100)).mappings()
            return [dict(row) for row in rows if any(search.matches(row[name]) for name in personal)]

    def _erase(self, row: Mapping[str, Any], search: AddressSearch) -> bool:
        """Erase an address from a row that can no longer be sent; return False if it can, or has changed."""
        is_sent = row["phase"] == Phase.SENDING and row["status"] not in ("", DRAFT)
        if not is_sent and row["phase"] != Phase.EMPTY:
            return False
        memory = msgspec.json.decode(row["memory"], type=Memory).erased()  # its digests tell a known address
        changes = {
            "version": row["version"] + 1,
            "memory": msgspec.json.encode(memory).decode(),
            "recipients": json.dumps(erase_list(search, json.loads(row["recipients"])), ensure_ascii=False),
            **{name: ERASED for name in ("subject", "error") if search.matches(row[name])},
        }
        table = self._deliveries.table
        is_row = (table.c.delivery == row["delivery"]) & (table.c.version == row["version"])
        with self._deliveries.database.begin() as tx:
            return tx.execute(sa.update(table).where(is_row).values(changes)).rowcount == 1
