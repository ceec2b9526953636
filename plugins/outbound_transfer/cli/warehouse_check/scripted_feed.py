"""A feed of four pages, and what a warehouse may hold of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from outbound_transfer.protocol.events import Page, read_page
from outbound_transfer.protocol.messages import Response
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.errors import CursorMoved, WarehouseError
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.schema import FEED
from outbound_transfer.warehouse.tables import SCHEMA_VERSION

_ACCOUNT: Final = "warehouse-check"

#: How often a reader of several starts again after an error of the database, as the retries of a task do.
_MAX_RETRIES: Final = 20


@dataclass(frozen=True)
class Contents:
    """What a warehouse has of the feed: cursors, ids of events, places of rejected lines, and moves of the cursor."""

    cursors: tuple[int, ...]
    events: tuple[str, ...]
    rejected: tuple[tuple[int, int], ...]
    polls: tuple[tuple[int, int], ...]

    @property
    def is_whole(self) -> bool:
        """Whether it is nothing, or the first pages, whole and once."""
        return self in _STATES

    @property
    def is_complete(self) -> bool:
        """Whether it is all pages, once."""
        return self == _STATES[-1]

    def __str__(self) -> str:
        cursors = ", ".join(map(str, self.cursors)) or "none"
        return (
            f"cursor {cursors}; {len(self.events)} events; {len(self.rejected)} rejected lines; {len(self.polls)} polls"
        )


def _event(event_id: str) -> bytes:
    return json.dumps({"event_id": event_id, "type": "transfer_sent", "data": {"id": event_id}}).encode()


def _page(cursor: int, *lines: bytes) -> Page:
    headers = {
        "content-type": "application/x-ndjson",
        "x-next-cursor": str(cursor + len(lines)),
        "x-has-more": "true",
    }
    return read_page(Response(200, headers, b"".join(line + b"\n" for line in lines)), cursor=cursor)


#: With an id twice in a page and one twice across pages, lines that are rejected, and ids that are almost the same.
_PAGES: Final = {
    page.cursor: page
    for page in (
        _page(0, _event("1"), _event("2"), b"not an event", _event("2"), _event("\U0001f389")),
        _page(5, _event("\U0001f389"), _event("e"), _event("E"), _event("\u00e9"), _event("e ")),
        _page(10, b"not an event either", _event("6")),
        _page(12, *(_event(f"last {number}") for number in range(50))),
    )
}


def _states() -> Iterator[Contents]:
    found = Contents((), (), (), ())
    yield found
    yield Contents((0,), (), (), ())
    for page in _PAGES.values():
        found = Contents(
            (page.next_cursor,),
            tuple(sorted({*found.events, *(event.event_id for event in page.events)})),
            (*found.rejected, *((page.cursor, line.line_number) for line in page.rejected)),
            (*found.polls, (page.cursor, page.next_cursor)),
        )
        yield found


_STATES: Final = tuple(_states())


def ingest(warehouse: Warehouse) -> None:
    """Load the pages that are not loaded yet, as a task does."""
    store = EventStore(warehouse, _ACCOUNT)
    cursor = store.get_or_create_cursor()
    while cursor in _PAGES:
        store.load_page(_PAGES[cursor])
        cursor = _PAGES[cursor].next_cursor


def ingest_beside_others(warehouse: Warehouse) -> None:
    """Load the pages that no other reader loads first; start again after an error, as the retries of a task do."""
    for left in range(_MAX_RETRIES, -1, -1):
        try:
            _ingest_in_turn(warehouse)
            return
        except Exception as error:
            if not left or isinstance(error, WarehouseError):
                raise
        time.sleep(0.1)


def _ingest_in_turn(warehouse: Warehouse) -> None:
    while True:
        try:
            ingest(warehouse)
            return
        except CursorMoved:  # another reader was faster: go on behind its page
            continue


def read_contents(warehouse: Warehouse) -> Contents:
    """Return what the warehouse has of the feed; nothing if tables are missing."""
    if not all(_exists(warehouse, table) for table in FEED.tables):
        return _STATES[0]
    return Contents(
        tuple(row[0] for row in _rows(warehouse, "SELECT [cursor] FROM {feed_cursor}")),
        tuple(sorted(str(row[0]) for row in _rows(warehouse, "SELECT [event_id] FROM {events}"))),
        tuple(sorted((start, line) for start, line in _rows(warehouse, _REJECTED))),
        tuple(sorted((start, to) for start, to in _rows(warehouse, _POLLS))),
    )


_REJECTED: Final = "SELECT [cursor_from], [line_number] FROM {rejected_lines}"
_POLLS: Final = "SELECT [cursor_from], [cursor_to] FROM {feed_polls}"


def _rows(warehouse: Warehouse, query: str) -> list[tuple[Any, ...]]:
    with warehouse.read() as tx:
        return fetch_all(warehouse.run(tx, query))


def _exists(warehouse: Warehouse, table: Any) -> bool:
    with warehouse.read() as tx:
        return warehouse.table_exists(tx, table)


def drop_tables(warehouse: Warehouse) -> None:
    """Drop the tables of the check."""
    for table in (*FEED.tables, SCHEMA_VERSION):
        if _exists(warehouse, table):
            with warehouse.transaction() as tx:
                warehouse.run(tx, f"DROP TABLE {{{table.name}}}")
