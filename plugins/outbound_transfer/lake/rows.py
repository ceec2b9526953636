"""Rows of the lake: a page as an Arrow table, events and rejected lines in one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from outbound_transfer.client.events import Event, Page, RejectedLine
from outbound_transfer.store.event_content import content_digest
from outbound_transfer.store.tables import PERSONAL_DATA
from outbound_transfer.store.values import parse_event_timestamp

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def field(name: str, type_: pa.DataType, comment: str, *, null: bool = True, personal: bool = False) -> pa.Field:
    """Return a column with its description, by the name that pyiceberg reads."""
    comment = f"{comment}. {PERSONAL_DATA}" if personal else comment
    return pa.field(name, type_, nullable=null, metadata={"doc": comment})


#: What :data:`outbound_transfer.store.tables.EVENTS` and ``REJECTED_LINES`` have in a SQL database.
SCHEMA: Final = pa.schema(
    [
        field("account", pa.string(), "the account whose feed it is: its site address", null=False),
        field("event_id", pa.string(), "as received, unique within one account; NULL for a rejected line"),
        field("type", pa.string(), "`transfer_sent`, `file_downloaded` or any other type; NULL for a rejected line"),
        field("timestamp", pa.string(), "as received; NULL if the event has none"),
        field("occurred_at", _TIMESTAMP, "`timestamp` in UTC; NULL if it is not an ISO 8601 date and time"),
        field(
            "data",
            pa.string(),
            "the payload as JSON text; NULL if the event has none or `raw` contains it",
            personal=True,
        ),
        field("extra_fields", pa.string(), "undocumented fields of the event as one JSON object", personal=True),
        field(
            "raw", pa.string(), "the whole line as received, if a JSON parser might reject or change it", personal=True
        ),
        field(
            "rejected_line",
            pa.binary(),
            "the bytes of a line that is not a valid event; NULL for an event",
            personal=True,
        ),
        field("rejected_reason", pa.string(), "why the line was rejected; NULL for an event", personal=True),
        field("cursor_from", pa.int64(), "the cursor of the request that returned the page", null=False),
        field("line_number", pa.int64(), "the line within that page, from 1", null=False),
        field("loaded_at", _TIMESTAMP, "when the page was loaded", null=False),
    ]
)


def page_table(account: str, page: Page, loaded_at: datetime) -> pa.Table:
    """Return a page as a table of :data:`SCHEMA`, in the order of its lines, each event once.

    :param loaded_at: with a time zone.
    """
    lines: list[Event | RejectedLine] = [*distinct_events(page), *page.rejected]
    rows = sorted(lines, key=lambda each: each.line_number)
    columns = zip(*(_row(account, page.cursor, each, loaded_at) for each in rows), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)] if rows else None
    return pa.Table.from_arrays(arrays, schema=SCHEMA) if arrays else SCHEMA.empty_table()


def distinct_events(page: Page) -> Iterator[Event]:
    """Yield a page's events, each once: no key of a table refuses the second. Others of one id are not the same."""
    seen: dict[str, list[Event]] = {}
    for event in page.events:
        of_id = seen.setdefault(event.event_id, [])
        if not of_id or content_digest(event) not in map(content_digest, of_id):
            of_id.append(event)
            yield event


def _row(account: str, cursor_from: int, line: Event | RejectedLine, loaded_at: datetime) -> tuple[Any, ...]:
    if isinstance(line, RejectedLine):
        values: tuple[Any, ...] = (*[None] * 7, line.raw, line.reason)
    else:
        occurred_at = parse_event_timestamp(line.timestamp)
        occurred = None if occurred_at is None else datetime.fromisoformat(occurred_at)
        content = (None, None, line.raw) if line.raw is not None else (line.data, line.extra_fields, None)
        values = (line.event_id, line.type, line.timestamp, occurred, *content, None, None)
    return (account, *values, cursor_from, line.line_number, loaded_at)
