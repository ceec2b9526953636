"""Reading a page of the event feed (service.md, GET /v1/events and Events)."""

from __future__ import annotations

from typing import Final

import msgspec

from outbound_transfer.protocol.errors import MalformedAnswer
from outbound_transfer.protocol.exchange import Answer

CONTENT_TYPE: Final = "application/x-ndjson"

#: The feed's cursor is an integer; a warehouse keeps it in 64 bits.
MAX_CURSOR: Final = 2**63 - 1

_BOM: Final = b"\xef\xbb\xbf"


class Event(msgspec.Struct, frozen=True):
    """One event, nothing of it dropped.

    :ivar event_id: as text; its format is not documented.
    :ivar timestamp: as it came (a string without its quotes, anything else as JSON); its format is not documented.
    :ivar data: the payload as JSON text, as it came; None where the event had none.
    :ivar other: fields that service.md does not name, as a JSON object; None where there were none.
    :ivar line: position in its page, from 1.
    """

    event_id: str
    type: str
    timestamp: str | None
    data: str | None
    other: str | None
    line: int


class RejectedLine(msgspec.Struct, frozen=True):
    """A line of a page that is no event: kept raw, with the reason."""

    line: int
    raw: bytes
    reason: str


class Page(msgspec.Struct, frozen=True):
    """One page: what to land, and where to go on. ``cursor`` is the one that was asked with."""

    cursor: int
    next_cursor: int
    has_more: bool
    events: tuple[Event, ...]
    rejected: tuple[RejectedLine, ...]


def read_page(answer: Answer, *, cursor: int) -> Page:
    """A page of an answer to a request with ``cursor``.

    :raises MalformedAnswer: a missing, malformed or backward header, another content type, or a last line that was
        cut off: such a page must not be landed, not even in part.
    """
    if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        raise MalformedAnswer(f"the feed's answer is not {CONTENT_TYPE}")
    next_cursor = _next_cursor(answer.headers.get("x-next-cursor"), cursor)
    has_more = _has_more(answer.headers.get("x-has-more"))
    events, rejected = _lines(answer.body)
    if next_cursor == cursor and (has_more or events):
        raise MalformedAnswer("X-Next-Cursor did not advance over a page that has events or more to come")
    return Page(cursor, next_cursor, has_more, tuple(events), tuple(rejected))


def _next_cursor(value: str | None, cursor: int) -> int:
    if value is None or not (value.isascii() and value.isdecimal()) or len(value) > len(str(MAX_CURSOR)):
        raise MalformedAnswer("X-Next-Cursor is missing or not a whole number")
    if not cursor <= (number := int(value)) <= MAX_CURSOR:
        raise MalformedAnswer(f"X-Next-Cursor {number} is not after the cursor {cursor} that was sent")
    return number


def _has_more(value: str | None) -> bool:
    if value is None or value.lower() not in ("true", "false"):
        raise MalformedAnswer("X-Has-More is missing, or neither true nor false")
    return value.lower() == "true"


def _lines(body: bytes) -> tuple[list[Event], list[RejectedLine]]:
    events: list[Event] = []
    rejected: list[RejectedLine] = []
    # Split on the byte \n alone: JSON text may hold every other line separator of Unicode.
    lines = body.removeprefix(_BOM).split(b"\n")
    for position, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            events.append(_event(line, position))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if position == len(lines) and not isinstance(error, msgspec.ValidationError):
                raise MalformedAnswer("the last line of the page is cut off") from None
            rejected.append(RejectedLine(position, line, str(error)))
    return events, rejected


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_text_or_number = msgspec.json.Decoder(str | int)


def _event(line: bytes, position: int) -> Event:
    fields = _fields.decode(line)
    event_id, kind, timestamp, data = (fields.pop(name, None) for name in ("event_id", "type", "timestamp", "data"))
    if event_id is None or kind is None:
        raise msgspec.ValidationError(f"the event has no {'event_id' if event_id is None else 'type'}")
    return Event(
        event_id=str(_text_or_number.decode(event_id)),
        type=_text.decode(kind),
        timestamp=None if timestamp is None else _as_text(timestamp),
        data=None if data is None else bytes(data).decode(),
        other=msgspec.json.encode(fields).decode() if fields else None,
        line=position,
    )


def _as_text(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode()
    return _text.decode(raw) if text.startswith('"') else text
