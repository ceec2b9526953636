"""Rows of the lake: a page as an Arrow table, events and rejected lines in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from outbound_transfer.protocol.event_content import content_digest, erase_event
from outbound_transfer.protocol.events import Event, Page, RejectedLine
from outbound_transfer.protocol.personal_data import ERASED, AddressSearch, erased_line, read_erased_digest
from outbound_transfer.warehouse.tables import PERSONAL_DATA
from outbound_transfer.warehouse.timestamps import parse_event_timestamp

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def field(name: str, type_: pa.DataType, comment: str, *, null: bool = True, personal: bool = False) -> pa.Field:
    """Return a column with its description, by the name that pyiceberg reads."""
    comment = f"{comment}. {PERSONAL_DATA}" if personal else comment
    return pa.field(name, type_, nullable=null, metadata={"doc": comment})


#: What :data:`outbound_transfer.warehouse.tables.EVENTS` and ``REJECTED_LINES`` have in a SQL database.
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


_PERSONAL: Final = [each.name for each in SCHEMA if each.metadata[b"doc"].endswith(PERSONAL_DATA.encode())]


def page_table(account: str, page: Page, loaded_at: datetime, erased: Set[str] = frozenset()) -> pa.Table:
    """Return a page as a table of :data:`SCHEMA`, in the order of its lines, each event once.

    :param loaded_at: with a time zone.
    :param erased: digests of contents that were erased, and are not stored again.
    """
    lines: list[Event | RejectedLine] = [*distinct_events(page), *page.rejected]
    lines = [_without_erased(each, erased) for each in lines] if erased else lines
    rows = sorted(lines, key=lambda each: each.line_number)
    columns = zip(*(_row(account, page.cursor, each, loaded_at) for each in rows), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)] if rows else None
    return pa.Table.from_arrays(arrays, schema=SCHEMA) if arrays else SCHEMA.empty_table()


def _without_erased(line: Event | RejectedLine, erased: Set[str]) -> Event | RejectedLine:
    new = _erase_line(line)
    return new if _digest_of(new) in erased else line


def _erase_line(line: Event | RejectedLine) -> Event | RejectedLine:
    if isinstance(line, Event):
        return erase_event(line)
    return RejectedLine(line.line_number, erased_line(line.raw), ERASED)


def _digest_of(erased: Event | RejectedLine) -> str:
    raw = erased.raw if isinstance(erased, Event) else erased.raw.decode()
    return read_erased_digest(raw) or ""


def erase_row(row: Mapping[str, Any], search: AddressSearch) -> tuple[dict[str, Any], str] | None:
    """Return a row of :data:`SCHEMA` without its content, and the content's digest; None if it has no such address."""
    if not any(search.matches(row[name]) for name in _PERSONAL):
        return None
    if row["event_id"] is None:
        line: Event | RejectedLine = RejectedLine(0, row["rejected_line"], "")
    else:
        line = Event(line_number=0, **{name: row[name] for name in CONTENT_COLUMNS})
    erased = _erase_line(line)
    values = dict(zip(SCHEMA.names, _row("", 0, erased, row["loaded_at"]), strict=True))
    return {**row, **{name: values[name] for name in _PERSONAL}}, _digest_of(erased)


def distinct_events(page: Page) -> Iterator[Event]:
    """Yield a page's events, each once: no key of a table refuses the second. Others of one id are not the same."""
    seen: dict[str, list[Event]] = {}
    for event in page.events:
        of_id = seen.setdefault(event.event_id, [])
        if not of_id or content_digest(event) not in map(content_digest, of_id):
            of_id.append(event)
            yield event


#: The columns that :func:`row_digest` needs.
CONTENT_COLUMNS: Final = ("event_id", "type", "timestamp", "data", "extra_fields", "raw")


def row_digest(row: Mapping[str, Any]) -> str:
    """Return the :func:`.content_digest` of the event of a row that has :data:`CONTENT_COLUMNS`."""
    event_id, type_, timestamp, data, extra_fields, raw = (row[name] for name in CONTENT_COLUMNS)
    return content_digest(Event(event_id, type_, timestamp, data, extra_fields, 0, raw))


def _row(account: str, cursor_from: int, line: Event | RejectedLine, loaded_at: datetime) -> tuple[Any, ...]:
    if isinstance(line, RejectedLine):
        values: tuple[Any, ...] = (*[None] * 7, line.raw, line.reason)
    else:
        occurred_at = parse_event_timestamp(line.timestamp)
        occurred = None if occurred_at is None else datetime.fromisoformat(occurred_at)
        json = (None, None, line.raw) if line.raw is not None else (line.data, line.extra_fields, None)
        values = (line.event_id, line.type, line.timestamp, occurred, *json, None, None)
    return (account, *values, cursor_from, line.line_number, loaded_at)
