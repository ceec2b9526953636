"""Rows of the lake: a page as an Arrow table, events and rejected lines in one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from outbound_transfer.client.events import Event, Page
from outbound_transfer.store.events import content_digest
from outbound_transfer.store.rows import read_event_time
from outbound_transfer.store.tables import EVENTS, REJECTED_LINES

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def _field(name: str, type_: pa.DataType, comment: str | None, *, null: bool = True) -> pa.Field:
    """Return a column with its description, by the name that pyiceberg reads."""
    return pa.field(name, type_, nullable=null, metadata={"doc": f"{comment}"})


_EVENT, _LINE = ({column.name: column.comment for column in table.columns} for table in (EVENTS, REJECTED_LINES))

#: The columns of both tables. JSON is text, and NULL where a line is rejected.
SCHEMA: Final = pa.schema(
    [
        _field("account", pa.string(), _EVENT["account"], null=False),
        _field("event_id", pa.string(), f"{_EVENT['event_id']}; NULL for a rejected line"),
        _field("type", pa.string(), f"{_EVENT['type']}; NULL for a rejected line"),
        _field("timestamp", pa.string(), _EVENT["timestamp"]),
        _field("occurred_at", _TIMESTAMP, _EVENT["occurred_at"]),
        _field("data", pa.string(), _EVENT["data"]),
        _field("extra_fields", pa.string(), _EVENT["extra_fields"]),
        _field("raw", pa.string(), _EVENT["raw"]),
        _field("rejected_line", pa.binary(), _LINE["raw"]),
        _field("rejected_reason", pa.string(), _LINE["reason"]),
        _field("cursor_from", pa.int64(), _EVENT["cursor_from"], null=False),
        _field("line_number", pa.int64(), _EVENT["line_number"], null=False),
        _field("loaded_at", _TIMESTAMP, _EVENT["loaded_at"], null=False),
    ]
)


def page_table(account: str, page: Page, loaded_at: datetime) -> pa.Table:
    """Return a page as a table of :data:`SCHEMA`, in the order of its lines, each event once.

    :param loaded_at: with a time zone.
    """
    shared = {"account": account, "cursor_from": page.cursor, "loaded_at": loaded_at}
    rows = [_event_row(each) | shared for each in _distinct_events(page)]
    for line in page.rejected:
        found = {"rejected_line": line.raw, "rejected_reason": line.reason, "line_number": line.line_number}
        rows.append(found | shared)
    return pa.Table.from_pylist(sorted(rows, key=lambda row: int(row["line_number"])), schema=SCHEMA)


def _distinct_events(page: Page) -> Iterator[Event]:
    """Yield a page's events, each once: no key of a table refuses the second. Others of one id are not the same."""
    seen: dict[str, list[Event]] = {}
    for event in page.events:
        of_id = seen.setdefault(event.event_id, [])
        if not of_id or content_digest(event) not in map(content_digest, of_id):
            of_id.append(event)
            yield event


def _event_row(event: Event) -> dict[str, Any]:
    content = {"data": event.data, "extra_fields": event.extra_fields} if event.raw is None else {"raw": event.raw}
    return content | {
        "event_id": event.event_id,
        "type": event.type,
        "timestamp": event.timestamp,
        "occurred_at": read_event_time(event.timestamp),
        "line_number": event.line_number,
    }
