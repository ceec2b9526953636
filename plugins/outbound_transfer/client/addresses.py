"""Email addresses and other texts in a form in which they can be compared."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
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
    return _join_words(unicodedata.normalize("NFC", text).casefold())


def normalize_address(address: str) -> str:
    """Return the address without the differences that mean the same mailbox, with the domain as DNS has it.

    Two people never become one: ``strauß@…`` is not ``strauss@…``, as :meth:`str.casefold` would have it, and so for
    domains (IDNA 2008).
    """
    local, at, domain = _join_words(unicodedata.normalize("NFC", address).lower()).rpartition("@")
    return f"{local}{at}{domain if domain.isascii() else _to_dns(domain)}"


def to_unicode_domain(address: str) -> str:
    """Return the address with its domain in the letters that people write; unchanged if DNS has no such domain."""
    local, at, domain = address.rpartition("@")
    try:
        return f"{local}{at}{domain.encode().decode('idna')}"
    except UnicodeError:
        return address


def _join_words(text: str) -> str:
    return " ".join(text.split())


def _to_dns(domain: str) -> str:
    import idna  # only here, as its tables take time to load

    try:
        return idna.encode(domain, uts46=True).decode()
    except UnicodeError:  # compare an invalid domain as it is
        return domain
