"""Reading a page of the event feed (service.md, GET /v1/events and Events).

The lines are read with the standard library's JSON: msgspec refuses an unpaired surrogate (``"\\ud800"``), which is
JSON all the same and which the name of a file from Windows may hold, and it does not show a name that comes twice.
A page in which, as writing it anew shows, there is nothing of the kind is read with msgspec, in a fraction of the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import isinf
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import msgspec

from outbound_transfer.protocol.errors import MalformedAnswer
from outbound_transfer.protocol.exchange import Answer
from outbound_transfer.protocol.nesting import MAX_DEPTH, is_closed, is_deep

CONTENT_TYPE: Final = "application/x-ndjson"

#: The feed's cursor is an integer; a warehouse keeps it in 64 bits.
MAX_CURSOR: Final = 2**63 - 1

#: Bytes of an ``event_id``: a warehouse indexes it, and no index of any takes less (MySQL's key ends at 3,072 bytes).
MAX_EVENT_ID: Final = 500

_BOM: Final = b"\xef\xbb\xbf"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event, nothing of it dropped. Its texts hold no NUL and no unpaired surrogate; its JSON may, as escapes.

    :ivar event_id: as text (a number as it was written); its format is not documented. At most 500 bytes.
    :ivar type: one of service.md's or any other; the set is open.
    :ivar timestamp: as it came (a string without its quotes, anything else as JSON), None where the event had none
        or null; its format is not documented.
    :ivar data: the payload as JSON text, as it came; None where the event had none.
    :ivar other: fields that service.md does not name, as a JSON object; None where there were none.
    :ivar line: position in its page, from 1.
    :ivar raw: the whole line, where a JSON column would refuse or change what ``data`` or ``other`` say: a NUL, an
        unpaired surrogate, a name twice in one object, a number beyond a double or of very many digits. None elsewhere.
    """

    event_id: str
    type: str
    timestamp: str | None
    data: str | None
    other: str | None
    line: int
    raw: str | None = None


class RejectedLine(msgspec.Struct, frozen=True):
    """A line of a page that is no event: kept raw, with the reason."""

    line: int
    raw: bytes
    reason: str


class Page(msgspec.Struct, frozen=True):
    """One page: what to land, and where to go on. ``cursor`` is the one that was asked with, ``body`` all its lines."""

    cursor: int
    next_cursor: int
    has_more: bool
    events: tuple[Event, ...]
    rejected: tuple[RejectedLine, ...]
    body: bytes = b""

    def lines(self) -> list[bytes]:
        """The lines as they came; the first is line 1 of the events and rejected lines."""
        return _split(self.body)

    @property
    def has_positions(self) -> bool:
        """Whether events' ids are what service.md compares the cursor with: whole numbers up to the next cursor."""
        return any(self._positions())

    @property
    def excess(self) -> int:
        """How far ``next_cursor`` is beyond what the lines account for; 0 or less where they do.

        They do up to the greatest id that is a position, or by one each where there is none. What lies in the excess
        is never asked for again.
        """
        if self.events and self.events[-1].event_id == str(self.next_cursor):
            return 0
        positions = list(self._positions())
        others = len(self.events) - len(positions) + len(self.rejected)
        return self.next_cursor - max(positions, default=self.cursor) - others

    def _positions(self) -> Iterator[int]:
        for event in self.events:
            number = _whole(event.event_id)
            if number is not None and self.cursor < number <= self.next_cursor:
                yield number


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
    return Page(cursor, next_cursor, has_more, tuple(events), tuple(rejected), answer.body)


def _next_cursor(value: str | None, cursor: int) -> int:
    number = _whole(value or "")
    if number is None:
        raise MalformedAnswer("X-Next-Cursor is missing or not a whole number")
    if not cursor <= number <= MAX_CURSOR:
        raise MalformedAnswer(f"X-Next-Cursor {number} is before the cursor {cursor} that was sent, or out of range")
    return number


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_CURSOR)) else None


def _has_more(value: str | None) -> bool:
    if value is None or value.lower() not in ("true", "false"):
        raise MalformedAnswer("X-Has-More is missing, or neither true nor false")
    return value.lower() == "true"


def _split(body: bytes) -> list[bytes]:
    # On the byte \n alone: JSON text may hold every other line separator of Unicode.
    return body.removeprefix(_BOM).split(b"\n")


