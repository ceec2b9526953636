"""Decodes pages of the event feed (service-api.md, R40 to R46) and keeps every value as it was written.

Lines are parsed with the standard library. msgspec rejects unpaired surrogates (``"\\ud800"``), which are valid JSON
and occur in file names from Windows, and it does not report duplicate names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import isinf
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from outbound_transfer.client.errors import MalformedResponse
from outbound_transfer.client.nesting import MAX_DEPTH, is_closed, is_deep

CONTENT_TYPE: Final = "application/x-ndjson"

#: Cursors are integers (service-api.md, R43); a warehouse stores them in 64 bits.
MAX_CURSOR: Final = 2**63 - 1

#: Maximum size of an ``event_id``, which a warehouse indexes (MySQL limits an index key to 3,072 bytes).
MAX_EVENT_ID_BYTES: Final = 500

#: The documented fields of an event (service-api.md, R46).
_FIELDS: Final = ("event_id", "type", "timestamp", "data")

_BOM: Final = b"\xef\xbb\xbf"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event, complete. Its texts have no NUL and no unpaired surrogate; its JSON may have them as escapes.

    :ivar event_id: as text (a number as it was written), at most 500 bytes; its format is undocumented.
    :ivar type: any text; the set of types is open (service-api.md, R46).
    :ivar timestamp: a string without its quotes, anything else as JSON; None if missing or null. Its format is
        undocumented.
    :ivar data: the payload as JSON text, unchanged; None if missing.
    :ivar extra_fields: undocumented fields (service-api.md, R46) as a JSON object; None if there are none.
    :ivar line_number: line within the page, from 1.
    :ivar raw: the whole line, if a JSON column would reject or change ``data`` or ``extra_fields``: a NUL, an unpaired
        surrogate, a duplicate name in an object, a number beyond a double or with very many digits. Otherwise None.
    """

    event_id: str
    type: str
    timestamp: str | None
    data: str | None
    extra_fields: str | None
    line_number: int
    raw: str | None = None


class RejectedLine(msgspec.Struct, frozen=True):
    """A line that is not a valid event, with the reason. ``line_number`` counts from 1."""

    line_number: int
    raw: bytes
    reason: str


class Page(msgspec.Struct, frozen=True):
    """One page of the feed (service-api.md, R42).

    :ivar cursor: the cursor of the request.
    :ivar next_cursor: the cursor for the next request.
    :ivar has_more: whether there may be another page.
    :ivar events: valid events, in the order of the feed.
    :ivar rejected: lines that are not valid events.
    :ivar body: the whole body.
    """

    cursor: int
    next_cursor: int
    has_more: bool
    events: tuple[Event, ...]
    rejected: tuple[RejectedLine, ...]
    body: bytes = b""

    def lines(self) -> list[bytes]:
        """Return the raw lines; index 0 is line 1 of the events and rejected lines."""
        return _split_lines(self.body)

    @property
    def has_positions(self) -> bool:
        """Whether event ids are positions in the feed: whole numbers up to the next cursor (service-api.md, R44)."""
        return any(self._positions())

    @property
    def excess(self) -> int:
        """By how much ``next_cursor`` exceeds what the lines of the page explain; 0 or less if it does not.

        The lines explain a cursor up to the greatest id that is a position, plus one for each other line. Events within
        the excess would never be requested.
        """
        if self.events and self.events[-1].event_id == str(self.next_cursor):
            return 0
        positions = list(self._positions())
        others = len(self.events) - len(positions) + len(self.rejected)
        return self.next_cursor - max(positions, default=self.cursor) - others

    def _positions(self) -> Iterator[int]:
        for event in self.events:
            number = _parse_whole_number(event.event_id)
            if number is not None and self.cursor < number <= self.next_cursor:
                yield number


