"""Decodes pages of the event feed (service-api.md, R40 to R46) and keeps every value as it was written.

The standard library parses lines: msgspec rejects unpaired surrogates, which are valid JSON and occur in file names
from Windows, and does not report duplicate names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import isinf
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from outbound_transfer.client.errors import MalformedResponse
from outbound_transfer.wording import is_valid_unicode

CONTENT_TYPE: Final = "application/x-ndjson"

MAX_CURSOR: Final = 2**63 - 1  # cursors are integers (service-api.md, R43); a warehouse stores them in 64 bits
MAX_EVENT_ID_BYTES: Final = 500  # a warehouse indexes event_id; MySQL limits an index key to 3,072 bytes
MAX_DEPTH: Final = 500  # levels; beyond it, the depth of the call stack would decide whether a line can be decoded

#: The documented fields of an event (service-api.md, R46).
_FIELDS: Final = ("event_id", "type", "timestamp", "data")

# Of numbers in a JSON column: PostgreSQL stores at most 16,383 digits after the point, written out or by an exponent.
_MAX_DIGITS: Final = 1_000
_MAX_EXPONENT: Final = 400

_BOM: Final = b"\xef\xbb\xbf"
_WHITESPACE: Final = b" \t\r"

_open: Final = re.compile(r"\{[ \t\r]*(?=[\"}])").match
_colon: Final = re.compile(r"[ \t\r]*:[ \t\r]*").match
_comma: Final = re.compile(r"[ \t\r]*(?:,[ \t\r]*(?=\")|(?=\}))").match

#: Each escape in turn; ``refused`` is NUL, or a surrogate without its other half.
_ESCAPES: Final = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(?P<refused>u0000|u[dD][89a-fA-F])|.)", re.DOTALL)

_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_BRACKETS))


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event, complete. Its texts have no NUL and no unpaired surrogate; its JSON may have them as escapes.

    ``raw`` is the whole line, if a JSON column would reject or change ``data`` or ``extra_fields``: a NUL, an unpaired
    surrogate, a duplicate name in an object, a number beyond a double or with very many digits.
    """

    event_id: str  # a number as it was written; at most 500 bytes
    type: str
    timestamp: str | None  # a string without its quotes, anything else as JSON; None if missing or null
    data: str | None  # the payload as JSON text, unchanged
    extra_fields: str | None  # undocumented fields (service-api.md, R46) as a JSON object
    line_number: int  # within the page, from 1
    raw: str | None = None


class RejectedLine(msgspec.Struct, frozen=True):
    """A line that is not a valid event, with the reason."""

    line_number: int
    raw: bytes
    reason: str


class Page(msgspec.Struct, frozen=True):
    """One page of the feed (service-api.md, R42): the request's cursor, the next one, and all lines in their order."""

    cursor: int
    next_cursor: int
    has_more: bool
    events: tuple[Event, ...]
    rejected: tuple[RejectedLine, ...]
    body: bytes = b""

    def lines(self) -> list[bytes]:
        """Return the raw lines; index 0 is line 1."""
        # Split on \n only: JSON strings may contain all other line separators of Unicode.
        return self.body.removeprefix(_BOM).split(b"\n")


def read_page(headers: Mapping[str, str], body: bytes, *, cursor: int) -> Page:
    """Decode a page of the feed; ``headers`` have names in lower case.

    :raises MalformedResponse: a header is missing, invalid or goes backward, the content type is wrong, or the last
        line is cut off. No part of such a page may be loaded.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        raise MalformedResponse(f"the content type of the feed's response is not {CONTENT_TYPE}")
    next_cursor, has_more = parse_position(headers.get("x-next-cursor", "")), headers.get("x-has-more", "").lower()
    if next_cursor is None:
        raise MalformedResponse("X-Next-Cursor is missing or is not a whole number")
    if not cursor <= next_cursor <= MAX_CURSOR:
        raise MalformedResponse(f"X-Next-Cursor {next_cursor} is before the requested cursor {cursor}, or out of range")
    if has_more not in ("true", "false"):
        raise MalformedResponse("X-Has-More is missing, or is neither true nor false")
    page = _parse_lines(Page(cursor, next_cursor, has_more == "true", (), (), body))
    if next_cursor == cursor and any((page.has_more, page.events, page.rejected)):
        raise MalformedResponse("X-Next-Cursor did not advance, although the page has lines or the feed has more")
    return page


def parse_position(text: str) -> int | None:
    """Return a position in the feed; None if the text is not a whole number of at most 19 digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_CURSOR)) else None


def _parse_lines(page: Page) -> Page:
    events, rejected, parser = list[Event](), list[RejectedLine](), _LineParser()
    lines = page.lines()
    for number, line in enumerate(lines, 1):
        if line.strip(_WHITESPACE):
            try:
                events.append(parser.event(line, number))
            except _InvalidLine as error:
                # The text after the last \n may be the beginning of a longer line.
                if number == len(lines) and isinstance(error, _InvalidJson) and not _is_whole(line):
                    raise MalformedResponse("the last line of the page is cut off") from None
                rejected.append(RejectedLine(number, line, str(error)))
    return msgspec.structs.replace(page, events=tuple(events), rejected=tuple(rejected))


def read_line(raw: bytes, line: int) -> Event | RejectedLine:
    """Parse a single line, for example one that was rejected before."""
    try:
        return _LineParser().event(raw, line)
    except _InvalidLine as error:
        return RejectedLine(line, raw, str(error))


