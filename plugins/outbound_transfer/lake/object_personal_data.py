"""The rows about persons in objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.objects import ObjectEventDestination, list_accounts
from outbound_transfer.lake.rows import erase_row
from outbound_transfer.store.personal_data import AddressSearch
from outbound_transfer.warehouse.personal_data import LAKE_ROWS, PersonalData


class ObjectPersonalData(PersonalData):
    """The rows about persons in a folder of objects, of all accounts."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.location = store, store.root

    def _feeds(self) -> Iterator[ObjectEventDestination]:
        return (ObjectEventDestination(self._store, account) for account in list_accounts(self._store))

    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        pages = (feed.read_rows(cursor) for feed in self._feeds() for cursor in feed.list_pages()[0])
        found = [row for page in pages if page for row in page[1] if erase_row(row, search)]
        return {LAKE_ROWS: found} if found else {}

    def erase(self, search: AddressSearch) -> dict[str, int]:
        count = 0
        for feed in self._feeds():
            with feed.erasing():
                count += sum(feed.erase(cursor, search) for cursor in feed.list_pages()[0])
        return {LAKE_ROWS: count} if count else {}
