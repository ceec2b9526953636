"""Finds a person's address in what is stored, and says what is stored in its place."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from outbound_transfer.protocol.addresses import normalize_address

#: What is stored in the place of a text with an erased address.
ERASED: Final = "(erased)"

#: A character as JSON may write it, and JSON in JSON.
_ESCAPED: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")

#: Any address, as far as it can be recognized in a text.
_ADDRESS: Final = re.compile(r"[^\s,;<>\"'\\:()\[\]{}=]+@[^\s,;<>\"'\\:()\[\]{}]+")


class AddressSearch:
    """Finds an address in text, JSON and URLs: in any case, and as ``\\u0040`` and ``%40``.

    ``joann@example.com`` and ``ann@example.com.au`` are not ``ann@example.com``.

    :param pseudonym: what may be stored in the place of the address; None if nothing is.
    """

    def __init__(self, address: str, pseudonym: str | None = None) -> None:
        self.forms = [_fold(each) for each in dict.fromkeys((address, normalize_address(address), pseudonym)) if each]
        of_any = "|".join(map(re.escape, self.forms))
        self._pattern = re.compile(rf"(?<![\w.+&#$*!^~-])(?<!\w')(?:{of_any})(?![\w-]|\.\w)")

    def matches(self, value: Any) -> bool:
        """Return whether a value has the address: text, bytes, or what JSON can be decoded to."""
        if value is None:
            return False
        text = _to_text(value)
        decoded = unquote(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), text))
        return any(self._pattern.search(_fold(each)) for each in {text, decoded})

    def hide_others(self, text: str) -> str:
        """Return a text without the addresses of others."""
        return _ADDRESS.sub(lambda found: found[0] if self.matches(found[0]) else "***", text)


def erase_list(search: AddressSearch, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return recipients or files, without the addresses and names of those that have an address."""
    return [
        {name: ERASED if name in ("email", "name") else value for name, value in each.items()}
        if search.matches(each)
        else each
        for each in items
    ]


def erased_content(digest: str) -> str:
    """Return what is stored in the place of an event's or a line's content. No line of a feed that is valid is it."""
    return f"{ERASED} {digest}"


def read_erased_digest(content: str | None) -> str | None:
    """Return the digest of a content that was erased; None if it was not."""
    return content.removeprefix(f"{ERASED} ") if content and content.startswith(f"{ERASED} ") else None


def erased_line(line: bytes) -> bytes:
    """Return what is stored in the place of a rejected line."""
    if line.startswith(ERASED.encode()):
        return line
    return erased_content(hashlib.sha256(line).hexdigest()).encode()


class RecipientNaming(NamedTuple):
    """How recipients are stored: ``names``, keyed ``pseudonyms``, or, with any other mode, not at all.

    :ivar key: the secret of pseudonyms; without it, none is stored.
    """

    mode: str = "names"
    key: str = ""

    @property
    def is_none(self) -> bool:
        """Whether nothing is stored of recipients but their number."""
        return self.mode != "names" and not (self.mode == "pseudonyms" and self.key)

    def pseudonym(self, email: str) -> str:
        """Return the pseudonym of an address: the same for the same mailbox and key."""
        digest = hmac.new(self.key.encode(), normalize_address(email).encode(errors="replace"), hashlib.sha256)
        return f"{digest.hexdigest()[:20]}@pseudonym.invalid"

    def stored(self, email: str, name: str) -> tuple[str, str]:
        """Return the address and the name that are stored of a recipient."""
        if self.is_none:
            return "", ""
        return (self.pseudonym(email), "") if self.mode == "pseudonyms" else (email, name)


#: Recipients are stored as they are.
AS_THEY_ARE: Final = RecipientNaming()


def _fold(text: str) -> str:
    # Not casefold(): "strauß@" is not "strauss@".
    return unicodedata.normalize("NFC", text).lower()


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="replace")
    return json.dumps(value, ensure_ascii=False, default=str)
