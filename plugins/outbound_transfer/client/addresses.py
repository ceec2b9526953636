"""Email addresses and other texts in a form in which they can be compared."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress


def duplicate_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the addresses that occur more than once; the service would email each of them (service-api.md, R23)."""
    counts = Counter(map(normalize_address, addresses))
    return sorted(address for address, count in counts.items() if count > 1)


def is_plain_address(text: str) -> bool:
    """Return whether a text is nothing but an address: not empty, and without a name or another address."""
    # U+FFFD stands for a character that could not be read.
    return bool(re.fullmatch(r"[^\s@<>,;\ufffd]+@[^\s@<>,;\ufffd]+", text.strip()))


def normalize_text(text: str) -> str:
    """Return the text without differences of case, white space and composed characters."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def normalize_address(address: str) -> str:
    """Return the address without the differences that mean the same mailbox, with the domain as DNS has it.

    Two people never become one: ``strauß@…`` is not ``strauss@…``, as :meth:`str.casefold` would have it, and so for
    domains (IDNA 2008).
    """
    local, at, domain = " ".join(unicodedata.normalize("NFC", address).lower().split()).rpartition("@")
    if not domain.isascii():
        import idna  # only here, as its tables take time to load

        with suppress(UnicodeError):  # an invalid domain is compared as it is
            domain = idna.encode(domain, uts46=True).decode()
    return f"{local}{at}{domain}"


def to_unicode_domain(address: str) -> str:
    """Return the address with its domain in the letters that people write; unchanged if DNS has no such domain."""
    local, at, domain = address.rpartition("@")
    try:
        return f"{local}{at}{domain.encode().decode('idna')}"
    except UnicodeError:
        return address
