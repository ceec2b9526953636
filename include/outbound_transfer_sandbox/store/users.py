"""Passwords of users and guests, sessions and counts of wrong answers. All secrets are stored as hashes."""

from __future__ import annotations

from outbound_transfer_sandbox.domain.models import WebUser

from .database import Database


class UserStore:
    """Reads and writes the tables of credentials, guests, sessions and attempts."""

    def __init__(self, db: Database, max_subjects: int) -> None:
        """`max_subjects` bounds for how many subjects attempts are counted at a time."""
        self._db = db
        self._max_subjects = max_subjects

    def web_user(self, user: str) -> WebUser | None:
        """Return a user who may sign in. Returns None for other names and for deactivated users."""
        row = self._db.fetch_one(
            "SELECT c.user, c.administrator FROM credentials c JOIN users u ON u.name = c.user"
            " WHERE c.user = ? AND u.active",
            user,
        )
        return WebUser(row[0], bool(row[1])) if row else None

    def password(self, user: str) -> str | None:
        password: str | None = self._db.fetch_value("SELECT password FROM credentials WHERE user = ?", user)
        return password

    def save_password(self, user: str, password: str, *, administrator: bool) -> None:
        self._db.run("INSERT OR REPLACE INTO credentials VALUES (?, ?, ?)", user, password, administrator)

    def guest_password(self, email: str) -> str | None:
        password: str | None = self._db.fetch_value("SELECT password FROM guests WHERE email = ?", email)
        return password

    def add_guest(self, email: str, password: str, registered_at: int) -> None:
        self._db.run("INSERT INTO guests VALUES (?, ?, ?)", email, password, registered_at)

    def start_session(self, digest: bytes, subject: str, now: int, expires_at: int, max_sessions: int) -> None:
        """Store a session of `subject`. Removes expired sessions and all but its newest `max_sessions`."""
        self._db.run("DELETE FROM sessions WHERE expires_at < ?", now)
        others = "SELECT hash FROM sessions WHERE subject = ? ORDER BY expires_at DESC, rowid DESC LIMIT -1 OFFSET ?"
        self._db.run(f"DELETE FROM sessions WHERE hash IN ({others})", subject, max_sessions - 1)  # noqa: S608 constant
        self._db.run("INSERT INTO sessions VALUES (?, ?, ?)", digest, subject, expires_at)

    def session(self, digest: bytes, now: int) -> str | None:
        """Return the subject of a session that has not expired."""
        select = "SELECT subject FROM sessions WHERE hash = ? AND expires_at >= ?"
        subject: str | None = self._db.fetch_value(select, digest, now)
        return subject

    def remove_session(self, digest: bytes) -> None:
        self._db.run("DELETE FROM sessions WHERE hash = ?", digest)

    def remove_sessions_of(self, subject: str) -> None:
        self._db.run("DELETE FROM sessions WHERE subject = ?", subject)

    def attempts(self, subject: bytes, since: int) -> int:
        """Return the attempts in a row of which the last was after `since`."""
        return (
            self._db.fetch_value("SELECT wrong FROM attempts WHERE subject = ? AND timestamp > ?", subject, since) or 0
        )

    def add_attempt(self, subject: bytes, now: int, since: int) -> None:
        """Count an attempt. Removes the counts whose last attempt was before `since`, and the oldest of too many."""
        self._db.run("DELETE FROM attempts WHERE timestamp <= ?", since)
        others = "SELECT subject FROM attempts WHERE subject <> ? ORDER BY timestamp DESC, rowid DESC LIMIT -1 OFFSET ?"
        self._db.run(f"DELETE FROM attempts WHERE subject IN ({others})", subject, self._max_subjects - 1)  # noqa: S608
        upsert = (
            "INSERT INTO attempts VALUES (?, 1, ?)"
            " ON CONFLICT DO UPDATE SET wrong = wrong + 1, timestamp = excluded.timestamp"
        )
        self._db.run(upsert, subject, now)

    def forget_attempts(self, subject: bytes) -> None:
        self._db.run("DELETE FROM attempts WHERE subject = ?", subject)
