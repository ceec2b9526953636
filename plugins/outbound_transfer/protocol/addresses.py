"""Email addresses and other texts in a form in which they can be compared."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

#: U+FFFD stands for a character that could not be read.
_PLAIN_ADDRESS: Final = re.compile(r"[^\s@<>,;\ufffd]+@[^\s@<>,;\ufffd]+")


def duplicate_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the addresses that occur more than once; the service would email each of them (service-api.md, R23)."""
    counts = Counter(map(normalize_address, addresses))
    return sorted(address for address, count in counts.items() if count > 1)


def is_plain_address(text: str) -> bool:
    """Return whether a text is nothing but an address: not empty, and without a name or another address."""
    return bool(_PLAIN_ADDRESS.fullmatch(text.strip()))


def normalize_text(text: str) -> str:
    """Return the text without differences of case, white space and composed characters."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def normalize_address(address: str) -> str:
    """Return the address as :func:`normalize_text` does, with the domain as DNS has it."""
    local, at, domain = normalize_text(address).rpartition("@")
    with suppress(UnicodeError):  # compare an invalid domain as it is
        domain = domain.encode("idna").decode()
    return f"{local}{at}{domain}"
