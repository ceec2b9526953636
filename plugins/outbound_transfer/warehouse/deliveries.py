"""The ledger's tables: one row a delivery, and how many calls were made.

Several tasks write one row, in any order and more than once, so nothing is ever set to an older truth: a row is what
:func:`merged` makes of the one before and of all that one task knows.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import DRAFT, PARTIAL
from outbound_transfer.protocol.outcomes import FINAL
from outbound_transfer.warehouse.database import Warehouse, rows_of
from outbound_transfer.warehouse.rows import instant, occurred_at
from outbound_transfer.warehouse.schema import LEDGER, ensure
from outbound_transfer.warehouse.tables import CALLS, DELIVERIES
from outbound_transfer.warehouse.transfers import REMOVED

#: Characters of an error.
MAX_ERROR: Final = 500

#: Times that a lost race for a row, or for creating the tables, is run again: some two seconds, as on a busy machine a
#: winner may be a while at it.
_RACES: Final = 40

_COLUMNS: Final = tuple(column.name for column in DELIVERIES.columns)
_TIMES: Final = ("created_at", "sent_at", "expires_at", "ended_at", "updated_at")


class Task(msgspec.Struct, frozen=True):
    """Whose delivery it is.

    :ivar delivers: it makes the delivery, so that a row is its to begin; others only add what they see.
    """

    conn_id: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int
    delivers: bool = True

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Whether ``row`` was begun by this task, in any of its tries."""
        return all(row[name] == getattr(self, name) for name in ("dag_id", "task_id", "run_id", "map_index"))


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """All that one task knows of one delivery. Times are as :func:`.rows.instant` writes them.

    :ivar began: when the task knew of it first, ``at`` when it learned the latest.
    :ivar status: the service's, or ``removed``; None where it was not seen, and so with the next five.
    :ivar error: what ended the task's try; None where nothing did (yet); unset where that is not the task's to say.
    :ivar files: those that the task has attached: ``{"size": bytes, "sha256": hex or None}`` by name.
    :ivar dropped: names whose earlier record is not to be trusted: removed from the draft, or attached again.
    :ivar listed: sizes by name of all the files of the transfer, where the service said so and none can change.
    """

    account: str
    transfer_id: str
    task: Task
    began: str
    at: str
    status: str | None = None
    subject: str | None = None
    recipients: int | None = None
    collected: int = 0
    sent_at: str | None = None
    expires_at: str | None = None
    error: str | msgspec.UnsetType | None = msgspec.UNSET
    files: dict[str, dict[str, Any]] = {}
    dropped: frozenset[str] = frozenset()
    listed: dict[str, int] | None = None


def merged(row: Mapping[str, Any] | None, note: Note, now: str) -> dict[str, Any] | None:
    """The row with what ``note`` adds; None where there is none, and the note is not enough to begin one."""
    if row is None:
        if not note.task.delivers or note.subject is None or note.status is None:
            return None
        row = _begun(note)
    new = dict(row) | {"updated_at": now, "files": _files(row["files"], note)}
    new["bytes"] = sum(file["size"] for file in new["files"])
    if note.status is not None and _rank(note.status) >= _rank(row["status"]):
        new |= {"status": note.status, "expires_at": note.expires_at or row["expires_at"]}
    new["sent_at"] = note.sent_at or row["sent_at"]
    new["recipients"] = row["recipients"] if note.recipients is None else note.recipients
    new["collected"] = max(note.collected, row["collected"])
    if row["ended_at"] is None and new["status"] in (*FINAL, REMOVED):
        new["ended_at"] = note.at
    if note.error is not msgspec.UNSET:
        new["error"] = note.error
    if note.task.is_of(row):
        new["try_number"] = max(note.task.try_number, row["try_number"])
    return new


def _begun(note: Note) -> dict[str, Any]:
    task = {name: getattr(note.task, name) for name in _COLUMNS if hasattr(note.task, name)}
    return dict.fromkeys(_COLUMNS) | {
        **task,
        "account": note.account,
        "transfer_id": note.transfer_id,
        "subject": note.subject,
        "status": note.status,
        "files": [],
        "recipients": 0,
        "collected": 0,
        # A draft that an earlier try made was made before it was sent, and no later is known.
        "created_at": min(note.began, note.sent_at or note.began),
    }


