"""Who a browser is signed in as: a random token in its cookie, of which only the hash is kept."""

from __future__ import annotations

import hashlib
import secrets

from outbound_transfer_sandbox import unspecified

from .context import Context


class Sessions:
    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, subject: str) -> str:
        """A new token for `subject`, a user or a recipient; none that a browser brought along is ever made valid.

        Raises 503 service_unavailable when the disk space is used up.
        """
        token, now = secrets.token_urlsafe(32), self._context.clock.real()
        self._context.space.check_records(1)
        until = now + unspecified.SESSION_LIFETIME
        self._context.people.begin_session(_digest(token), subject, now, until, unspecified.SESSIONS_EACH)
        return token

    def subject(self, token: str) -> str | None:
        return self._context.people.session(_digest(token), self._context.clock.real())

    def end(self, token: str) -> None:
        self._context.people.end_session(_digest(token))

    def end_all_of(self, subject: str) -> None:
        self._context.people.end_sessions_of(subject)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