def read_page(headers: Mapping[str, str], body: bytes, *, cursor: int) -> Page:
    """Decode a page of the feed.

    :param headers: of the response, by name in lower case.
    :param cursor: the cursor of the request.
    :raises MalformedResponse: a header is missing, invalid or goes backward, the content type is wrong, or the last
        line is cut off. No part of such a page may be loaded.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        raise MalformedResponse(f"the content type of the feed's response is not {CONTENT_TYPE}")
    next_cursor = _parse_next_cursor(headers.get("x-next-cursor"), cursor)
    has_more = _parse_has_more(headers.get("x-has-more"))
    events, rejected = _parse_lines(body)
    if next_cursor == cursor and (has_more or events or rejected):
        raise MalformedResponse("X-Next-Cursor did not advance, although the page has lines or the feed has more")
    return Page(cursor, next_cursor, has_more, tuple(events), tuple(rejected), body)


def _parse_next_cursor(value: str | None, cursor: int) -> int:
    number = _parse_whole_number(value or "")
    if number is None:
        raise MalformedResponse("X-Next-Cursor is missing or is not a whole number")
    if not cursor <= number <= MAX_CURSOR:
        raise MalformedResponse(f"X-Next-Cursor {number} is before the requested cursor {cursor}, or out of range")
    return number


def _parse_whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_CURSOR)) else None


def _parse_has_more(value: str | None) -> bool:
    if value is None or value.lower() not in ("true", "false"):
        raise MalformedResponse("X-Has-More is missing, or is neither true nor false")
    return value.lower() == "true"


def _split_lines(body: bytes) -> list[bytes]:
    # Split on \n only: JSON strings may contain all other line separators of Unicode.
    return body.removeprefix(_BOM).split(b"\n")


def _parse_lines(body: bytes) -> tuple[list[Event], list[RejectedLine]]:
    events: list[Event] = []
    rejected: list[RejectedLine] = []
    lines = _split_lines(body)
    reader = _LineParser()
    for position, line in enumerate(lines, 1):
        if not line.strip(_WHITESPACE):
            continue
        try:
            events.append(reader.event(line, position))
        except _InvalidJson as error:
            # The text after the last \n may be the beginning of a longer line.
            if position == len(lines) and not is_closed(line):
                raise MalformedResponse("the last line of the page is cut off") from None
            rejected.append(RejectedLine(position, line, str(error)))
        except _InvalidEvent as error:
            rejected.append(RejectedLine(position, line, str(error)))
    return events, rejected


def read_line(raw: bytes, line: int) -> Event | RejectedLine:
    """Parse a single line, for example one that was rejected before."""
    try:
        return _LineParser().event(raw, line)
    except (_InvalidJson, _InvalidEvent) as error:
        return RejectedLine(line, raw, str(error))


class _InvalidJson(ValueError):
    """The line is not valid JSON."""


class _InvalidEvent(ValueError):
    """The line is valid JSON, but not an event that a table can store."""


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_WHITESPACE: Final = b" \t\r"
_WHITESPACE_TEXT: Final = _WHITESPACE.decode()
_colon: Final = re.compile(r"[ \t\r]*:[ \t\r]*").match
_comma: Final = re.compile(r"[ \t\r]*(?:,[ \t\r]*(?=\")|(?=\}))").match
_open: Final = re.compile(r"\{[ \t\r]*(?=[\"}])").match
#: Escapes of NUL and of surrogates. Only decoding shows whether surrogates are paired.
_ESCAPES: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


class _Field(NamedTuple):
    """The JSON text of a field, unchanged, and its value if that is a string."""

    text: str
    value: Any


_ABSENT: Final = _Field("", None)


class _LineParser:
    """Parses lines; ``needs_raw`` tells whether a JSON column would reject or change a value of the last one."""

    def __init__(self) -> None:
        self.needs_raw = False
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._number,
            parse_float=self._number,
            parse_constant=_reject_constant,
        )
        self._scan: Callable[[str, int], tuple[Any, int]] = self._json.scan_once  # type: ignore[attr-defined]

    def event(self, line: bytes, position: int) -> Event:
        """Parse a line.

        :raises _InvalidJson: with the reason.
        :raises _InvalidEvent: with the reason.
        """
        self.needs_raw = False
        text = self._decode_line(line)
        fields = self._split_fields(text)
        event_id, kind = fields.pop("event_id", _ABSENT), fields.pop("type", _ABSENT)
        timestamp, data = fields.pop("timestamp", _ABSENT), fields.pop("data", _ABSENT)
        return Event(
            event_id=_event_id(event_id),
            type=_type(kind),
            timestamp=_timestamp(timestamp),
            data=data.text or None,
            extra_fields=_object(fields) if fields else None,
            line_number=position,
            raw=text if self.needs_raw or (_ESCAPES.search(text) and not _are_storable(data, fields)) else None,
        )

    @staticmethod
    def _decode_line(line: bytes) -> str:
        if is_deep(line):
            raise _InvalidJson(f"the JSON is nested too deeply: over {MAX_DEPTH} levels")
        try:
            return line.decode().strip(_WHITESPACE_TEXT)
        except UnicodeDecodeError as error:
            raise _InvalidJson(str(error)) from None

    def _split_fields(self, text: str) -> dict[str, _Field]:
        fields: dict[str, _Field] = {}
        try:
            offset = _open(text, 0).end()  # type: ignore[union-attr]  # None is caught below: this is a hot loop
            while text[offset] != "}":
                name, offset = self._scan(text, offset)
                start = _colon(text, offset).end()  # type: ignore[union-attr]
                value, offset = self._scan(text, start)
                if name in fields:
                    raise _InvalidEvent(f"the event has {_describe_field(name)} twice")
                fields[name] = _Field(text[start:offset], value)
                offset = _comma(text, offset).end()  # type: ignore[union-attr]
        except RecursionError:
            raise _InvalidJson("the JSON is nested too deeply") from None
        except (AttributeError, StopIteration, ValueError) as error:
            if isinstance(error, _InvalidEvent):
                raise
            raise self._explain(text) from None
        if offset + 1 != len(text):
            raise self._explain(text)
        return fields

    def _explain(self, text: str) -> ValueError:
        """Return the error for a line that is not an object."""
        try:
            self._json.decode(text)
        except ValueError as error:
            return _InvalidJson(str(error))
        except RecursionError:
            return _InvalidJson("the JSON is nested too deeply")
        return _InvalidEvent("the line is JSON, but not an object")

    def _object(self, pairs: list[tuple[str, Any]]) -> None:
        # The values are not needed; only duplicate names matter.
        if len(dict(pairs)) != len(pairs):
            self.needs_raw = True

    def _number(self, text: str) -> None:
        if not _is_storable_number(text):
            self.needs_raw = True


#: Limits of numbers in a JSON column: PostgreSQL stores at most 16,383 digits after the point, written out or implied
#: by an exponent. No double needs as many.
_MAX_DIGITS: Final = 1_000
_MAX_EXPONENT: Final = 400


def _is_storable_number(text: str) -> bool:
    if len(text) > _MAX_DIGITS or isinf(float(text)):
        return False
    return abs(int(text.lower().partition("e")[2] or 0)) <= _MAX_EXPONENT


def _are_storable(data: _Field, fields: Mapping[str, _Field]) -> bool:
    """Return whether the data and the extra fields, with their names, have no NUL and no unpaired surrogate."""
    # Encoded again without needless escapes, only a NUL is still escaped, and an unpaired surrogate fails to encode.
    try:
        values = [
            json.loads(field.text, parse_int=str, parse_float=str) for field in (data, *fields.values()) if field.text
        ]
        text = json.dumps([*fields, *values], ensure_ascii=False)
        text.encode()
    except (UnicodeEncodeError, RecursionError):  # encoding recurses deeper than decoding
        return False
    return "\\u0000" not in text


def _event_id(field: _Field) -> str:
    if field.text in ("", "null", '""'):
        raise _InvalidEvent("the event has no event_id")
    if field.text[0] not in '"-0123456789':
        raise _InvalidEvent("the event_id is neither text nor a number")
    text = _storable_text("event_id", field)
    if len(text.encode()) > MAX_EVENT_ID_BYTES:
        raise _InvalidEvent(f"the event_id is over {MAX_EVENT_ID_BYTES:,} bytes")
    return text


def _type(field: _Field) -> str:
    if not isinstance(field.value, str):
        raise _InvalidEvent("the event has no type, or its type is not text")
    return _storable_text("type", field)


def _timestamp(field: _Field) -> str | None:
    return None if field.text in ("", "null") else _storable_text("timestamp", field)


def _storable_text(name: str, field: _Field) -> str:
    """Return the value of a string field, or the JSON of any other.

    The same line must be valid in every warehouse, so the strictest one decides.

    :raises _InvalidEvent: some warehouse cannot store the text.
    """
    text = field.value if isinstance(field.value, str) else field.text
    if "\0" in text:
        raise _InvalidEvent(f"the {name} holds a NUL character, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _InvalidEvent(f"the {name} holds an unpaired surrogate, which UTF-8 cannot encode") from None
    return text


def _object(fields: dict[str, _Field]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {field.text}" for name, field in fields.items()) + "}"


def _describe_field(name: str) -> str:
    # The name of an undocumented field may be anything, even a key.
    return f'the field "{name}"' if name in _FIELDS else "an undocumented field"