def _rank(status: str) -> int:
    """Statuses only ever go up (service.md, States and transitions)."""
    if status in (*FINAL, REMOVED):
        return 3
    # One that service.md does not list is of a transfer that was sent.
    return {DRAFT: 0, PARTIAL: 2}.get(status, 1)


def _files(before: Sequence[Mapping[str, Any]], note: Note) -> list[dict[str, Any]]:
    known = {file["name"]: file for file in before if file["name"] not in note.dropped}
    for name, file in note.files.items():
        known[name] = {"name": name, **file, "sha256": file["sha256"] or _digest(known.get(name), file["size"])}
    if note.listed is not None:
        known = {
            name: {"name": name, "size": size, "sha256": _digest(known.get(name), size)}
            for name, size in note.listed.items()
        }
    return [dict(known[name]) for name in sorted(known)]


def _digest(file: Mapping[str, Any] | None, size: int) -> str | None:
    return file["sha256"] if file and file["size"] == size else None


def _now() -> datetime:
    return datetime.now(timezone.utc)


class DeliveryTables:
    """The ledger of one warehouse. Every method may be called again with the same, to no further effect."""

    def __init__(self, warehouse: Warehouse, *, clock: Callable[[], datetime] = _now) -> None:
        self._warehouse, self._now = warehouse, clock
        self._is_ready = False

    def save(self, note: Note) -> None:
        """Bring the row of a delivery up to what ``note`` knows."""
        self._with_others(lambda: self._save(note))

    def count(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows of :data:`.tables.CALLS`."""
        self._with_others(lambda: self._add(rows))

    def _with_others(self, write: Callable[[], None]) -> None:
        # Two that begin one row, or make the tables, at once: to one of them that is an error, unless it comes again.
        for left in range(_RACES, -1, -1):
            try:
                if not self._is_ready:
                    ensure(self._warehouse, LEDGER, self._now())
                    self._is_ready = True
                write()
                return
            except Exception as error:
                if not left or not self._is_race(error):
                    raise
            # Irregular, so that losers do not keep step with one another.
            time.sleep(random.uniform(0.01, 0.1))  # noqa: S311

    def _is_race(self, error: Exception) -> bool:
        # Every driver calls the error of a key that is there already so (PEP 249), each in a class of its own.
        is_there = any(base.__name__ == "IntegrityError" for base in type(error).__mro__)
        return is_there or self._warehouse.dialect.is_race(error)

    def _save(self, note: Note) -> None:
        key = (note.account, note.transfer_id)
        with self._warehouse.writing() as cursor:
            # Holds the row, so that no other changes it between the reading and the writing.
            self._warehouse.run(
                cursor,
                "UPDATE {deliveries} SET [updated_at] = [updated_at] WHERE [account] = ? AND [transfer_id] = ?",
                key,
            )
            before = self._row(cursor, key)
            row = merged(before, note, instant(self._now()))
            if row is None:
                return
            values = [_stored(row[name]) for name in _COLUMNS]
            if before is None:
                self._warehouse.insert(cursor, DELIVERIES, [values])
            else:
                columns = ", ".join(f"[{name}] = ?" for name in _COLUMNS[2:])
                self._warehouse.run(
                    cursor,
                    f"UPDATE {{deliveries}} SET {columns} WHERE [account] = ? AND [transfer_id] = ?",  # noqa: S608
                    (*values[2:], *key),
                )

    def _row(self, cursor: Any, key: tuple[str, str]) -> dict[str, Any] | None:
        self._warehouse.run(
            cursor,
            f"SELECT {', '.join(f'[{name}]' for name in _COLUMNS)} FROM {{deliveries}}"  # noqa: S608
            " WHERE [account] = ? AND [transfer_id] = ?",
            key,
        )
        for row in rows_of(cursor):
            found = dict(zip(_COLUMNS, row, strict=True))
            times = {name: _time(found[name]) for name in _TIMES}
            files = found["files"]
            return found | times | {"files": json.loads(files) if isinstance(files, str) else files}
        return None

    def _add(self, rows: Sequence[Sequence[Any]]) -> None:
        with self._warehouse.writing() as cursor:
            self._warehouse.insert(cursor, CALLS, rows)


def _time(found: Any) -> str | None:
    return instant(found) if isinstance(found, datetime) else occurred_at(found)


def _stored(value: Any) -> Any:
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    # PostgreSQL's text holds no NUL, and no database half a character.
    return value.encode(errors="replace").decode().replace("\0", "\ufffd") if isinstance(value, str) else value
