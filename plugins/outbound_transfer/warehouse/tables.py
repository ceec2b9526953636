"""The tables, as data: one description each, spelled for each database by :mod:`.dialects`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """What a column holds. Rows carry text for ``JSON`` and for ``TIME`` (ISO 8601, UTC), whatever the database."""

    TEXT = "text"
    WHOLE = "a whole number of 64 bits"
    TIME = "an instant"
    JSON = "JSON text, as it came"
    BYTES = "bytes"


@dataclass(frozen=True)
class Column:
    """A column; ``required`` ones are never NULL."""

    name: str
    kind: Kind
    required: bool = True


@dataclass(frozen=True)
class Table:
    """A table: ``{prefix}{suffix}``, unique by ``key``."""

    suffix: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]


#: Every event, once (service.md, Events).
#:
#: ``feed``         the account whose feed it is: its site address. An ``event_id`` is unique within one feed only
#: ``event_id``     as it came; with ``feed``, the key
#: ``type``         ``transfer_sent``, ``file_downloaded``, or any other: the set is open
#: ``timestamp``    as it came; NULL where there was none
#: ``occurred_at``  the same as an instant, UTC; NULL where ``timestamp`` is no ISO 8601 date and time. One without a
#:                  zone is taken as UTC; a number is not guessed at (its unit and epoch are not documented)
#: ``data``         the payload, as it came, to the byte; NULL where there was none
#: ``other``        fields that service.md does not name, as one JSON object; NULL where there were none
#: ``cursor_from``  the cursor that its page was asked with; ``line`` its line of that page, from 1
#: ``landed_at``    when its page was landed first, UTC
EVENTS: Final = Table(
    "events",
    (
        Column("feed", Kind.TEXT),
        Column("event_id", Kind.TEXT),
        Column("type", Kind.TEXT),
        Column("timestamp", Kind.TEXT, required=False),
        Column("occurred_at", Kind.TIME, required=False),
        Column("data", Kind.JSON, required=False),
        Column("other", Kind.JSON, required=False),
        Column("cursor_from", Kind.WHOLE),
        Column("line", Kind.WHOLE),
        Column("landed_at", Kind.TIME),
    ),
    key=("feed", "event_id"),
)

#: Where each feed is read on from (service.md, GET /v1/events, Cursor rules): one row per ``feed``.
#: ``UPDATE … SET cursor = 0`` (or deleting the row) reads the whole feed again, without duplicates.
FEED_CURSOR: Final = Table(
    "feed_cursor",
    (Column("feed", Kind.TEXT), Column("cursor", Kind.WHOLE), Column("updated_at", Kind.TIME)),
    key=("feed",),
)

#: Lines that are no events: ``raw`` bytes, ``reason``, and where they stood, as in the events' table.
REJECTED_LINES: Final = Table(
    "rejected_lines",
    (
        Column("feed", Kind.TEXT),
        Column("cursor_from", Kind.WHOLE),
        Column("line", Kind.WHOLE),
        Column("raw", Kind.BYTES),
        Column("reason", Kind.TEXT),
        Column("landed_at", Kind.TIME),
    ),
    key=("feed", "cursor_from", "line"),
)
