"""Words that people choose, kept as scrypt hashes: passwords and security answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from outbound_transfer_sandbox import unspecified

_R, _P = 8, 1


def hashed(word: str) -> str:
    """The hash with all that checking it needs."""
    salt = secrets.token_bytes(16)
    log_n = unspecified.PASSWORD_LOG_N
    digest = _scrypt(word, salt, log_n)
    return "$".join([str(log_n), *(base64.b64encode(part).decode() for part in (salt, digest))])


def matches(word: str, kept: str | None) -> bool:
    """Whether `kept` is the hash of `word`. Takes as long where there is none, so that nobody learns who exists."""
    log_n, salt, digest = (kept or f"{unspecified.PASSWORD_LOG_N}$$").split("$")
    found = _scrypt(word, base64.b64decode(salt), int(log_n))
    return hmac.compare_digest(found, base64.b64decode(digest))


def normalized(answer: str) -> str:
    """A security answer as it is compared: case and spacing do not matter."""
    return " ".join(answer.casefold().split())


def _scrypt(word: str, salt: bytes, log_n: int) -> bytes:
    return hashlib.scrypt(word.encode(), salt=salt, n=1 << log_n, r=_R, p=_P, maxmem=1 << 26, dklen=32)
