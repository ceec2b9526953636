"""Wrong answers are limited, whoever gives them: recipients, guests and users alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from outbound_transfer_sandbox import limits, unspecified
from outbound_transfer_sandbox.errors import ApiError

from .context import Context


class Attempts:
    def __init__(self, context: Context) -> None:
        self._context = context

    def judge(self, subject: str, is_right: Callable[[], bool], message: str) -> None:
        """Raises 403 wrong_answer with `message`, 429 too_many_attempts without looking after too many in a row."""
        self.count(subject, unspecified.WRONG_ANSWERS)
        if not is_right():
            raise ApiError(403, "wrong_answer", message)
        self._context.people.forget_attempts(_digest(subject))

    def count(self, subject: str, limit: int) -> None:
        """One more attempt of `subject`. Raises 429 too_many_attempts when it has had `limit` of them."""
        now = self._context.clock.now()
        since = now - unspecified.LOCKED
        kept = _digest(subject)
        if self._context.people.attempts(kept, since) >= limit:
            minutes = limits.whole_seconds(unspecified.LOCKED) // 60
            message = f"Too many attempts. Wait {minutes} minutes, then try again."
            raise ApiError(429, "too_many_attempts", message, {"Retry-After": str(minutes * 60)})
        self._context.people.add_attempt(kept, now, since)


def _digest(subject: str) -> bytes:
    """Of one length, whatever name somebody tries to sign in with."""
    return hashlib.sha256(subject.encode()).digest()
