"""Users and administrators of the web application: names with a password."""

from __future__ import annotations

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.models import User, WebUser

from . import passwords
from .context import Context
from .login_throttle import LoginThrottle
from .sessions import SessionService


class UserService:
    """Sets passwords, and signs users in."""

    def __init__(self, context: Context, throttle: LoginThrottle, sessions: SessionService) -> None:
        self._context = context
        self._store = context.users
        self._throttle = throttle
        self._sessions = sessions

    def ensure_users(self, password: str | None) -> str | None:
        """Create the first user and administrator.

        Their password is `password`, or a generated one that a restart repeats. Returns the password, or None if an
        earlier run set one and none is given now.
        """
        stored = self._store.password(defaults.FIRST_ADMINISTRATOR)
        generated = self._context.derive_secret("password")[:20]
        if password is None and stored is not None:
            return generated if passwords.verify_secret(generated, stored) else None
        stored = passwords.hash_secret(password or generated)
        self._save(defaults.FIRST_USER, stored, administrator=False)
        self._save(defaults.FIRST_ADMINISTRATOR, stored, administrator=True)
        return password or generated

    def set_credentials(self, name: str, password: str, *, administrator: bool) -> None:
        """Set a user's password and role, creating the user if needed. Ends the user's sessions."""
        self._save(name, passwords.hash_secret(password), administrator=administrator)

    def _save(self, name: str, password_hash: str, *, administrator: bool) -> None:
        if self._context.accounts.user(name) is None:
            self._context.accounts.save_user(User(name, active=True, api_permitted=True, sending_permitted=True))
        self._store.save_password(name, password_hash, administrator=administrator)
        self._sessions.remove_all(_subject(name))

    def sign_in(self, name: str, password: str) -> str:
        """Return a session token. Raises 403 wrong_answer, 429 too_many_attempts."""

        def is_right() -> bool:
            known = self._store.web_user(name) is not None
            return passwords.verify_secret(password, self._store.password(name)) and known

        self._throttle.verify(_subject(name), is_right, "The email address or the password is wrong.")
        return self._sessions.start(_subject(name))

    def find_signed_in(self, token: str) -> WebUser | None:
        """Return the user of a session, or None if it is over or the user is deactivated."""
        kind, _, name = (self._sessions.find_subject(token) or "").partition(":")
        return self._store.web_user(name) if kind == "user" else None


def _subject(name: str) -> str:
    return f"user:{name}"
