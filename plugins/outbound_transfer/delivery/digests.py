"""Digests of plain data: what is remembered of a value that must not be stored, or is too long to be."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any


def hash_of(*parts: Any) -> str:
    """Return the SHA-256 of anything that JSON can represent, in hexadecimal."""
    # The standard library's JSON escapes invalid Unicode, such as a file name in another encoding.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def digest(value: Any) -> str:
    """Return a digest with a salt of its own. Not for short secrets: they could be guessed from it."""
    salt = secrets.token_hex(8)
    return f"{salt}${hash_of(salt, value)}"


def matches(stored: str, value: Any) -> bool:
    """Return whether ``stored`` is the digest of a value."""
    salt, _, found = stored.partition("$")
    return found == hash_of(salt, value)
