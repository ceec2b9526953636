"""The ledger's tables: one row per delivery, and counts of calls.

Several tasks write to one row, in any order and repeatedly. So no value is replaced by an older one: :func:`merge`
combines the stored row with everything that one task knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import DRAFT, PARTIAL
from outbound_transfer.protocol.outcomes import TERMINAL_STATUSES
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.rows import storable_text
from outbound_transfer.warehouse.schema import LEDGER, ensure_schema
from outbound_transfer.warehouse.tables import CALLS, DELIVERIES
from outbound_transfer.warehouse.timestamps import format_timestamp, parse_event_timestamp, utc_now

#: Status of a discarded draft.
DISCARDED: Final = "discarded"

#: Maximum number of characters of an error.
MAX_ERROR: Final = 500

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


class DeliveryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one task knows about one delivery. Timestamps: :func:`.timestamps.format_timestamp`.

    :ivar started_at: when the task first had the delivery; ``at``: time of the newest information.
    :ivar status: the service's, or ``discarded``; None if unknown, like the next five.
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
    if row["finished_at"] is None and new["status"] in (*TERMINAL_STATUSES, DISCARDED):
        new["finished_at"] = update.at
    if update.error is not msgspec.UNSET:
        new["error"] = update.error
    if update.task.is_of(row):
        new["try_number"] = max(update.task.try_number, row["try_number"])
    return new


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


def _status_rank(status: str) -> int:
    """Return the rank of a status: ranks never decrease (service-api.md, R18)."""
    if status in (*TERMINAL_STATUSES, DISCARDED):
        return 3
    # A transfer with an unknown status (service-api.md, R5) was sent.
    return {DRAFT: 0, PARTIAL: 2}.get(status, 1)


def _files(before: Sequence[Mapping[str, Any]], update: DeliveryUpdate) -> list[dict[str, Any]]:
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

    def save(self, update: DeliveryUpdate) -> None:
        """Create or update the row of a delivery."""
        self._warehouse.retry_on_conflict(lambda: self._save(update))

    def add_call_counts(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows of :data:`.tables.CALLS`."""
        self._warehouse.retry_on_conflict(lambda: self._add(rows))

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
                self._warehouse.insert(tx, DELIVERIES, [values])
            else:
                columns = ", ".join(f"[{name}] = ?" for name in _COLUMNS[2:])
                self._warehouse.run(
                    tx,
                    f"UPDATE {{deliveries}} SET {columns} WHERE [account] = ? AND [transfer_id] = ?",  # noqa: S608
                    (*values[2:], *key),
                )

    def _row(self, tx: Any, key: tuple[str, str]) -> dict[str, Any] | None:
        self._warehouse.run(
            tx,
            f"SELECT {', '.join(f'[{name}]' for name in _COLUMNS)} FROM {{deliveries}}"  # noqa: S608
            " WHERE [account] = ? AND [transfer_id] = ?",
            key,
        )
        for row in fetch_all(tx):
            found = dict(zip(_COLUMNS, row, strict=True))
            times = {name: _to_text(found[name]) for name in _TIMES}
            files = found["files"]
            return found | times | {"files": json.loads(files) if isinstance(files, str) else files}
        return None

    def _add(self, rows: Sequence[Sequence[Any]]) -> None:
        self._ensure_schema()
        with self._warehouse.transaction() as tx:
            self._warehouse.insert(tx, CALLS, rows)


def _to_text(found: Any) -> str | None:
    return format_timestamp(found) if isinstance(found, datetime) else parse_event_timestamp(found)


def _to_stored(value: Any) -> Any:
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    return storable_text(value) if isinstance(value, str) else value
