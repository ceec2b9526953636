"""The rows about persons in objects."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.objects import ERASED_FOLDER, ObjectEventDestination, list_accounts
from outbound_transfer.protocol.personal_data import only
from outbound_transfer.warehouse.privacy import PersonalData, read_privacy, without_others
from outbound_transfer.warehouse.timestamps import format_timestamp

#: Table of the rows of objects in counts.
_ROWS: Final = "events"


class ObjectPersonalData(PersonalData):
    """The rows about persons in a folder of objects, of all accounts. A storage with versions keeps the old ones."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.location = store, store.root

    def _feeds(self) -> list[ObjectEventDestination]:
        return [ObjectEventDestination(self._store, account) for account in list_accounts(self._store)]

    def _redact(self, address: str, *, is_rehearsal: bool) -> list[dict[str, Any]]:
        return [
            row
            for feed in self._feeds()
            for cursor in feed.list_pages()[0]
            for row in feed.redact_page(cursor, only(address), is_rehearsal=is_rehearsal)
        ]

    def find(self, address: str) -> dict[str, list[dict[str, Any]]]:
        rows = self._redact(address, is_rehearsal=True)
        return {_ROWS: [without_others(row, address) for row in rows]} if rows else {}

    def erase(self, address: str) -> dict[str, int]:
        with suppress(FileExistsError):
            self._store.create(f"{ERASED_FOLDER}/{read_privacy().digest(address)}", b"{}")
        count = len(self._redact(address, is_rehearsal=False))
        return {_ROWS: count} if count else {}

    def delete_before(self, time: datetime, *, is_rehearsal: bool) -> dict[str, int]:
        text = format_timestamp(time)
        count = sum(feed.delete_before(text, is_rehearsal=is_rehearsal) for feed in self._feeds())
        return {_ROWS: count} if count else {}
