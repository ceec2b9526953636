"""Pickup links, codes, and the mail that carried them. Of links and codes only hashes, except in the mail itself.

Recipients of sent transfers are never removed, so what is kept of them here needs no sweeping.
"""

from __future__ import annotations

from typing import Any

from outbound_transfer_sandbox.models import Mail

from .database import Database

_SELECT = """SELECT m.pk, m.kind, m.channel, m.address, m.secret, m.at, r.name AS recipient_name, t.id AS transfer_id,
    t.user AS sender, t.subject, t.message, t.security, t.expires_at,
    (SELECT count(*) FROM files f WHERE f.transfer = t.pk) AS files
    FROM mail m JOIN recipients r ON r.pk = m.recipient JOIN transfers t ON t.pk = r.transfer"""


class MailStore:
    def __init__(self, db: Database) -> None:
        self._db = db

    def add_links(self, links: list[tuple[bytes, int]]) -> None:
        """(hash of the token, recipient) each."""
        self._db.run_many("INSERT INTO links VALUES (?, ?)", links)

    def linked(self, digest: bytes) -> tuple[str, int] | None:
        """(transfer id, recipient) that a link leads to."""
        row = self._db.one(
            "SELECT t.id, r.pk FROM links l JOIN recipients r ON r.pk = l.recipient"
            " JOIN transfers t ON t.pk = r.transfer WHERE l.hash = ?",
            digest,
        )
        return (row[0], row[1]) if row else None

    def save_code(self, recipient: int, digest: str, expires_at: int) -> None:
        self._db.run("INSERT OR REPLACE INTO codes VALUES (?, ?, ?)", recipient, digest, expires_at)

    def code(self, recipient: int, now: int) -> str | None:
        """The hash of the code that the recipient may enter now."""
        digest: str | None = self._db.value(
            "SELECT hash FROM codes WHERE recipient = ? AND expires_at >= ?", recipient, now
        )
        return digest

    def remove_code(self, recipient: int) -> None:
        self._db.run("DELETE FROM codes WHERE recipient = ?", recipient)

    def add(self, rows: list[tuple[str, str, str, str, int, str, int]]) -> None:
        """(kind, channel, user, address, recipient, secret, at) each."""
        insert = "INSERT INTO mail (kind, channel, user, address, recipient, secret, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._db.run_many(insert, list[tuple[Any, ...]](rows))

    def page(self, user: str | None, address: str | None, before: int, limit: int) -> list[Mail]:
        """The newest mail whose pk is smaller: about one user's transfers, to one address, or all."""
        asked = {"m.user = ?": user, "m.address = ?": address}
        conditions = ["m.pk < ?", *(condition for condition, value in asked.items() if value is not None)]
        values = [value for value in asked.values() if value is not None]
        where = f" WHERE {' AND '.join(conditions)} ORDER BY m.pk DESC LIMIT ?"
        return [Mail(**dict(row)) for row in self._db.all(_SELECT + where, before, *values, limit)]

    def get(self, pk: int, user: str | None) -> Mail | None:
        """One piece of mail; with `user`, only about that user's transfers."""
        row = self._db.one(f"{_SELECT} WHERE m.pk = ? AND (? IS NULL OR m.user = ?)", pk, user, user)
        return Mail(**dict(row)) if row else None
