"""Who signs in: passwords of users and guests, sessions, and how often somebody was wrong. All secrets are hashes."""

from __future__ import annotations

from outbound_transfer_sandbox.models import Person

from .database import Database


class People:
    def __init__(self, db: Database, kept_attempts: int) -> None:
        """`kept_attempts` bounds how many subjects' wrong answers are counted at a time."""
        self._db = db
        self._kept_attempts = kept_attempts

    def person(self, user: str) -> Person | None:
        """A user who may sign in; None for everybody else and for one who is deactivated."""
        row = self._db.one(
            "SELECT c.user, c.administrator FROM credentials c JOIN users u ON u.name = c.user"
            " WHERE c.user = ? AND u.active",
            user,
        )
        return Person(row[0], bool(row[1])) if row else None

    def password(self, user: str) -> str | None:
        password: str | None = self._db.value("SELECT password FROM credentials WHERE user = ?", user)
        return password

    def save_password(self, user: str, password: str, *, administrator: bool) -> None:
        self._db.run("INSERT OR REPLACE INTO credentials VALUES (?, ?, ?)", user, password, administrator)

    def guest_password(self, email: str) -> str | None:
        password: str | None = self._db.value("SELECT password FROM guests WHERE email = ?", email)
        return password

    def add_guest(self, email: str, password: str, at: int) -> None:
        self._db.run("INSERT INTO guests VALUES (?, ?, ?)", email, password, at)

    def begin_session(self, digest: bytes, subject: str, now: int, expires_at: int, most: int) -> None:
        """`subject` says who it is and in which role. Sessions that are over go on the way, and all but the newest."""
        self._db.run("DELETE FROM sessions WHERE expires_at < ?", now)
        others = "SELECT hash FROM sessions WHERE subject = ? ORDER BY expires_at DESC, rowid DESC LIMIT -1 OFFSET ?"
        self._db.run(f"DELETE FROM sessions WHERE hash IN ({others})", subject, most - 1)  # noqa: S608 constant
        self._db.run("INSERT INTO sessions VALUES (?, ?, ?)", digest, subject, expires_at)

    def session(self, digest: bytes, now: int) -> str | None:
        """The subject of a session that is not over."""
        select = "SELECT subject FROM sessions WHERE hash = ? AND expires_at >= ?"
        subject: str | None = self._db.value(select, digest, now)
        return subject

    def end_session(self, digest: bytes) -> None:
        self._db.run("DELETE FROM sessions WHERE hash = ?", digest)

    def end_sessions_of(self, subject: str) -> None:
        self._db.run("DELETE FROM sessions WHERE subject = ?", subject)

    def attempts(self, subject: bytes, since: int) -> int:
        """How often in a row, when the last time was after `since`."""
        return self._db.value("SELECT wrong FROM attempts WHERE subject = ? AND at > ?", subject, since) or 0

    def add_attempt(self, subject: bytes, now: int, since: int) -> None:
        """One more; those of anybody whose last time was before `since` are forgotten, and the oldest of too many."""
        self._db.run("DELETE FROM attempts WHERE at <= ?", since)
        others = "SELECT subject FROM attempts WHERE subject <> ? ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?"
        self._db.run(f"DELETE FROM attempts WHERE subject IN ({others})", subject, self._kept_attempts - 1)  # noqa: S608
        upsert = "INSERT INTO attempts VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET wrong = wrong + 1, at = excluded.at"
        self._db.run(upsert, subject, now)

    def forget_attempts(self, subject: bytes) -> None:
        self._db.run("DELETE FROM attempts WHERE subject = ?", subject)
