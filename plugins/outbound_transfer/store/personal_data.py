"""Finds a person's address in what is stored, and says what is stored in its place."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

from outbound_transfer.client.new_transfer import normalize_address

#: What is stored in the place of a text with an erased address.
ERASED: Final = "(erased)"

#: A character as JSON may write it, and JSON in JSON.
_ESCAPED: Final = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|[bfnrt])")

#: How deeply text is encoded: JSON in a URL in JSON.
_DEPTH: Final = 3

#: A word with an address, as far as it can be recognized in a text, JSON and URLs.
_PART: Final = r"[^\s,;:<>\"'()\[\]{}=|/&?\\@]"
_AT: Final = r"(?:@|%(?:25)*40|(?:\\+|%5C)u0040)"
ADDRESS: Final = re.compile(rf"(?<!{_PART}){_PART}{{1,320}}(?:{_AT}{_PART}{{1,320}})+")


class AddressSearch:
    """Finds an address in text, JSON and URLs, in any case of letters and however it is escaped there.

    ``joann@example.com`` and ``ann@example.com.au`` are not ``ann@example.com``.
    """

    def __init__(self, address: str) -> None:
        known = (address, normalize_address(address), _to_unicode_domain(address))
        # Not casefold(): "strauß@" is not "strauss@".
        self._forms = {unicodedata.normalize(form, each).lower() for each in known for form in ("NFC", "NFD")}
        letter, any_form = f"[\\w{_marks()}]", "|".join(map(re.escape, self._forms))
        self._whole = re.compile(rf"(?<!{letter})(?<!{letter}[-.+&'])(?:{any_form})(?!-|\.?{letter})")

    def matches(self, value: Any) -> bool:
        """Return whether a value has the address: text, bytes, or what JSON can be decoded to."""
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for _ in range(_DEPTH):
            if self._is_in(text):
                return True
            if (decoded := _decode(text)) == text:
                return False
            text = decoded
        return self._is_in(text)

    def _is_in(self, text: str) -> bool:
        lower = text.lower()
        return any(form in lower for form in self._forms) and self._whole.search(lower) is not None

    def hide_others(self, text: str) -> str:
        """Return a text without the addresses of others."""

        def shown(found: re.Match[str]) -> str:
            return found[0] if self.matches(found[0]) and len(re.findall(_AT, found[0])) == 1 else "***"

        return ADDRESS.sub(shown, text)


@cache
def _marks() -> str:
    """Return the characters that are parts of letters, such as vowel signs, and are no word characters for ``re``."""
    return "".join(mark for mark in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(mark)[0] == "M")


def _to_unicode_domain(address: str) -> str:
    """Return the address with its domain in the letters that people write; unchanged if DNS has no such domain."""
    local, at, domain = address.rpartition("@")
    try:
        return f"{local}{at}{domain.encode().decode('idna')}"
    except UnicodeError:
        return address


def _decode(text: str) -> str:
    """Return a text without one level of the escapes of JSON and URLs."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", unquote(text))
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def erased_content(digest: str) -> str:
    """Return what is stored in the place of an event's or a line's content."""
    return f"{ERASED} {digest}"


def read_erased_digest(content: str | None) -> str | None:
    """Return the digest of a content that was erased; None if it was not. No valid line of a feed is like it."""
    found = re.fullmatch(rf"{re.escape(ERASED)} ([0-9a-f]{{64}})", content or "")
    return found[1] if found else None