class _InvalidLine(ValueError): ...


class _InvalidJson(_InvalidLine): ...


class _Field(NamedTuple):
    """The JSON text of a field, unchanged, and its value if that is a string."""

    text: str
    value: Any


_ABSENT: Final = _Field("", None)


class _LineParser:
    """Parses lines. ``needs_raw``: whether a JSON column would reject or change a value of the last one."""

    def __init__(self) -> None:
        self.needs_raw = False
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._number,
            parse_float=self._number,
            parse_constant=_reject_constant,
        )
        self._scan: Callable[[str, int], tuple[Any, int]] = self._json.scan_once  # type: ignore[attr-defined]

    def event(self, line: bytes, line_number: int) -> Event:
        """:raises _InvalidLine: with the reason."""
        self.needs_raw = False
        # Nearly all lines are short or have few brackets.
        if line.count(b"{") + line.count(b"[") > MAX_DEPTH and max(_depths(line), default=0) > MAX_DEPTH:
            raise _InvalidJson(f"the JSON is nested too deeply: over {MAX_DEPTH} levels")
        try:
            text = line.decode().strip(_WHITESPACE.decode())
        except UnicodeDecodeError as error:
            raise _InvalidJson(str(error)) from None
        fields = self._split_fields(text)
        event_id, kind, timestamp, data = (fields.pop(name, _ABSENT) for name in _FIELDS)
        if "\\u" in text and any(escape["refused"] for escape in _ESCAPES.finditer(text)):
            self.needs_raw = True
        if not isinstance(kind.value, str):
            raise _InvalidLine("the event has no type, or its type is not text")
        extra_fields = ", ".join(f"{json.dumps(name)}: {field.text}" for name, field in fields.items())
        return Event(
            event_id=_event_id(event_id),
            type=_storable_text("type", kind),
            timestamp=None if timestamp.text in ("", "null") else _storable_text("timestamp", timestamp),
            data=data.text or None,
            extra_fields=f"{{{extra_fields}}}" if fields else None,
            line_number=line_number,
            raw=text if self.needs_raw else None,
        )

    def _split_fields(self, text: str) -> dict[str, _Field]:
        fields: dict[str, _Field] = {}
        try:
            offset = _open(text, 0).end()  # type: ignore[union-attr]  # None is caught below: this is a hot loop
            while text[offset] != "}":
                name, offset = self._scan(text, offset)
                start = _colon(text, offset).end()  # type: ignore[union-attr]
                value, offset = self._scan(text, start)
                if name in fields:
                    # The name of an undocumented field may be anything, even a key.
                    which = f'the field "{name}"' if name in _FIELDS else "an undocumented field"
                    raise _InvalidLine(f"the event has {which} twice")
                fields[name] = _Field(text[start:offset], value)
                offset = _comma(text, offset).end()  # type: ignore[union-attr]
        except _InvalidLine:
            raise
        except (AttributeError, StopIteration, ValueError):
            offset = len(text)
        if offset + 1 != len(text):
            raise self._explain(text)
        return fields

    def _explain(self, text: str) -> _InvalidLine:
        try:
            self._json.decode(text)
        except ValueError as error:
            return _InvalidJson(str(error))
        return _InvalidLine("the line is JSON, but not an object")

    def _object(self, pairs: list[tuple[str, Any]]) -> None:
        # The values are not needed; only duplicate names matter.
        self.needs_raw |= len(dict(pairs)) != len(pairs)

    def _number(self, text: str) -> None:
        exponent = text.lower().partition("e")[2] or 0
        is_storable = len(text) <= _MAX_DIGITS and not isinf(float(text)) and abs(int(exponent)) <= _MAX_EXPONENT
        self.needs_raw |= not is_storable


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _event_id(field: _Field) -> str:
    if field.text in ("", "null", '""'):
        raise _InvalidLine("the event has no event_id")
    if field.text[0] not in '"-0123456789':
        raise _InvalidLine("the event_id is neither text nor a number")
    text = _storable_text("event_id", field)
    if len(text.encode()) > MAX_EVENT_ID_BYTES:
        raise _InvalidLine(f"the event_id is over {MAX_EVENT_ID_BYTES:,} bytes")
    return text


def _storable_text(name: str, field: _Field) -> str:
    """Return the value of a string field, or the JSON of any other, if even the strictest warehouse can store it."""
    text = field.value if isinstance(field.value, str) else field.text
    if "\0" in text:
        raise _InvalidLine(f"the {name} holds a NUL character, which PostgreSQL cannot store")
    if not is_valid_unicode(text):
        raise _InvalidLine(f"the {name} holds an unpaired surrogate, which UTF-8 cannot encode")
    return text


def _depths(line: bytes) -> list[int]:
    """Return the depth after each bracket of a line that is outside of its strings."""
    return list(accumulate(map(_BRACKETS.__getitem__, _STRINGS.sub(b"", line).translate(None, _NO_BRACKETS))))


def _is_whole(line: bytes) -> bool:
    """Return whether an invalid line is still complete: an object that ends where its bracket is closed."""
    bare, depths = _STRINGS.sub(b"", line.strip(_WHITESPACE)), _depths(line)
    is_framed = bare.startswith(b"{") and bare.endswith(b"}") and b'"' not in bare
    return is_framed and [depth for depth in depths if depth <= 0] == depths[-1:]
