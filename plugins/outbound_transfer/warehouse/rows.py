"""Conversion of a page to rows, without a database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

from outbound_transfer.client.events import Page, RejectedLine
from outbound_transfer.warehouse.dialects import Row
from outbound_transfer.warehouse.timestamps import format_timestamp, parse_event_timestamp


def event_rows(account: str, page: Page, loaded_at: datetime) -> list[Row]:
    """Return the rows of :data:`.tables.EVENTS` for a page's events."""
    loaded = format_timestamp(loaded_at)
    return [
        (
            account,
            event.event_id,
            event.type,
            event.timestamp,
            parse_event_timestamp(event.timestamp),
            event.data if event.raw is None else None,
            event.extra_fields if event.raw is None else None,
            event.raw,
            page.cursor,
            event.line_number,
            loaded,
        )
        for event in page.events
    ]


def rejected_rows(account: str, cursor_from: int, lines: Iterable[RejectedLine], loaded_at: datetime) -> list[Row]:
    """Return the rows of :data:`.tables.REJECTED_LINES`.

    :param cursor_from: the cursor that the lines' page was read with.
    """
    loaded = format_timestamp(loaded_at)
    return [
        (account, line_digest(line.raw), cursor_from, line.line_number, line.raw, line.reason, loaded) for line in lines
    ]


def line_digest(line: bytes) -> str:
    """Return what identifies a line of the feed when it is read again, also after its content was erased."""
    return hashlib.sha256(line).hexdigest()


def storable_text(text: str) -> str:
    """Return ``text`` without the characters that some database cannot store: NUL and unpaired surrogates."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
