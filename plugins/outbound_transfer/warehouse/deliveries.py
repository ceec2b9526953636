"""The ledger's tables: one row per delivery, its recipients, and counts of calls.

Several tasks write to one row, in any order and repeatedly. So no value is replaced by an older one: :func:`merge`
combines the stored row with everything that one task knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import COMPLETE, DRAFT
from outbound_transfer.protocol.outcomes import IN_DOUBT, REHEARSED, TERMINAL_STATUSES, status_rank
from outbound_transfer.protocol.personal_data import ERASED
from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.errors import DuplicateRow
from outbound_transfer.warehouse.rows import storable_text
from outbound_transfer.warehouse.schema import LEDGER, LISTING, ensure_schema, is_current
from outbound_transfer.warehouse.tables import DELIVERIES, DELIVERY_RECIPIENTS
from outbound_transfer.warehouse.timestamps import format_timestamp, parse_event_timestamp, utc_now

#: Status of a discarded draft.
DISCARDED: Final = "discarded"

#: Status of a task whose last try failed before it had a draft.
FAILED: Final = "failed"

#: Account of the rows with that status, which belong to none. Some databases take empty text for NULL.
NO_ACCOUNT: Final = "-"

#: Maximum number of characters of an error, and of an address or a name.
MAX_ERROR: Final = 500
_MAX_NAME: Final = 320

#: How old deliveries in doubt are at most that are counted.
_RECENT: Final = timedelta(days=30)

#: After which time without news a delivery stays in doubt.
_STAYS: Final = timedelta(minutes=15)

_COLUMNS: Final = tuple(column.name for column in DELIVERIES.columns)
_TIMES: Final = ("created_at", "sent_at", "expires_at", "finished_at", "updated_at")


class TaskRef(msgspec.Struct, frozen=True):
    """The task that an update comes from.

    :ivar owns_delivery: the task makes the delivery, so it may create the row; other tasks only update it.
    """

    conn_id: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int
    owns_delivery: bool = True

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Return whether this task created ``row``, in any of its tries."""
        return all(row[name] == getattr(self, name) for name in ("dag_id", "task_id", "run_id", "map_index"))


class RecipientPickup(msgspec.Struct, frozen=True, array_like=True):
    """A recipient, and when the recipient picked up (:func:`.timestamps.format_timestamp`); None until then."""

    email: str
    name: str
    picked_up_at: str | None


class DeliveryFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A task's try that failed before it had a draft.

    :ivar error: its first line, without secrets.
    :ivar at: when it failed (:func:`.timestamps.format_timestamp`).
    """

    task: TaskRef
    subject: str
    error: str
    at: str

    @property
    def transfer_id(self) -> str:
        return failure_id(self.task)


def failure_id(task: TaskRef) -> str:
    """Return what stands for a transfer's id in the row of a task without a draft."""
    names = (task.dag_id, task.task_id, task.run_id, str(task.map_index))
    return "failed-" + hashlib.sha256("\0".join(names).encode(errors="replace")).hexdigest()[:32]


class DeliveryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one task knows about one delivery. Timestamps: :func:`.timestamps.format_timestamp`.

    :ivar started_at: when the task first had the delivery; ``at``: time of the newest information.
    :ivar status: the service's, ``in doubt``, ``discarded`` or ``rehearsed``; None if unknown, like the next seven.
    :ivar recipients: those of a sent transfer; empty if they are unknown, or not to be recorded.
    :ivar error: error of the task's try; None if there is none (yet); unset if the task does not own the delivery.
    :ivar files: files that the task has attached: ``{"size": bytes, "sha256": hex or None}`` by name.
    :ivar untrusted_files: names of files that were removed or attached again: their stored record is outdated.
    :ivar final_file_sizes: sizes by name of all files of a sent transfer, if the service listed them.
    """

    account: str
    transfer_id: str
    task: TaskRef
    started_at: str
    at: str
    status: str | None = None
    subject: str | None = None
    recipient_count: int | None = None
    recipients: tuple[RecipientPickup, ...] = ()
    picked_up_count: int = 0
    sent_at: str | None = None
    expires_at: str | None = None
    error: str | msgspec.UnsetType | None = msgspec.UNSET
    files: dict[str, dict[str, Any]] = {}
    untrusted_files: frozenset[str] = frozenset()
    final_file_sizes: dict[str, int] | None = None


def merge(row: Mapping[str, Any] | None, update: DeliveryUpdate, now: str) -> dict[str, Any] | None:
    """Return the row with the values of ``update``; None if there is no row and the update cannot create one."""
    if row is None:
        if not update.task.owns_delivery or update.subject is None or update.status is None:
            return None
        row = _new_row(update)
    new = dict(row) | {"updated_at": now, "files": _files(row["files"], update)}
    new["size_bytes"] = sum(file["size"] for file in new["files"])
    if update.status is not None and _status_rank(update.status) >= _status_rank(row["status"]):
        new |= {"status": update.status, "expires_at": update.expires_at or row["expires_at"]}
    new["sent_at"] = update.sent_at or row["sent_at"]
    new["recipient_count"] = row["recipient_count"] if update.recipient_count is None else update.recipient_count
    new["picked_up_count"] = max(update.picked_up_count, row["picked_up_count"])
    if row["finished_at"] is None and new["status"] in (*TERMINAL_STATUSES, DISCARDED, REHEARSED):
        new["finished_at"] = update.at
    if update.error is not msgspec.UNSET:
        new["error"] = update.error
    if update.task.is_of(row):
        new["try_number"] = max(update.task.try_number, row["try_number"])
    return new


def merge_recipients(
    before: Sequence[Mapping[str, Any]], recipients: Sequence[RecipientPickup]
) -> list[dict[str, Any]]:
    """Return the stored recipients with the pickups of ``recipients``. A pickup that is stored stays."""
    found = [(storable_text(one.email[:_MAX_NAME]), storable_text(one.name[:_MAX_NAME]), one) for one in recipients]
    if any(one["email"] == ERASED for one in before):  # nobody knows who that was
        picked_up = {email: one.picked_up_at for email, _, one in found}
        return [{**one, "picked_up_at": one["picked_up_at"] or picked_up.get(one["email"])} for one in before]
    known = {(at, one["email"]): one["picked_up_at"] for at, one in enumerate(before)}
    return [
        {"email": email, "name": name, "picked_up_at": known.get((at, email)) or one.picked_up_at}
        for at, (email, name, one) in enumerate(found)
    ]


def _new_row(update: DeliveryUpdate) -> dict[str, Any]:
    task = {name: getattr(update.task, name) for name in _COLUMNS if hasattr(update.task, name)}
    return dict.fromkeys(_COLUMNS) | {
        **task,
        "account": update.account,
        "transfer_id": update.transfer_id,
        "subject": update.subject,
        "status": update.status,
        "files": [],
        "recipient_count": 0,
        "picked_up_count": 0,
        # A draft of a previous try was created before it was sent; nothing more is known.
        "created_at": min(update.started_at, update.sent_at or update.started_at),
    }


def _new_row_of_failure(failure: DeliveryFailure) -> dict[str, Any]:
    task = {name: getattr(failure.task, name) for name in _COLUMNS if hasattr(failure.task, name)}
    return dict.fromkeys(_COLUMNS) | {
        **task,
        "account": NO_ACCOUNT,
        "transfer_id": failure.transfer_id,
        "subject": failure.subject,
        "status": FAILED,
        "error": failure.error,
        "files": [],
        "size_bytes": 0,
        "recipient_count": 0,
        "picked_up_count": 0,
        "created_at": failure.at,
        "finished_at": failure.at,
    }


def _status_rank(status: str) -> int:
    return status_rank({DISCARDED: COMPLETE, REHEARSED: COMPLETE, IN_DOUBT: DRAFT}.get(status, status))


def _files(before: Sequence[Mapping[str, Any]], update: DeliveryUpdate) -> list[dict[str, Any]]:
    if any(file["name"] == ERASED for file in before):
        return [dict(file) for file in before]
    known = {file["name"]: file for file in before if file["name"] not in update.untrusted_files}
    for name, file in update.files.items():
        known[name] = {"name": name, **file, "sha256": file["sha256"] or _digest(known.get(name), file["size"])}
    if update.final_file_sizes is not None:
        known = {
            name: {"name": name, "size": size, "sha256": _digest(known.get(name), size)}
            for name, size in update.final_file_sizes.items()
        }
    return [dict(known[name]) for name in sorted(known)]


def _digest(file: Mapping[str, Any] | None, size: int) -> str | None:
    return file["sha256"] if file and file["size"] == size else None


class DeliveryTables:
    """The ledger in one warehouse. A repeated call with the same arguments has no further effect."""

    def __init__(self, warehouse: Warehouse, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._warehouse, self._now = warehouse, clock
        self._is_ready = False

    def save(self, update: DeliveryUpdate | DeliveryFailure) -> None:
        """Create or update the row of a delivery."""
        if isinstance(update, DeliveryFailure):
            self._warehouse.retry_on_conflict(lambda: self._save_failure(update))
        else:
            self._warehouse.retry_on_conflict(lambda: self._save(update))

    def count_in_doubt(self, conn_id: str) -> int:
        """Return how many recent deliveries of a connection stay in doubt: longer than a task takes to find out, and
        unknown to the tables of transfers. Makes no table: 0 if there is none of this version.
        """
        now = self._now()
        with self._warehouse.read() as tx:
            if not is_current(self._warehouse, tx, LEDGER):
                return 0
            self._warehouse.run(
                tx,
                "SELECT [account], [transfer_id] FROM {deliveries}"
                " WHERE [created_at] > ? AND [status] = ? AND [conn_id] = ? AND [updated_at] < ?",
                (format_timestamp(now - _RECENT), IN_DOUBT, conn_id, format_timestamp(now - _STAYS)),
            )
            keys = fetch_all(tx)
        return sum(not self._is_listed(key) for key in keys)

    def _is_listed(self, key: Sequence[str]) -> bool:
        with self._warehouse.read() as tx:
            if not is_current(self._warehouse, tx, LISTING):
                return False
            query = "SELECT count(*) FROM {transfers} WHERE [account] = ? AND [transfer_id] = ?"
            return bool(scalar(tx, self._warehouse.render(query), key))

    def _ensure_schema(self) -> None:
        if not self._is_ready:
            ensure_schema(self._warehouse, LEDGER, self._now())
            self._is_ready = True

    def _save(self, update: DeliveryUpdate) -> None:
        self._ensure_schema()
        key = (update.account, update.transfer_id)
        with self._warehouse.transaction() as tx:
            # Locks the row, so that no other session changes it between the read and the write.
            self._warehouse.run(
                tx,
                "UPDATE {deliveries} SET [updated_at] = [updated_at] WHERE [account] = ? AND [transfer_id] = ?",
                key,
            )
            before = self._row(tx, key)
            row = merge(before, update, format_timestamp(self._now()))
            if row is None:
                return
            values = [_to_stored(row[name]) for name in _COLUMNS]
            if before is None:
                if not self._warehouse.insert(tx, DELIVERIES, [values]):
                    raise DuplicateRow
                self._delete(tx, (NO_ACCOUNT, failure_id(update.task)))
            else:
                columns = ", ".join(f"[{name}] = ?" for name in _COLUMNS[2:])
                self._warehouse.run(
                    tx,
                    f"UPDATE {{deliveries}} SET {columns} WHERE [account] = ? AND [transfer_id] = ?",  # noqa: S608
                    (*values[2:], *key),
                )
            if update.recipients:
                self._save_recipients(tx, key, update.recipients)

    def _save_recipients(self, tx: Any, key: tuple[str, str], recipients: Sequence[RecipientPickup]) -> None:
        """Create or update the row of a delivery's recipients, while the delivery's row is locked."""
        condition = "WHERE [account] = ? AND [transfer_id] = ?"
        query = f"SELECT [recipients] FROM {{delivery_recipients}} {condition}{self._warehouse.dialect.row_lock}"  # noqa: S608
        self._warehouse.run(tx, query, key)  # an erasure waits, or is seen
        before = [_from_json(row[0]) for row in fetch_all(tx)]
        merged, now = merge_recipients(before[0] if before else (), recipients), format_timestamp(self._now())
        if not before:
            self._warehouse.insert(tx, DELIVERY_RECIPIENTS, [(*key, _to_stored(merged), now)])
        elif merged != before[0]:
            self._warehouse.run(
                tx,
                f"UPDATE {{delivery_recipients}} SET [recipients] = ?, [updated_at] = ? {condition}",  # noqa: S608
                (_to_stored(merged), now, *key),
            )

    def _save_failure(self, failure: DeliveryFailure) -> None:
        """Record the error in the row of the task's draft, if an earlier try made one that is not discarded; otherwise
        in a row of its own, which is removed with the task's next draft.
        """
        self._ensure_schema()
        task, key = failure.task, (NO_ACCOUNT, failure.transfer_id)
        with self._warehouse.transaction() as tx:
            self._warehouse.run(
                tx,
                "SELECT [account], [transfer_id], [try_number] FROM {deliveries} WHERE [run_id] = ? AND [dag_id] = ?"
                " AND [task_id] = ? AND [map_index] = ? AND [status] NOT IN (?, ?, ?) ORDER BY [created_at] DESC",
                (task.run_id, task.dag_id, task.task_id, task.map_index, DISCARDED, REHEARSED, FAILED),
            )
            if drafts := fetch_all(tx):
                *draft, try_number = drafts[0]
                if try_number <= task.try_number:
                    self._warehouse.run(
                        tx,
                        "UPDATE {deliveries} SET [error] = ?, [try_number] = ?, [updated_at] = ?"
                        " WHERE [account] = ? AND [transfer_id] = ?",
                        (storable_text(failure.error), task.try_number, format_timestamp(self._now()), *draft),
                    )
                return
            before = self._row(tx, key)
            self._delete(tx, key)
            row = _new_row_of_failure(failure) | {"updated_at": format_timestamp(self._now())}
            if before and before["subject"] == ERASED:
                row["subject"] = ERASED
            self._warehouse.insert(tx, DELIVERIES, [[_to_stored(row[name]) for name in _COLUMNS]])

    def _delete(self, tx: Any, key: tuple[str, str]) -> None:
        self._warehouse.run(tx, "DELETE FROM {deliveries} WHERE [account] = ? AND [transfer_id] = ?", key)

    def _row(self, tx: Any, key: tuple[str, str]) -> dict[str, Any] | None:
        self._warehouse.run(
            tx,
            f"SELECT {', '.join(f'[{name}]' for name in _COLUMNS)} FROM {{deliveries}}"  # noqa: S608
            f" WHERE [account] = ? AND [transfer_id] = ?{self._warehouse.dialect.row_lock}",
            key,
        )
        for row in fetch_all(tx):
            found = dict(zip(_COLUMNS, row, strict=True))
            times = {name: _to_text(found[name]) for name in _TIMES}
            return found | times | {"files": _from_json(found["files"])}
        return None


def _to_text(found: Any) -> str | None:
    return format_timestamp(found) if isinstance(found, datetime) else parse_event_timestamp(found)


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value  # some drivers decode it


def _to_stored(value: Any) -> Any:
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    return storable_text(value) if isinstance(value, str) else value
