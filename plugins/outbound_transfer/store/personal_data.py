"""Finds a person's address in what is stored, and says what is stored in its place."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Any, Final
from urllib.parse import unquote

from outbound_transfer.client.new_transfer import normalize_address

#: What is stored in the place of a text with an erased address.
ERASED: Final = "(erased)"

#: What is stored in the place of a content. No valid line of a feed is like it.
_ERASED_CONTENT: Final = re.compile(rf"{re.escape(ERASED)} ([0-9a-f]{{64}})")

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
        self.forms = list(
            dict.fromkeys(unicodedata.normalize(form, each).lower() for each in known for form in ("NFC", "NFD"))
        )
        self._pattern = re.compile("|".join(map(re.escape, self.forms)))

    def matches(self, value: Any) -> bool:
        """Return whether a value has the address: text, bytes, or what JSON can be decoded to."""
        text = "" if value is None else _to_text(value)
        for _ in range(_DEPTH):
            if self._is_in(text.lower()):
                return True
            if (decoded := _decode(text)) == text:
                return False
            text = decoded
        return self._is_in(text.lower())

    def _is_in(self, text: str) -> bool:
        return any(_stands_alone(text, *found.span()) for found in self._pattern.finditer(text))

    def hide_others(self, text: str) -> str:
        """Return a text without the addresses of others."""
        return ADDRESS.sub(lambda found: found[0] if self._is_alone_in(found[0]) else "***", text)

    def _is_alone_in(self, word: str) -> bool:
        return self.matches(word) and len(re.findall(_AT, word)) == 1


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


def _stands_alone(text: str, start: int, stop: int) -> bool:
    """Return whether what is found is a whole address, and no part of a longer one."""
    before, after = text[max(start - 2, 0) : start], text[stop : stop + 2]
    if _is_letter(before[-1:]) or (before[-1:] in set("-.+&'") and _is_letter(before[:-1])):
        return False
    return not (_is_letter(after[:1]) or after[:1] == "-" or (after[:1] == "." and _is_letter(after[1:])))


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_" or (character != "" and unicodedata.category(character)[0] == "M")


def erase_list(search: AddressSearch, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return recipients or files, without the addresses and names of those that have an address."""
    return [
        {name: ERASED if name in ("email", "name") else value for name, value in each.items()}
        if search.matches(each) or ("email" not in each and search.matches(each["name"].rpartition(".")[0]))
        else each
        for each in items
    ]


def erased_content(digest: str) -> str:
    """Return what is stored in the place of an event's or a line's content."""
    return f"{ERASED} {digest}"


def read_erased_digest(content: str | None) -> str | None:
    """Return the digest of a content that was erased; None if it was not."""
    found = _ERASED_CONTENT.fullmatch(content or "")
    return found[1] if found else None


def erased_line(line: bytes) -> bytes:
    """Return what is stored in the place of a rejected line."""
    if read_erased_digest(line.decode(errors="replace")):
        return line
    return erased_content(hashlib.sha256(line).hexdigest()).encode()


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="replace")
    return json.dumps(value, ensure_ascii=False, default=str)