def _lines(body: bytes) -> tuple[list[Event], list[RejectedLine]]:
    if (plain := _plain_events(body.removeprefix(_BOM))) is not None:
        return plain, []
    events: list[Event] = []
    rejected: list[RejectedLine] = []
    lines = _split(body)
    reader = _Reader()
    for position, line in enumerate(lines, 1):
        if not line.strip(_SPACE):
            continue
        try:
            events.append(reader.event(line, position))
        except _NotJson as error:
            # What follows the last \n was not ended, so it may be the beginning of a longer line.
            if position == len(lines) and not is_closed(line):
                raise MalformedAnswer("the last line of the page is cut off") from None
            rejected.append(RejectedLine(position, line, str(error)))
        except _NotAnEvent as error:
            rejected.append(RejectedLine(position, line, str(error)))
    return events, rejected


class _PlainLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most lines are."""

    # A character has four bytes at most.
    event_id: int | Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_EVENT_ID // 4)]
    type: str
    timestamp: str | None = None
    data: msgspec.Raw = msgspec.Raw()


#: Every digit is one and the same.
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 300

_read_values: Final = msgspec.json.Decoder().decode_lines
_read_plain: Final = msgspec.json.Decoder(_PlainLine).decode_lines
_write: Final = msgspec.json.Encoder().encode_lines


def _plain_events(body: bytes) -> list[Event] | None:
    """The events of a page each of whose lines is plainly one; None where a closer look is needed.

    Such a page comes out the same, spaces aside, when its values are written anew: so it has no name twice, and no
    number, no text and no line break that could be written in another way. An escape might hide a NUL or a surrogate,
    and a long number be beyond a double.
    """
    if b"\\" in body or _LONG in body.translate(_DIGITS) or any(map(is_deep, body.split(b"\n"))):
        return None
    try:
        if _write(_read_values(body)).replace(b" ", b"") != body.replace(b" ", b""):
            return None
        lines = _read_plain(body)
    except (ValueError, OverflowError, RecursionError):
        return None
    return [
        Event(str(line.event_id), line.type, line.timestamp, str(line.data, "utf-8") or None, None, position)
        for position, line in enumerate(lines, 1)
    ]


def read_line(raw: bytes, line: int) -> Event | RejectedLine:
    """One line by itself, such as one that was rejected before."""
    try:
        return _Reader().event(raw, line)
    except (_NotJson, _NotAnEvent) as error:
        return RejectedLine(line, raw, str(error))


class _NotJson(ValueError):
    """The line is not whole JSON text."""


class _NotAnEvent(ValueError):
    """The line is JSON, but not an event that a table can hold."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_SPACE: Final = b" \t\r"
_STRIPPED: Final = _SPACE.decode()
_colon: Final = re.compile(r"[ \t\r]*:[ \t\r]*").match
_comma: Final = re.compile(r"[ \t\r]*(?:,[ \t\r]*(?=\")|(?=\}))").match
_open: Final = re.compile(r"\{[ \t\r]*(?=[\"}])").match
#: Escapes that need a look at the text that they make: NUL, and surrogates, which come in pairs or not.
_ESCAPES: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


class _Field(NamedTuple):
    """A field's JSON text, as it came, and its value where that is text."""

    text: str
    value: Any


_ABSENT: Final = _Field("", None)


