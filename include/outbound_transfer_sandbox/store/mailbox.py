"""Pickup links, codes and messages. Links and codes are stored as hashes, except in the messages themselves.

Recipients of sent transfers are never removed, so nothing here has to be cleaned up.
"""

from __future__ import annotations

from typing import Any

from outbound_transfer_sandbox.domain.models import Mail

from .database import Database

_SELECT = """SELECT m.pk, m.kind, m.channel, m.address, m.secret, m.timestamp,
    r.name AS recipient_name, t.id AS transfer_id,
    t.user AS sender, t.subject, t.message, t.security, t.expires_at,
    (SELECT count(*) FROM files f WHERE f.transfer = t.pk) AS files
    FROM mail m JOIN recipients r ON r.pk = m.recipient JOIN transfers t ON t.pk = r.transfer"""


class MailStore:
    """Reads and writes the tables of links, codes and messages."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add_links(self, links: list[tuple[bytes, int]]) -> None:
        """Store links as (hash of the token, recipient)."""
        self._db.run_many("INSERT INTO links VALUES (?, ?)", links)

    def linked(self, digest: bytes) -> tuple[str, int] | None:
        """Return the (transfer id, recipient) of a link."""
        row = self._db.fetch_one(
            "SELECT t.id, r.pk FROM links l JOIN recipients r ON r.pk = l.recipient"
            " JOIN transfers t ON t.pk = r.transfer WHERE l.hash = ?",
            digest,
        )
        return (row[0], row[1]) if row else None

    def save_code(self, recipient: int, digest: str, expires_at: int) -> None:
        self._db.run("INSERT OR REPLACE INTO codes VALUES (?, ?, ?)", recipient, digest, expires_at)

    def code(self, recipient: int, now: int) -> str | None:
        """Return the hash of the code that is valid for the recipient now."""
        digest: str | None = self._db.fetch_value(
            "SELECT hash FROM codes WHERE recipient = ? AND expires_at >= ?", recipient, now
        )
        return digest

    def remove_code(self, recipient: int) -> None:
        self._db.run("DELETE FROM codes WHERE recipient = ?", recipient)

    def add(self, rows: list[tuple[str, str, str, str, int, str, int]]) -> None:
        """Store messages as (kind, channel, user, address, recipient, secret, timestamp)."""
        insert = (
            "INSERT INTO mail (kind, channel, user, address, recipient, secret, timestamp) VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        self._db.run_many(insert, list[tuple[Any, ...]](rows))

    def page(self, user: str | None, address: str | None, before: int, limit: int) -> list[Mail]:
        """Return messages before a pk, newest first, of one user's transfers or to one address if given."""
        filters = {"m.user = ?": user, "m.address = ?": address}
        conditions = ["m.pk < ?", *(condition for condition, value in filters.items() if value is not None)]
        values = [value for value in filters.values() if value is not None]
        where = f" WHERE {' AND '.join(conditions)} ORDER BY m.pk DESC LIMIT ?"
        return [Mail(**dict(row)) for row in self._db.fetch_all(_SELECT + where, before, *values, limit)]

    def get(self, pk: int, user: str | None) -> Mail | None:
        """Return a message. With `user`, it must belong to one of that user's transfers."""
        row = self._db.fetch_one(f"{_SELECT} WHERE m.pk = ? AND (? IS NULL OR m.user = ?)", pk, user, user)
        return Mail(**dict(row)) if row else None
