"""Find a person in the table of deliveries, and erase them from rows that can no longer be sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from outbound_transfer.client.models import DRAFT
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import Memory
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.personal_data import AddressSearch, PersonalData, Row
from outbound_transfer.store.rows import ERASED


def personal_data_of_deliveries(deliveries: Deliveries) -> PersonalData:
    """Return the rows about persons. Those that may still be sent, and compared then, are not erased."""
    return PersonalData(deliveries.name, deliveries.database, {"deliveries": deliveries.table}, _erased)


def without_person(memory: Memory) -> Memory:
    """Return it without digests and files. The twin's stays: an address is not tested with it alone."""
    entries = {who: replace(entry, files={}) for who, entry in memory.entries.items()}
    changes: dict[str, Any] = {"item": memory.twin(), "approval": memory.approval and replace(memory.approval, by="")}
    return replace(memory, input={}, identity="", chosen=(), entries=entries, **changes)


def _erased(_: str, row: Row, search: AddressSearch) -> dict[str, Any] | None:
    is_sent = row["phase"] == Phase.SENDING and row["status"] not in ("", DRAFT)
    if not is_sent and row["phase"] != Phase.EMPTY:
        return None
    memory = without_person(msgspec.json.decode(row["memory"], type=Memory))  # its digests tell a known address
    people = [
        {**each, "email": ERASED, "name": ERASED} if search.matches(each) else each
        for each in json.loads(row["recipients"])
    ]
    return {
        "version": row["version"] + 1,
        "memory": msgspec.json.encode(memory).decode(),
        "recipients": json.dumps(people, ensure_ascii=False),
        **{name: ERASED for name in ("subject", "error") if search.matches(row[name])},
    }
