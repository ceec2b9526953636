"""Scrypt hashes of passwords and security answers, from the standard library: enough for a sandbox."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from outbound_transfer_sandbox.domain import defaults

_R, _P = 8, 1


def hash_secret(word: str) -> str:
    """Return the hash together with the salt and the cost that checking it needs."""
    salt = secrets.token_bytes(16)
    log_n = defaults.PASSWORD_LOG_N
    digest = _scrypt(word, salt, log_n)
    return "$".join([str(log_n), *(base64.b64encode(part).decode() for part in (salt, digest))])


def verify_secret(word: str, stored: str | None) -> bool:
    """Return whether `stored` is the hash of `word`.

    Without a stored hash it takes as long, so that the time does not reveal which names exist.
    """
    log_n, salt, digest = (stored or f"{defaults.PASSWORD_LOG_N}$$").split("$")
    found = _scrypt(word, base64.b64decode(salt), int(log_n))
    return hmac.compare_digest(found, base64.b64decode(digest))


def normalize_answer(text: str) -> str:
    """Return a security answer in the form in which it is compared, without case and repeated spaces."""
    return " ".join(text.casefold().split())


def _scrypt(word: str, salt: bytes, log_n: int) -> bytes:
    return hashlib.scrypt(word.encode(), salt=salt, n=1 << log_n, r=_R, p=_P, maxmem=1 << 26, dklen=32)
