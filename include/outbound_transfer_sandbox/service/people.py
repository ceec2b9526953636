"""Users and administrators of the web application: local accounts with a password."""

from __future__ import annotations

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.models import Person, User

from . import passwords
from .attempts import Attempts
from .context import Context
from .sessions import Sessions


class PeopleService:
    def __init__(self, context: Context, attempts: Attempts, sessions: Sessions) -> None:
        self._context = context
        self._people = context.people
        self._attempts = attempts
        self._sessions = sessions

    def open(self, password: str | None) -> str | None:
        """Lets the first user and administrator in, with `password` or one that a restart finds again.

        Returns it, or None where another one was set before and none is given now.
        """
        standing = self._people.password(unspecified.FIRST_ADMINISTRATOR)
        generated = self._context.derived("password")[:20]
        if password is None and standing is not None:
            return generated if passwords.matches(generated, standing) else None
        kept = passwords.hashed(password or generated)
        self._save(unspecified.FIRST_USER, kept, administrator=False)
        self._save(unspecified.FIRST_ADMINISTRATOR, kept, administrator=True)
        return password or generated

    def admit(self, name: str, password: str, *, administrator: bool) -> None:
        """Gives a user, who may be new, a password and a role; whoever was signed in under the name is no more."""
        self._context.space.check_records(4)
        self._save(name, passwords.hashed(password), administrator=administrator)

    def _save(self, name: str, kept: str, *, administrator: bool) -> None:
        if self._context.accounts.user(name) is None:
            self._context.accounts.save_user(User(name, active=True, api_permitted=True, sending_permitted=True))
        self._people.save_password(name, kept, administrator=administrator)
        self._sessions.end_all_of(_subject(name))

    def sign_in(self, name: str, password: str) -> str:
        """A session's token. Raises 403 wrong_answer, 429 too_many_attempts."""

        def is_right() -> bool:
            known = self._people.person(name) is not None
            return passwords.matches(password, self._people.password(name)) and known

        self._attempts.judge(_subject(name), is_right, "This name and password do not belong together.")
        return self._sessions.begin(_subject(name))

    def signed_in(self, token: str) -> Person | None:
        """Whose session it is; None when it is over or its user deactivated."""
        kind, _, name = (self._sessions.subject(token) or "").partition(":")
        return self._people.person(name) if kind == "user" else None


def _subject(name: str) -> str:
    return f"user:{name}"
