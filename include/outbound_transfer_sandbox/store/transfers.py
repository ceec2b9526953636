"""Transfers, their recipients and the records of their files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from outbound_transfer_sandbox.models import Draft, File, Recipient, Transfer

from .database import Database

# service.md, States and transitions: expiry is seen on read and overrides only pending and partial; a stored status
# from before this vocabulary reads as unknown. `?` is now.
_STATUS = """CASE WHEN stored_status IN ('pending', 'partial') AND expires_at < ? THEN 'expired'
    WHEN stored_status IN ('draft', 'pending', 'partial', 'complete', 'canceled', 'expired') THEN stored_status
    ELSE 'unknown' END"""
_COLUMNS = (
    f"{_STATUS} AS status, pk, id, user, stored_status, subject, message, security, created_at, expires_at, sent_at"
)


class Transfers:
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
        """The transfer with its recipients and, where they are wanted, its files."""
        row = self._db.one(f"SELECT {_COLUMNS} FROM transfers WHERE id = ?", now, transfer_id)  # noqa: S608 constants
        if row is None:
            return None
        files = self.files(row["pk"]) if with_files else []
        return Transfer(**dict(row), recipients=self._recipients([row["pk"]])[row["pk"]], files=files)

    def page(self, user: str, status: str, after: int, before: int, limit: int, now: int) -> list[Transfer]:
        """Up to `limit` of the user's transfers sent between two instants, newest first, without files.

        `status` is a status, or `all` for every one but unknown.
        """
        rows = self._db.all(
            f"SELECT * FROM (SELECT {_COLUMNS} FROM transfers WHERE user = ? AND sent_at > ? AND sent_at < ?)"  # noqa: S608
            " WHERE status = ? OR (? = 'all' AND status != 'unknown') ORDER BY sent_at DESC LIMIT ?",
            *(now, user, after, before, status, status, limit),
        )
        recipients = self._recipients([row["pk"] for row in rows])
        return [Transfer(**dict(row), recipients=recipients[row["pk"]]) for row in rows]

    def question(self, pk: int) -> tuple[str | None, str | None]:
        """The security question and the hash of its answer."""
        row = self._db.one("SELECT security_question, security_answer FROM transfers WHERE pk = ?", pk)
        return (row[0], row[1]) if row else (None, None)

    def last_sent_at(self) -> int:
        """When any transfer was sent last; 0 when none was."""
        return self._db.value("SELECT max(sent_at) FROM transfers") or 0

    def outstanding(self, now: int) -> int:
        """Sent transfers of the account that are not collected, canceled or expired (service.md, Limits)."""
        count = "SELECT count(*) FROM transfers WHERE stored_status IN ('pending', 'partial') AND expires_at >= ?"
        return int(self._db.value(count, now))

    def set_status(self, pk: int, status: str) -> None:
        self._db.run("UPDATE transfers SET stored_status = ? WHERE pk = ?", status, pk)

    def set_sent(self, pk: int, sent_at: int, expires_at: int) -> None:
        sent = "UPDATE transfers SET stored_status = 'pending', sent_at = ?, expires_at = ? WHERE pk = ?"
        self._db.run(sent, sent_at, expires_at, pk)

    def set_picked_up(self, recipient: int, at: int) -> None:
        self._db.run("UPDATE recipients SET picked_up_at = ? WHERE pk = ?", at, recipient)

    def remove(self, pk: int) -> None:
        self._db.run("DELETE FROM transfers WHERE pk = ?", pk)

    def abandoned(self, now: int) -> list[Transfer]:
        """Drafts past their lifetime."""
        rows = self._db.all("SELECT id FROM transfers WHERE stored_status = 'draft' AND expires_at < ?", now)
        return [transfer for row in rows if (transfer := self.get(row["id"], now))]

    def files(self, transfer: int) -> list[File]:
        rows = self._db.all("SELECT id, name, size, content_type FROM files WHERE transfer = ? ORDER BY pk", transfer)
        return [File(*row) for row in rows]

    def file_named(self, transfer: int, name: str) -> File | None:
        select = "SELECT id, name, size, content_type FROM files WHERE transfer = ? AND name = ?"
        row = self._db.one(select, transfer, name)
        return File(*row) if row else None

    def file(self, transfer: int, file_id: str) -> File | None:
        select = "SELECT id, name, size, content_type FROM files WHERE transfer = ? AND id = ?"
        row = self._db.one(select, transfer, file_id)
        return File(*row) if row else None

    def add_file(self, transfer: int, file: File) -> None:
        self._db.run(
            "INSERT INTO files (transfer, id, name, size, content_type) VALUES (?, ?, ?, ?, ?)",
            *(transfer, file.id, file.name, file.size, file.content_type),
        )

    def remove_file(self, file_id: str) -> None:
        self._db.run("DELETE FROM files WHERE id = ?", file_id)

    def file_ids(self) -> set[str]:
        return {row["id"] for row in self._db.all("SELECT id FROM files")}

    def _recipients(self, transfers: list[int]) -> dict[int, list[Recipient]]:
        """Recipients in the order in which they were given, by transfer."""
        marks = ", ".join("?" * len(transfers))
        rows = self._db.all(
            "SELECT transfer, email, name, phone, picked_up_at, pk FROM recipients"  # noqa: S608 question marks only
            f" WHERE transfer IN ({marks}) ORDER BY pk",
            *transfers,
        )
        return _grouped(transfers, rows)


def _grouped(transfers: list[int], rows: Iterable[sqlite3.Row]) -> dict[int, list[Recipient]]:
    groups: dict[int, list[Recipient]] = {pk: [] for pk in transfers}
    for row in rows:
        transfer, *columns = tuple[Any, ...](row)
        groups[transfer].append(Recipient(*columns))
    return groups
