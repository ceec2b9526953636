"""What turns older tables into those of :mod:`.tables`. A step that has been done already does nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from outbound_transfer.protocol.feed import Event, read_line
from outbound_transfer.warehouse.database import Warehouse, rows_of
from outbound_transfer.warehouse.tables import CALLS, DELIVERIES, EVENTS, FEED_POLLS, TRANSFERS, Table

_AT_ONCE: Final = 10_000


def _raw_lines(warehouse: Warehouse, cursor: Any) -> None:
    """Version 2 of the events: ``raw``, and ``jsonb`` in PostgreSQL. Only SQLite and PostgreSQL ever had version 1."""
    if "raw" in _columns(warehouse, cursor, EVENTS):
        return
    (raw,) = (column for column in EVENTS.columns if column.name == "raw")
    cursor.execute(f"ALTER TABLE {warehouse.name(EVENTS)} ADD COLUMN {warehouse.dialect.column(raw)}", ())
    for feed, event_id, line in _awkward(warehouse, cursor):
        warehouse.run(
            cursor,
            "UPDATE {events} SET raw = ?, data = NULL, other = NULL WHERE feed = ? AND event_id = ?",
            (line, feed, event_id),
        )
    if warehouse.dialect.name == "postgresql":
        to_jsonb = ", ".join(f"ALTER COLUMN {name} TYPE jsonb USING {name}::text::jsonb" for name in ("data", "other"))
        cursor.execute(f"ALTER TABLE {warehouse.name(EVENTS)} {to_jsonb}", ())


def _columns(warehouse: Warehouse, cursor: Any, table: Table) -> list[str]:
    cursor.execute(f"SELECT * FROM {warehouse.name(table)} WHERE 1 = 0", ())  # noqa: S608
    names = [column[0] for column in cursor.description]
    cursor.fetchall()  # none, but some drivers take no other statement before
    return names


def _awkward(warehouse: Warehouse, cursor: Any) -> Iterator[tuple[str, str, str]]:
    """Feed, id and line of each event that a JSON column would refuse or change."""
    after = ("", "")
    while True:
        warehouse.run(
            cursor,
            "SELECT feed, event_id, type, timestamp, CAST(data AS text), CAST(other AS text) FROM {events}"
            " WHERE feed > ? OR (feed = ? AND event_id > ?) ORDER BY feed, event_id LIMIT ?",
            (after[0], *after, _AT_ONCE),
        )
        rows = rows_of(cursor)
        for feed, event_id, *fields in rows:
            line = _line(event_id, *fields)
            read = read_line(line.encode(), 1)
            if isinstance(read, Event) and read.raw is not None:
                yield feed, event_id, line
        if len(rows) < _AT_ONCE:
            return
        after = rows[-1][:2]


def _line(event_id: str, kind: str, timestamp: str | None, data: str | None, other: str | None) -> str:
    """The line of which an event was made, but for spaces and the order of its fields."""
    named = {"event_id": event_id, "type": kind} | ({} if timestamp is None else {"timestamp": timestamp})
    line = json.dumps(named)[:-1] + ("" if data is None else f', "data": {data}')
    return f"{line}, {other[1:]}" if other else line + "}"


def _listed_by(warehouse: Warehouse, cursor: Any) -> None:
    """Version 2 of the transfers: by whose key each was listed. Empty until its next listing, which reads all again."""
    if "conn_id" in _columns(warehouse, cursor, TRANSFERS):
        return
    (conn_id,) = (column for column in TRANSFERS.columns if column.name == "conn_id")
    # Not every database adds a column that may not be NULL.
    column = warehouse.dialect.column(replace(conn_id, required=False))
    cursor.execute(f"ALTER TABLE {warehouse.name(TRANSFERS)} ADD COLUMN {column}", ())


def _indexed(*tables: Table) -> Step:
    return lambda warehouse, cursor: warehouse.index(cursor, *tables)


Step = Callable[[Warehouse, Any], None]

FEED_STEPS: Final[Mapping[int, Step]] = {2: _raw_lines, 3: _indexed(FEED_POLLS)}
LEDGER_STEPS: Final[Mapping[int, Step]] = {2: _indexed(DELIVERIES, CALLS)}
LISTING_STEPS: Final[Mapping[int, Step]] = {2: _listed_by}
