"""The log of polls of an Iceberg table: those that loaded nothing, and commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from outbound_transfer.lake.catalog import IcebergCatalog
from outbound_transfer.lake.feed_table import Change, FeedTable
from outbound_transfer.lake.filters import filters
from outbound_transfer.lake.rows import field
from outbound_transfer.warehouse.destination import MAX_NOTE, PollRecord

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

POLLS_SCHEMA: Final = pa.schema(
    [
        field("account", pa.string(), "the account whose feed it is: its site address", null=False),
        field("polled_at", _TIMESTAMP, "when the poll or the command was recorded", null=False),
        field(
            "action",
            pa.string(),
            "`poll`, `claim` (a cursor that was not accepted at once), `reset`, `rebuild` or `replay`",
            null=False,
        ),
        field("status", pa.int64(), "HTTP status; NULL without a response, and for commands"),
        field("new_events", pa.int64(), "number of events that a command loaded", null=False),
        field("cursor_from", pa.int64(), "the cursor before", null=False),
        field("cursor_to", pa.int64(), "the cursor after a command, or claimed; NULL if nothing was loaded"),
        field("note", pa.string(), "why nothing was loaded, or what a command did"),
    ]
)


class PollTable:
    """The table beside an Iceberg table of events; its name ends in ``_polls``."""

    def __init__(self, catalog: IcebergCatalog, table: str) -> None:
        self._table = FeedTable(catalog, f"{table}_polls", POLLS_SCHEMA, partition_by="polled_at")

    def append(self, account: str, poll: PollRecord, now: datetime, expire_before: datetime) -> None:
        """Append a poll.

        :param now: with a time zone.
        :param expire_before: older snapshots of the log may expire.
        """
        note = None if poll.note is None else self._table.catalog.redact(_storable(poll.note))[:MAX_NOTE]
        row = {
            "account": account,
            "polled_at": now,
            "action": poll.action,
            "status": poll.status,
            "new_events": poll.new_events,
            "cursor_from": poll.cursor_from,
            "cursor_to": poll.cursor_to,
            "note": note,
        }
        rows = pa.Table.from_pylist([row], schema=POLLS_SCHEMA)
        self._table.find_or_create()
        committed = self._table.commit(lambda *_: Change(rows, {}))
        self._table.expire_snapshots(committed, expire_before)

    def last(self, account: str) -> dict[str, Any] | None:
        """Return the last poll of an account, without commands; None if there is none."""
        table = self._table.find()
        if table is None:
            return None
        rows = self._table.read(table, filters.EqualTo("account", account), "polled_at", "action", "status", "note")
        polls = [row for row in rows.to_pylist() if row["action"] in ("poll", "claim")]
        return max(polls, key=lambda row: row["polled_at"].astimezone(UTC), default=None)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
