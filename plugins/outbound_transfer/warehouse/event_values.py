"""The texts in the events that have landed lately: any of them may be the id of a transfer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.schema import FEED, is_current

#: Maximum number of characters of a text that may be an id.
MAX_ID_LENGTH: Final = 200

#: Maximum number of events that one call reads; the feed's pages have as many (service-api.md, R42).
MAX_EVENTS: Final = 1_000

#: Maximum number of characters of an event that is read, of all that one call reads, and of the values in these.
MAX_EVENT_LENGTH: Final = 10_000
MAX_LENGTH: Final = 2_000_000
MAX_VALUES: Final = 50_000

#: That a transfer was sent says nothing about its end.
_NEW_EVENTS: Final = (
    "SELECT COALESCE([raw], CAST([data] AS TEXT)) FROM {events} WHERE [account] = ? AND [cursor_from] >= ? "
    "AND [cursor_from] < ? AND [type] <> 'transfer_sent' AND length(COALESCE([raw], CAST([data] AS TEXT))) <= ? "
    "LIMIT ?"
)


class EventValues:
    """Reads what an account's feed has loaded, page by page.

    A page and the cursor after it are stored in one transaction, so nothing lands behind a cursor that was read.
    """

    def __init__(self, account: str) -> None:
        self._account = account
        self._cursor: int | None = None

    def read_new(self, warehouse: Warehouse) -> set[str] | None:
        """Return the texts in the events since the last call; none at the first call or after the cursor was set back.

        :return: None if no events land in this database, or too many to read them all.
        """
        if not warehouse.dialect.uses_indexes:
            return None
        with warehouse.read() as tx:
            if not is_current(warehouse, tx, FEED):
                return None
            query = warehouse.render("SELECT [cursor] FROM {feed_cursor} WHERE [account] = ?")
            cursor = scalar(tx, query, (self._account,))
            before, rows = self._cursor, []
            if before is not None and cursor is not None and cursor > before:
                limits = (self._account, before, cursor, MAX_EVENT_LENGTH, MAX_EVENTS + 1)
                rows = fetch_all(warehouse.run(tx, _NEW_EVENTS, limits))
        self._cursor = cursor
        if cursor is None or len(rows) > MAX_EVENTS or sum(len(stored) for (stored,) in rows) > MAX_LENGTH:
            return None
        values = {value for (stored,) in rows for value in _values(stored) if 0 < len(value) <= MAX_ID_LENGTH}
        return values if len(values) <= MAX_VALUES else None


def _values(stored: str) -> Iterator[str]:
    """Yield the texts in a payload, or in the whole event if that is stored as it was received."""
    nodes = [json.loads(stored, parse_int=str, parse_float=str)]  # an id may be a number, of any length
    while nodes:
        node = nodes.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
