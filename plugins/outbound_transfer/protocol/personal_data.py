"""Finds email addresses in any text, and puts something else in their place.

A text may be JSON, or have JSON in its strings, with escapes; whatever else it has stays as it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

from outbound_transfer.protocol.addresses import normalize_address

#: Returns what is stored in the place of an address (:func:`.normalize_address`); None if the address stays.
Replace: TypeAlias = Callable[[str], str | None]

#: Domain of everything that is stored in the place of an address; nobody can have it (RFC 2606).
HIDDEN: Final = "@address.invalid"

#: What is stored in the place of an address that is not to be stored.
ERASED: Final = f"erased{HIDDEN}"

#: Fields that are of the person whose address is in the same JSON object.
_OF_PERSON: Final = ("name", "phone")

#: Number of encodings within one another, and of characters before an @, that are looked through.
_MAX_LAYERS: Final = 5
_MAX_LOCAL: Final = 320

#: What every text with an address has, in whatever encoding is looked through.
_SIGN: Final = re.compile("@|u0040|%(?:25)*40", re.IGNORECASE)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*("?)|[{}\[\]:,]', re.DOTALL)  # a string that is cut off ends the text
_WORD: Final = re.compile(r"[^\s\"<>?&=/#;,]+")  # what is beside it in a URL stays as it is

#: The local part as it is in nearly all addresses, so that what stands before it in a text ends it; and any other.
_LOCAL_PARTS: Final = (
    re.compile(r"(?=[\w+])[\w.+'\u0300-\u036f-]+\Z"),
    re.compile(r"[^\s@\"<>(),;:\[\]\\]+\Z"),
)
_ESCAPED: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_DOMAIN: Final = re.compile(r"[\w\u0300-\u036f-]+(?:\.[\w\u0300-\u036f-]+)*")

T = TypeVar("T", str, bytes)


class _String(NamedTuple):
    """A string of JSON: its place in the text, its field, its value, and the value without addresses."""

    start: int
    stop: int
    field: str
    value: str
    redacted: str
    is_closed: bool


def redact(value: T, replace: Replace) -> T:
    """Return a text without the addresses that are replaced, nor the names of whom they belong to."""
    if isinstance(value, bytes):
        text = value.decode(errors="surrogateescape")
        redacted = _redact(text, replace)
        return value if redacted == text else redacted.encode(errors="surrogateescape")
    return _redact(value, replace)


def mask(text: T) -> T:
    """Return a text without any address, to compare it with one that was stored so."""
    return redact(text, _erase_any)


def _erase_any(_: str) -> str:
    return ERASED


def only(address: str) -> Replace:
    """Return what erases one address (:func:`.normalize_address`)."""
    return lambda other: ERASED if other == address else None


def has_hidden(*texts: str | None) -> bool:
    """Return whether something in the texts was stored in the place of an address."""
    return any(HIDDEN in text for text in texts if text)


def _redact(text: str, replace: Replace, layers: int = _MAX_LAYERS) -> str:
    if not layers or not _SIGN.search(text):
        return text
    if "%" in text:
        text = _WORD.sub(lambda word: _redact_encoded(word[0], replace, layers), text)
    parts, done = [], 0
    for start, stop, string in sorted(_strings(text, replace, layers - 1)):
        parts += [_replace_plain(text[done:start], replace), string]
        done = stop
    return "".join((*parts, _replace_plain(text[done:], replace)))


def _redact_encoded(word: str, replace: Replace, layers: int) -> str:
    decoded = unquote(word)
    redacted = decoded if decoded == word else _redact(decoded, replace, layers - 1)
    return word if redacted == decoded else redacted


def _strings(text: str, replace: Replace, layers: int) -> Iterator[tuple[int, int, str]]:
    """Yield place and new text of each string of JSON in a text, which need not be JSON as a whole."""
    objects: list[list[_String]] = [[]]
    field = ""
    for token in _TOKEN.finditer(text):
        sign = token[0][0]
        if sign in "{[":
            objects.append([])
        elif sign in "}]" and objects[1:]:
            yield from _redacted_object(text, objects.pop(), replace)
        elif sign == '"':
            value = _decode(token[0] if token[1] else f'{token[0]}"')
            objects[-1].append(_String(*token.span(), field, value, _redact(value, replace, layers), bool(token[1])))
        field = objects[-1][-1].value if sign == ":" and objects[-1] else ""
    for left in objects:
        yield from _redacted_object(text, left, replace)


def _decode(string: str) -> str:
    try:
        return str(json.loads(string, strict=False))
    except ValueError:  # it looks like a string of JSON, and is none
        return string[1:-1]


def _encode(value: str) -> str:
    # A byte that is no UTF-8 stays: it makes a line invalid. Other surrogates come from escapes.
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _redacted_object(text: str, strings: list[_String], replace: Replace) -> Iterator[tuple[int, int, str]]:
    # Of several addresses, that of the field "email" is the one that a name belongs to.
    owners = [one for one in strings if one.field == "email"] or strings
    whole = (one.redacted for one in owners if one.redacted == replace(normalize_address(one.value)) != one.value)
    person = next(whole, None)
    for one in strings:
        redacted = person if person and one.field in _OF_PERSON else one.redacted
        string = text[one.start : one.stop]
        if redacted != one.value:
            string = _encode(redacted)[: None if one.is_closed else -1]
        yield one.start, one.stop, string


def _replace_plain(text: str, replace: Replace) -> str:
    parts, done, before = [], 0, -1
    # A text is masked alike whichever of the two was replaced in it.
    patterns = _LOCAL_PARTS[1:] if replace is _erase_any else _LOCAL_PARTS
    while (at := text.find("@", before + 1)) >= 0:
        for start, stop in _addresses_at(text, max(done, before + 1), at, patterns):
            if (new := replace(normalize_address(text[start:stop]))) is not None:
                parts += [text[done:start], new]
                done = stop
                break
        before = at
    return "".join((*parts, text[done:]))


def _addresses_at(text: str, first: int, at: int, patterns: Iterable[re.Pattern[str]]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of what may be the address with the @ at a position, from no earlier than ``first`` on."""
    if domain := _DOMAIN.match(text, at + 1):
        for pattern in patterns:
            if local := pattern.search(text, max(first, at - _MAX_LOCAL), at):
                yield local.start(), domain.end()


def redact_values(values: dict[str, Any], replace: Replace) -> dict[str, Any]:
    """Return those values of a row, by column, that change without the addresses that are replaced.

    :param values: texts, bytes or None.
    """
    changed = {name: redact(value, replace) for name, value in values.items() if value}
    changed = {name: value for name, value in changed.items() if value != values[name]}
    return changed | ({"name": changed["email"]} if "email" in changed and "name" in values else {})
