"""Reading a page of the event feed (service.md, GET /v1/events and Events).

The lines are read with the standard library's JSON: msgspec refuses an unpaired surrogate (``"\\ud800"``), which is
JSON all the same and which the name of a file from Windows may hold, and it does not show a name that comes twice.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

import msgspec

from outbound_transfer.protocol.errors import MalformedAnswer
from outbound_transfer.protocol.exchange import Answer

CONTENT_TYPE: Final = "application/x-ndjson"

#: The feed's cursor is an integer; a warehouse keeps it in 64 bits.
MAX_CURSOR: Final = 2**63 - 1

#: Bytes of an ``event_id``: a warehouse indexes it, and PostgreSQL's index entries end at 2,704 bytes.
MAX_EVENT_ID: Final = 1_000

_BOM: Final = b"\xef\xbb\xbf"


class Event(msgspec.Struct, frozen=True):
    """One event, nothing of it dropped. Its texts hold no NUL and no unpaired surrogate; its JSON may, as escapes.

    :ivar event_id: as text (a number as it was written); its format is not documented. At most 1,000 bytes.
    :ivar type: one of service.md's or any other; the set is open.
    :ivar timestamp: as it came (a string without its quotes, anything else as JSON), None where the event had none
        or null; its format is not documented.
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
    if next_cursor == cursor and (has_more or events or rejected):
        raise MalformedAnswer("X-Next-Cursor did not advance over a page that has lines, or more to come")
    return Page(cursor, next_cursor, has_more, tuple(events), tuple(rejected))


def _next_cursor(value: str | None, cursor: int) -> int:
    if value is None or not (value.isascii() and value.isdecimal()) or len(value) > len(str(MAX_CURSOR)):
        raise MalformedAnswer("X-Next-Cursor is missing or not a whole number")
    if not cursor <= (number := int(value)) <= MAX_CURSOR:
        raise MalformedAnswer(f"X-Next-Cursor {number} is before the cursor {cursor} that was sent, or out of range")
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
        if not line.strip(_SPACE):
            continue
        try:
            events.append(_event(_fields(line), position))
        except _NotJson as error:
            # What follows the last \n was not ended, so it may be the beginning of a longer line.
            if position == len(lines):
                raise MalformedAnswer("the last line of the page is cut off") from None
            rejected.append(RejectedLine(position, line, str(error)))
        except _NotAnEvent as error:
            rejected.append(RejectedLine(position, line, str(error)))
    return events, rejected


class _NotJson(ValueError):
    """The line is not whole JSON text."""


class _NotAnEvent(ValueError):
    """The line is JSON, but not an event that a table can hold."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# Numbers are only passed over, so neither their size nor their precision can matter.
_json: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
_SPACE: Final = b" \t\r"
_BETWEEN: Final = re.compile(r"[ \t\r,:]*")


def _fields(line: bytes) -> dict[str, str]:
    """The JSON text of each field of a line, as it came."""
    try:
        text = line.decode().strip(_SPACE.decode())
        value = _json.decode(text)
    except RecursionError:
        raise _NotJson("the JSON is nested too deeply") from None
    except ValueError as error:
        raise _NotJson(str(error)) from None
    if not isinstance(value, dict):
        raise _NotAnEvent("the line is JSON, but not an object")
    fields: dict[str, str] = {}
    at = _skip(text, 1)
    while text[at] != "}":
        name, at = _json.raw_decode(text, at)
        start = _skip(text, at)
        _, at = _json.raw_decode(text, start)
        if name in fields:
            raise _NotAnEvent(f"the event has the field {_shown(name)} twice")
        fields[name] = text[start:at]
        at = _skip(text, at)
    return fields


def _skip(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    assert between, "the pattern matches the empty text"
    return between.end()


def _event(fields: dict[str, str], position: int) -> Event:
    event_id = _text("event_id", fields.pop("event_id", None))
    kind = fields.pop("type", None)
    if kind is None or kind[0] != '"':
        raise _NotAnEvent("the event has no type, or one that is not text")
    timestamp, data = fields.pop("timestamp", None), fields.pop("data", None)
    return Event(
        event_id=event_id,
        type=_storable("type", _json.decode(kind)),
        timestamp=None if timestamp in (None, "null") else _timestamp(timestamp),
        data=data,
        other=_object(fields) if fields else None,
        line=position,
    )


def _text(name: str, raw: str | None) -> str:
    if raw is None or raw in ("null", '""'):
        raise _NotAnEvent(f"the event has no {name}")
    if raw[0] not in '"-0123456789':
        raise _NotAnEvent(f"the {name} is neither text nor a number")
    text = _storable(name, _json.decode(raw))
    if len(text.encode()) > MAX_EVENT_ID:
        raise _NotAnEvent(f"the {name} is over {MAX_EVENT_ID:,} bytes")
    return text


def _timestamp(raw: str) -> str:
    return _storable("timestamp", _json.decode(raw)) if raw[0] == '"' else raw


def _storable(name: str, text: str) -> str:
    """``text``, where every warehouse can keep it: one and the same line must not be an event here and not there."""
    if "\0" in text:
        raise _NotAnEvent(f"the {name} holds a NUL character, which no text column of PostgreSQL can")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NotAnEvent(f"the {name} holds an unpaired surrogate, which UTF-8 cannot") from None
    return text


def _object(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {raw}" for name, raw in fields.items()) + "}"


def _shown(name: str) -> str:
    return json.dumps(name)[:100]
