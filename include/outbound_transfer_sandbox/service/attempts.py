"""Wrong answers are limited, whoever gives them: recipients, guests and users alike."""

from __future__ import annotations

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
        self._context.people.forget_attempts(subject)

    def count(self, subject: str, limit: int) -> None:
        """One more attempt of `subject`. Raises 429 too_many_attempts when it has had `limit` of them."""
        now = self._context.clock.now()
        since = now - unspecified.LOCKED
        if self._context.people.attempts(subject, since) >= limit:
            minutes = limits.whole_seconds(unspecified.LOCKED) // 60
            message = f"Too many attempts. Wait {minutes} minutes, then try again."
            raise ApiError(429, "too_many_attempts", message, {"Retry-After": str(minutes * 60)})
        self._context.people.add_attempt(subject, now, since)
