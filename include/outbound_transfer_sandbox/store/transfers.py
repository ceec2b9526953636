"""Transfers, their recipients and the records of their files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from outbound_transfer_sandbox.domain.models import Draft, File, Recipient, Transfer

from .database import Database

_COLUMNS = "pk, id, user, stored_status, subject, message, security, created_at, expires_at, sent_at"
_STATUSES = frozenset({"draft", "pending", "partial", "complete", "canceled", "expired"})

# The condition of the index `listed`. Any other stored status reads as unknown, which is never listed.
_LISTED = "stored_status IN ('pending', 'partial', 'complete', 'canceled', 'expired')"


class TransferStore:
    """Reads and writes the tables of transfers, recipients and files."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, transfer_id: str, user: str, draft: Draft, now: int, expires_at: int) -> None:
        with self._db.transaction():
            pk = self._db.run(
                "INSERT INTO transfers (id, user, stored_status, subject, message, security, security_question,"
                " security_answer, created_at, expires_at) VALUES (?, ?, 'draft', ?, ?, ?, ?, ?, ?, ?)",
                *(transfer_id, user, draft.subject, draft.message, draft.security),
                *(draft.security_question, draft.security_answer, now, expires_at),
            )
            self._db.run_many(
                "INSERT INTO recipients (transfer, email, name, phone) VALUES (?, ?, ?, ?)",
                [(pk, r.email, r.name, r.phone) for r in draft.recipients],
            )

    def get(self, transfer_id: str, now: int, *, with_files: bool = True) -> Transfer | None:
        """Return a transfer with its recipients and, if `with_files`, its files."""
        self._expire(now)
        row = self._db.fetch_one(f"SELECT {_COLUMNS} FROM transfers WHERE id = ?", transfer_id)  # noqa: S608 constants
        if row is None:
            return None
        return _transfer(row, self._recipients([row[0]])[row[0]], self.files(row[0]) if with_files else [])

    def page(self, user: str, status: str, after: int, before: int, limit: int, now: int) -> list[Transfer]:
        """Return up to `limit` of the user's transfers sent between two timestamps, newest first.

        They have no files. `status` is a status, or `all` for every status but unknown.
        """
        self._expire(now)
        condition, values = (_LISTED, ()) if status == "all" else ("stored_status = ?", (status,))
        rows = self._db.fetch_all(
            f"SELECT {_COLUMNS} FROM transfers WHERE user = ? AND {condition}"  # noqa: S608 constants
            " AND sent_at > ? AND sent_at < ? ORDER BY sent_at DESC LIMIT ?",
            *(user, *values, after, before, limit),
        )
        recipients = self._recipients([row[0] for row in rows])
        return [_transfer(row, recipients[row[0]], []) for row in rows]

    def _expire(self, now: int) -> None:
        """Store the expiry of pending and partial transfers (service-api.md, R19).

        With the status stored, a page of one status is a range of an index.
        """
        self._db.run(
            "UPDATE transfers SET stored_status = 'expired'"
            " WHERE stored_status IN ('pending', 'partial') AND expires_at < ?",
            now,
        )

    def question(self, pk: int) -> tuple[str | None, str | None]:
        """Return the security question and the hash of its answer."""
        row = self._db.fetch_one("SELECT security_question, security_answer FROM transfers WHERE pk = ?", pk)
        return (row[0], row[1]) if row else (None, None)

    def last_sent_at(self) -> int:
        """Return the time of the last send of any transfer, or 0."""
        return self._db.fetch_value("SELECT max(sent_at) FROM transfers") or 0

    def outstanding(self, now: int) -> int:
        """Return how many sent transfers are outstanding (service-api.md, R57)."""
        self._expire(now)
        return int(self._db.fetch_value("SELECT count(*) FROM transfers WHERE stored_status IN ('pending', 'partial')"))

    def outstanding_since(self, sent_at: int, now: int) -> list[Transfer]:
        """Return the outstanding transfers that were sent at `sent_at` or before."""
        self._expire(now)
        rows = self._db.fetch_all(
            "SELECT id FROM transfers WHERE stored_status IN ('pending', 'partial') AND sent_at <= ?", sent_at
        )
        return [transfer for row in rows if (transfer := self.get(row["id"], now))]

    def set_status(self, pk: int, status: str) -> None:
        self._db.run("UPDATE transfers SET stored_status = ? WHERE pk = ?", status, pk)

    def set_expiry(self, pk: int, expires_at: int) -> None:
        self._db.run("UPDATE transfers SET expires_at = ? WHERE pk = ?", expires_at, pk)

    def set_sent(self, pk: int, sent_at: int, expires_at: int) -> None:
        sent = "UPDATE transfers SET stored_status = 'pending', sent_at = ?, expires_at = ? WHERE pk = ?"
        self._db.run(sent, sent_at, expires_at, pk)

    def set_picked_up(self, recipient: int, picked_up_at: int) -> None:
        self._db.run("UPDATE recipients SET picked_up_at = ? WHERE pk = ?", picked_up_at, recipient)

    def remove(self, pk: int) -> None:
        self._db.run("DELETE FROM transfers WHERE pk = ?", pk)

    def abandoned(self, now: int) -> list[Transfer]:
        """Return expired drafts."""
        rows = self._db.fetch_all("SELECT id FROM transfers WHERE stored_status = 'draft' AND expires_at < ?", now)
        return [transfer for row in rows if (transfer := self.get(row["id"], now))]

    def files(self, transfer: int) -> list[File]:
        rows = self._db.fetch_all(
            "SELECT id, name, size, content_type FROM files WHERE transfer = ? ORDER BY pk", transfer
        )
        return [File(*row) for row in rows]

    def file_named(self, transfer: int, name: str) -> File | None:
        select = "SELECT id, name, size, content_type FROM files WHERE transfer = ? AND name = ?"
        row = self._db.fetch_one(select, transfer, name)
        return File(*row) if row else None

    def file(self, transfer: int, file_id: str) -> File | None:
        select = "SELECT id, name, size, content_type FROM files WHERE transfer = ? AND id = ?"
        row = self._db.fetch_one(select, transfer, file_id)
        return File(*row) if row else None

    def add_file(self, transfer: int, file: File) -> None:
        self._db.run(
            "INSERT INTO files (transfer, id, name, size, content_type) VALUES (?, ?, ?, ?, ?)",
            *(transfer, file.id, file.name, file.size, file.content_type),
        )

    def remove_file(self, file_id: str) -> None:
        self._db.run("DELETE FROM files WHERE id = ?", file_id)

    def file_ids(self) -> set[str]:
        return {row["id"] for row in self._db.fetch_all("SELECT id FROM files")}

    def _recipients(self, transfers: list[int]) -> dict[int, list[Recipient]]:
        """Return the recipients of each transfer, in the order of the request."""
        if not transfers:
            return {}
        marks = ", ".join("?" * len(transfers))
        rows = self._db.fetch_all(
            "SELECT transfer, email, name, phone, picked_up_at, pk FROM recipients"  # noqa: S608 question marks only
            f" WHERE transfer IN ({marks}) ORDER BY pk",
            *transfers,
        )
        return _group_by_transfer(transfers, rows)


def _transfer(row: sqlite3.Row, recipients: list[Recipient], files: list[File]) -> Transfer:
    """Build a transfer from a row of `_COLUMNS`. An unlisted stored status reads as unknown (R17)."""
    pk, transfer_id, user, stored_status, subject, message, security, created_at, expires_at, sent_at = row
    return Transfer(
        pk=pk,
        id=transfer_id,
        user=user,
        status=stored_status if stored_status in _STATUSES else "unknown",
        subject=subject,
        message=message,
        security=security,
        created_at=created_at,
        expires_at=expires_at,
        sent_at=sent_at,
        recipients=recipients,
        files=files,
    )


def _group_by_transfer(transfers: list[int], rows: Iterable[sqlite3.Row]) -> dict[int, list[Recipient]]:
    groups: dict[int, list[Recipient]] = {pk: [] for pk in transfers}
    for row in rows:
        transfer, *columns = tuple[Any, ...](row)
        groups[transfer].append(Recipient(*columns))
    return groups