class _Reader:
    """Reads lines; ``awkward`` is set where a JSON column would refuse or change what the line says."""

    def __init__(self) -> None:
        self.awkward = False
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=self._number, parse_float=self._number, parse_constant=_refuse
        )
        self._scan: Callable[[str, int], tuple[Any, int]] = self._json.scan_once  # type: ignore[attr-defined]

    def event(self, line: bytes, position: int) -> Event:
        """:raises _NotJson, _NotAnEvent: what it says is the reason to show."""
        self.awkward = False
        text = self._decoded(line)
        fields = self._fields(text)
        event_id, kind = fields.pop("event_id", _ABSENT), fields.pop("type", _ABSENT)
        timestamp, data = fields.pop("timestamp", _ABSENT), fields.pop("data", _ABSENT)
        return Event(
            event_id=_event_id(event_id),
            type=_type(kind),
            timestamp=_timestamp(timestamp),
            data=data.text or None,
            other=_object(fields) if fields else None,
            line=position,
            raw=text if self.awkward or (_ESCAPES.search(text) and not _are_texts(data, fields)) else None,
        )

    @staticmethod
    def _decoded(line: bytes) -> str:
        if is_deep(line):
            raise _NotJson(f"the JSON is nested too deeply: over {MAX_DEPTH} levels")
        try:
            return line.decode().strip(_STRIPPED)
        except UnicodeDecodeError as error:
            raise _NotJson(str(error)) from None

    def _fields(self, text: str) -> dict[str, _Field]:
        fields: dict[str, _Field] = {}
        try:
            at = _open(text, 0).end()  # type: ignore[union-attr]  # None is caught below: this is a hot loop
            while text[at] != "}":
                name, at = self._scan(text, at)
                start = _colon(text, at).end()  # type: ignore[union-attr]
                value, at = self._scan(text, start)
                if name in fields:
                    raise _NotAnEvent(f"the event has {_shown(name)} twice")
                fields[name] = _Field(text[start:at], value)
                at = _comma(text, at).end()  # type: ignore[union-attr]
        except RecursionError:
            raise _NotJson("the JSON is nested too deeply") from None
        except (AttributeError, StopIteration, ValueError) as error:
            if isinstance(error, _NotAnEvent):
                raise
            raise self._complaint(text) from None
        if at + 1 != len(text):
            raise self._complaint(text)
        return fields

    def _complaint(self, text: str) -> ValueError:
        """What is wrong with a line that is no object."""
        try:
            self._json.decode(text)
        except ValueError as error:
            return _NotJson(str(error))
        except RecursionError:
            return _NotJson("the JSON is nested too deeply")
        return _NotAnEvent("the line is JSON, but not an object")

    def _object(self, pairs: list[tuple[str, Any]]) -> None:
        # Values are only passed over; what matters is whether a name stands twice.
        if len(dict(pairs)) != len(pairs):
            self.awkward = True

    def _number(self, text: str) -> None:
        if not _is_usual_number(text):
            self.awkward = True


#: What a number may have: PostgreSQL's ends at 16,383 digits after the point, whether they come from a text as long or
#: from an exponent; no double is as long or has such an exponent.
_MAX_DIGITS: Final = 1_000
_MAX_EXPONENT: Final = 400


def _is_usual_number(text: str) -> bool:
    if len(text) > _MAX_DIGITS or isinf(float(text)):
        return False
    return abs(int(text.lower().partition("e")[2] or 0)) <= _MAX_EXPONENT


def _are_texts(data: _Field, fields: Mapping[str, _Field]) -> bool:
    """Whether ``data`` and the other fields, with their names, hold neither a NUL nor an unpaired surrogate."""
    # Written anew without needless escapes: what is still an escape of NUL was one; what does not encode was unpaired.
    try:
        values = [
            json.loads(field.text, parse_int=str, parse_float=str) for field in (data, *fields.values()) if field.text
        ]
        text = json.dumps([*fields, *values], ensure_ascii=False)
        text.encode()
    except (UnicodeEncodeError, RecursionError):  # what was read just so may be nested too deeply to be written
        return False
    return "\\u0000" not in text


def _event_id(field: _Field) -> str:
    if field.text in ("", "null", '""'):
        raise _NotAnEvent("the event has no event_id")
    if field.text[0] not in '"-0123456789':
        raise _NotAnEvent("the event_id is neither text nor a number")
    text = _storable("event_id", field)
    if len(text.encode()) > MAX_EVENT_ID:
        raise _NotAnEvent(f"the event_id is over {MAX_EVENT_ID:,} bytes")
    return text


def _type(field: _Field) -> str:
    if not isinstance(field.value, str):
        raise _NotAnEvent("the event has no type, or one that is not text")
    return _storable("type", field)


def _timestamp(field: _Field) -> str | None:
    return None if field.text in ("", "null") else _storable("timestamp", field)


def _storable(name: str, field: _Field) -> str:
    """The field's text, where every warehouse can keep it; of anything but a string, its JSON.

    One and the same line must not be an event in one warehouse and not in another.
    """
    text = field.value if isinstance(field.value, str) else field.text
    if "\0" in text:
        raise _NotAnEvent(f"the {name} holds a NUL character, which no text column of PostgreSQL can")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NotAnEvent(f"the {name} holds an unpaired surrogate, which UTF-8 cannot") from None
    return text


def _object(fields: dict[str, _Field]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {field.text}" for name, field in fields.items()) + "}"


def _shown(name: str) -> str:
    # The name of a field that is not documented may be anything, the key too.
    return f'the field "{name}"' if name in _PlainLine.__struct_fields__ else "a field that is not documented"
