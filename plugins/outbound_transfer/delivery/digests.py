"""Salted digests of plain data: what is remembered of a value that must not be stored, or is too long to be."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from typing import Any


def digest_with(value: Any, salt: str, api_key: str = "") -> str:
    """Return the digest of anything that JSON can represent; one of a secret is keyed with the connection's API key."""
    # Without the key, nobody can guess a secret from its digest, however short it is.
    data = f"{salt}{_canonical_json(value)}".encode()
    return f"{salt}${hmac.new(api_key.encode(), data, hashlib.sha256).hexdigest()}"


def digest(value: Any) -> str:
    """Return a digest with a salt of its own. Not for secrets: they could be guessed from it."""
    return digest_with(value, secrets.token_hex(8))


def matches(stored: str, value: Any, api_key: str = "") -> bool:
    """Return whether ``stored`` is the digest of a value."""
    salt, _, _ = stored.partition("$")
    return bool(stored) and hmac.compare_digest(stored, digest_with(value, salt, api_key))


def _canonical_json(value: Any) -> str:
    # The standard library's JSON escapes invalid Unicode, such as a file name in another encoding.
    return json.dumps(value, default=_json_default, sort_keys=True)


def _json_default(value: Any) -> Any:
    # The XComs of a mapped task come as a lazy sequence, whose text is not its content.
    return list(value) if isinstance(value, Iterable) else str(value)
