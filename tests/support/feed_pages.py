"""Pages of an invented feed, and what of them is in a warehouse."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import duckdb
import psycopg.rows
import psycopg2.extras

from outbound_transfer.client.events import Page, read_page
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import Tables
from support.warehouses import Hook


def tables(hook: Any, feed: str = "acme", **options: Any) -> EventStore:
    return EventStore(Tables(hook, **options), feed)


def page(cursor: int, *lines: bytes, next_cursor: int | None = None, has_more: bool = False) -> Page:
    headers = {
        "content-type": "application/x-ndjson",
        "x-next-cursor": str(cursor + len(lines) if next_cursor is None else next_cursor),
        "x-has-more": str(has_more).lower(),
    }
    return read_page(headers, b"".join(line + b"\n" for line in lines), cursor=cursor)


def event(number: int, **fields: Any) -> bytes:
    base = {"event_id": f"e{number}", "type": "transfer_sent", "timestamp": "2026-01-01T00:00:00Z", "data": {}}
    return json.dumps(base | fields).encode()


def events(start: int, end: int) -> tuple[bytes, ...]:
    return tuple(event(number) for number in range(start, end))


IDS = "SELECT event_id FROM outbound_transfer_events ORDER BY cursor_from, line_number"
CURSOR = 'SELECT "cursor" FROM outbound_transfer_feed_cursor'
TABLE_NAMES = ("events", "feed_cursor", "feed_polls", "rejected_lines")
REJECTED = "SELECT raw FROM outbound_transfer_rejected_lines ORDER BY cursor_from, line_number"


_MISSING = psycopg.errors.UndefinedTable, psycopg2.errors.UndefinedTable
_NO_TABLE = (sqlite3.OperationalError, duckdb.CatalogException, *_MISSING)


def state_of(hook: Hook) -> tuple[int, list[str], int]:
    """Cursor, event ids and the count of rejected lines; nothing where the tables are not there."""
    try:
        ((cursor,),) = hook.fetch(CURSOR) or [(0,)]
        return cursor, [i for (i,) in hook.fetch(IDS)], len(hook.fetch(REJECTED))
    except _NO_TABLE:
        return 0, [], 0


PAGES = {0: page(0, *events(0, 3), b"junk"), 4: page(4, *events(3, 5))}


def drop_tables(hook: Hook) -> None:
    for table in (*TABLE_NAMES, "accounts"):
        hook.run(f"DROP TABLE IF EXISTS outbound_transfer_{table}")
