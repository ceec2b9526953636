"""Compares the content of events: an id is not an identity, and two events of one id may differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from msgspec.structs import replace

from outbound_transfer.client.events import Event, read_line
from outbound_transfer.store.personal_data import erased_content, read_erased_digest

#: The columns of an event's content.
_COLUMNS: Final = ("event_id", "type", "timestamp", "data", "extra_fields", "raw")


def content_digest(event: Event) -> str:
    """Return a digest of type, timestamp and values, however their JSON is written; of an erased event, the same."""
    if digest := read_erased_digest(event.raw):
        return digest
    if event.raw is not None:
        parsed = read_line(event.raw.encode(), event.line_number)
        event = parsed if isinstance(parsed, Event) else event
    content = (event.type, event.timestamp, _value(event.data), _value(event.extra_fields))
    return hashlib.sha256(repr(content).encode(errors="surrogatepass")).hexdigest()


def erase_event(event: Event) -> Event:
    """Return an event without its payload. Read again, it is the same event, and another one of its id is not."""
    return replace(event, data=None, extra_fields=None, raw=erased_content(content_digest(event)))


def event_of(row: Mapping[str, Any]) -> Event:
    """Return the event of a row with these columns, without its line number."""
    return Event(line_number=0, **{name: row[name] for name in _COLUMNS})


def find_conflicts(events: Iterable[Event], known: Mapping[str, Event]) -> list[Event]:
    """Return the events whose content is not that of the ``known`` one of their id, or of the first among them."""
    first, conflicts = dict(known), []
    for event in events:
        before = first.setdefault(event.event_id, event)
        if before is not event and content_digest(before) != content_digest(event):
            conflicts.append(event)
    return conflicts


def _value(text: str | None) -> Any:
    """Return the value of a JSON text, for :func:`repr`; a missing value is null, and another text is itself."""
    try:
        return json.loads(text or "null", object_pairs_hook=_object, parse_int=_number, parse_float=_number)
    except (ValueError, RecursionError):  # somebody has changed what is stored
        return "text", text


def _object(pairs: list[tuple[str, Any]]) -> tuple[str, str]:
    # A digest, as the representation of a value that is nested deeply could need more levels than Python has.
    text = repr(sorted(pairs, key=lambda pair: pair[0]))
    return "object", hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _number(text: str) -> tuple[int, str, int]:
    """Return sign, digits and exponent: databases write 1e2 as 100, and 1.50 as 1.5."""
    sign, digits, exponent = Decimal(text).as_tuple()
    figures = "".join(map(str, digits))
    short = figures.rstrip("0")
    return (sign, short, int(exponent) + len(figures) - len(short)) if short else (0, "0", 0)
