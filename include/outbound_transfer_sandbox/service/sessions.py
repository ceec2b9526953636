"""Sessions of browsers. The cookie has a random token; only its hash is stored."""

from __future__ import annotations

import hashlib
import secrets

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import SECOND

from .context import Context


class SessionService:
    """Starts, finds and removes sessions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def start(self, subject: str) -> str:
        """Return a new token for `subject`, a user or a recipient. A token that a browser sent never becomes valid."""
        token, now = secrets.token_urlsafe(32), self._context.clock.real()
        expires_at = now + defaults.SESSION_LIFETIME_SECONDS * SECOND
        self._context.users.start_session(_digest(token), subject, now, expires_at, defaults.MAX_SESSIONS_PER_SUBJECT)
        return token

    def find_subject(self, token: str) -> str | None:
        return self._context.users.session(_digest(token), self._context.clock.real())

    def remove(self, token: str) -> None:
        self._context.users.remove_session(_digest(token))

    def remove_all(self, subject: str) -> None:
        self._context.users.remove_sessions_of(subject)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
