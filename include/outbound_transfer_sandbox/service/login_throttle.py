"""Limits the wrong answers of recipients, guests and users."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import SECOND
from outbound_transfer_sandbox.domain.errors import ApiError

from .context import Context


class LoginThrottle:
    """Counts attempts by subject and refuses further ones for a while after too many in a row."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def verify(self, subject: str, is_right: Callable[[], bool], message: str) -> None:
        """Raise 403 wrong_answer if `is_right` is false, or 429 too_many_attempts without calling it."""
        self.count_attempt(subject, defaults.MAX_WRONG_ANSWERS)
        if not is_right():
            raise ApiError(403, "wrong_answer", message)
        self._context.users.forget_attempts(_digest(subject))

    def count_attempt(self, subject: str, limit: int) -> None:
        """Count an attempt of `subject`. Raises 429 too_many_attempts if it has made `limit` of them."""
        now = self._context.clock.now()
        since = now - defaults.LOCKOUT_SECONDS * SECOND
        digest = _digest(subject)
        if self._context.users.attempts(digest, since) >= limit:
            minutes = defaults.LOCKOUT_SECONDS // 60
            message = f"Too many attempts. Wait {minutes} minutes, then try again."
            raise ApiError(429, "too_many_attempts", message, {"Retry-After": str(minutes * 60)})
        self._context.users.add_attempt(digest, now, since)


def _digest(subject: str) -> bytes:
    """Return a digest of fixed length: a name may be as long as its sender likes."""
    return hashlib.sha256(subject.encode()).digest()
