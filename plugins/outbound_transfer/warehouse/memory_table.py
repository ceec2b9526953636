"""The memory of deliveries in a table: one row for each delivery, owned by one try of one task.

A delivery is identified by its task instance, or by a delivery key in an account; the row's key is a digest of that. A
claim and each later read and write compare the number of the last claim, in their transaction: a try that has lost the
row can neither read nor write, and stops before its next step. Until then it can only work on the draft whose id is in
the row, which the service sends once (service-api.md, R36).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from outbound_transfer.airflow_compat.task_try import StaleTry, TaskTry
from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.protocol.events import MAX_EVENT_ID_BYTES
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.errors import DeliveryKeyInUse, MemoryUnavailable, UnreliableTable
from outbound_transfer.warehouse.schema import MEMORY_GROUP, checked_version, ensure_schema
from outbound_transfer.warehouse.tables import MEMORY
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

_WHERE: Final = "WHERE [memory_key] = ?"

_COLUMNS: Final = ", ".join(f"[{column.name}]" for column in MEMORY.columns)

_OWNER_COLUMNS: Final = ("dag_id", "run_id", "task_id", "map_index", "try_number", "run_started_at")

#: Claims that others may win before this one gives up; its task is retried.
_MAX_LOST_CLAIMS: Final = 20


class MemoryKey(NamedTuple):
    """What identifies a delivery.

    :ivar digest: SHA-256 of the identity, in hexadecimal: no database shortens it, or takes two for one.
    :ivar account: of the delivery key; None if the task instance identifies the delivery.
    :ivar delivery_key: the same.
    """

    digest: str
    account: str | None = None
    delivery_key: str | None = None

    @classmethod
    def of_task(cls, task_try: TaskTry) -> MemoryKey:
        return cls(_digest("task", *task_try.task))

    @classmethod
    def of_delivery_key(cls, account: str, delivery_key: str) -> MemoryKey:
        return cls(_digest("delivery_key", account, delivery_key), account, delivery_key)

    def __str__(self) -> str:
        return "this task's memory" if self.delivery_key is None else f"delivery key {self.delivery_key!r}"


def _digest(*identity: str | int) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


class _Row(NamedTuple):
    """In the order of the table's columns."""

    memory_key: str
    account: str | None
    delivery_key: str | None
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    run_started_at: str
    claim_number: int
    transfer_id: str | None
    sent_at: Any
    memory: str
    created_at: Any
    updated_at: Any

    @property
    def owner(self) -> TaskTry:
        return TaskTry(*self[3:9], is_fresh=False)

    @property
    def key(self) -> MemoryKey:
        return MemoryKey(self.memory_key, self.account, self.delivery_key)


class MemoryTable:
    """The table in one database.

    :param name: what errors call the database.
    """

    def __init__(
        self, warehouse: Warehouse, name: str = "the database", *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self.warehouse, self.name, self._clock = warehouse, name, clock
        self._is_ensured = False

    def of_task(self, task_try: TaskTry) -> MemoryRow:
        """Return the row of a task instance, which the try has not claimed."""
        return MemoryRow(self, MemoryKey.of_task(task_try), task_try)

    def of_delivery_key(
        self, account: str, delivery_key: str, task_try: TaskTry, *, first_values: Mapping[str, Any] | None = None
    ) -> MemoryRow:
        """Return the row of a delivery key, which the try has not claimed.

        :param first_values: what it remembers if it is not there when it is claimed.
        """
        return MemoryRow(self, MemoryKey.of_delivery_key(account, delivery_key), task_try, first_values=first_values)

    def clean(self, older_than: datetime) -> int:
        """Delete the memory of tasks that was last written before ``older_than``; return the number of rows.

        Delivery keys stay. Creates nothing: 0 if there is no table.

        :raises SchemaTooNew: the table was created by a newer version of this package.
        """
        with self.naming("Nothing was deleted"), self.warehouse.transaction() as tx:
            if checked_version(self.warehouse, tx, MEMORY_GROUP) is None:
                return 0
            statement = "DELETE FROM {memory} WHERE [delivery_key] IS NULL AND [updated_at] < ?"
            self.warehouse.run(tx, statement, (format_timestamp(older_than),))
            return self.warehouse.dialect.rowcount(tx)

    def ensure(self) -> None:
        """Make the table, if it is not there.

        :raises UnsupportedWarehouse: the database cannot keep two owners apart.
        """
        if not self._is_ensured:
            ensure_schema(self.warehouse, MEMORY_GROUP, self._clock())
            self._is_ensured = True

    def now(self) -> str:
        return format_timestamp(self._clock())

    @contextmanager
    def naming(self, what_failed: str) -> Iterator[None]:
        """Name the database in errors that are its own.

        :raises MemoryUnavailable: instead of such an error.
        """
        try:
            yield
        except OutboundTransferError:
            raise
        except Exception as error:
            # Its first line: a database may quote rows in others.
            text = "".join(str(error).strip().splitlines()[:1])[:300]
            raise MemoryUnavailable(
                f"{what_failed}: {self.name} fails with {type(error).__name__}: {text or 'no text'}. A retry continues "
                "once that database responds and has room"
            ) from error


class MemoryRow:
    """The memory of one delivery, as one try of a task reads it and, once it has claimed it, writes it.

    A task's own row that this try has claimed, by another object, need not be claimed again to write to it.

    :param first_values: what is remembered if the row is not there when it is claimed.
    :ivar is_sent: whether the delivery of a key was sent when it was to be claimed: this try only reads it.
    :ivar is_resumed: whether this very try had claimed the row before, and deferred.
    :ivar is_taken_over: whether a try had claimed the row before, this one included, and what it stored is remembered.
    """

    def __init__(
        self, table: MemoryTable, key: MemoryKey, task_try: TaskTry, *, first_values: Mapping[str, Any] | None = None
    ) -> None:
        self._table, self._warehouse, self._key, self._try = table, table.warehouse, key, task_try
        self._first_values = dict(first_values or {})
        self._claim_number = 0
        self.is_sent = self.is_resumed = self.is_taken_over = False

    # Claims.

    def claim(self, is_active: Callable[[TaskTry], bool] = lambda _: True) -> None:
        """Make this try the owner of the row, unless a key's delivery was sent: then the row is only read.

        From now on, an earlier try of the task can neither read nor write.

        :param is_active: returns whether Airflow runs the task of another try, or is going to; asked for a delivery key
            that another task owns.
        :raises DeliveryKeyInUse: another task that is active owns the key.
        :raises StaleTry: a later try of this task has claimed the row.
        :raises MemoryUnavailable: the database fails.
        :raises UnsupportedWarehouse: the database cannot keep two owners apart.
        """
        with self._table.naming(f"Nothing was sent, as {self._key} cannot be claimed"):
            self._claim(is_active)

    def _claim(self, is_active: Callable[[TaskTry], bool]) -> None:
        self._table.ensure()
        for _ in range(_MAX_LOST_CLAIMS):
            row = self._read()
            if row is not None and self._is_finished(row):
                self.is_sent = True
                return
            if row is not None:
                self._check_owner(row, is_active)
            change = partial(self._take_over, row) if row else self._insert
            if self._warehouse.retry_on_conflict(change):
                self._claim_number = row.claim_number + 1 if row else 1
                self.is_taken_over = row is not None and self._is_remembered(row)
                self.is_resumed = row is not None and self.is_taken_over and row.owner[:5] == self._try[:5]
                return
        raise DeliveryKeyInUse(f"Others claim {self._key} all the time")

    def _is_finished(self, row: _Row) -> bool:
        return row.delivery_key is not None and row.sent_at is not None

    def _is_remembered(self, row: _Row) -> bool:
        return row.delivery_key is not None or self._try.remembers(row.run_started_at)

    def _check_owner(self, row: _Row, is_active: Callable[[TaskTry], bool]) -> None:
        owner = row.owner
        if owner.task == self._try.task:
            self._try.check_newest(owner)
        elif is_active(owner):
            index = f"[{owner.map_index}]" if owner.map_index >= 0 else ""
            raise DeliveryKeyInUse(
                f"Task {owner.dag_id}.{owner.task_id}{index} of run {owner.run_id} delivers under delivery key "
                f"{row.delivery_key!r} and has not sent yet. Nothing is done; a retry returns its transfer, or goes on "
                "with its draft should it fail"
            )

    def _insert(self) -> bool:
        now = self._table.now()
        row = (*self._key, *self._try[:6], 1, None, None, json.dumps(self._first_values), now, now)
        with self._warehouse.transaction() as tx:
            return self._warehouse.insert(tx, MEMORY, [row]) == 1

    def _take_over(self, seen: _Row) -> bool:
        """Return whether the row was claimed; False if another try was faster, or a key's delivery was sent."""
        changes: dict[str, Any] = dict(zip(_OWNER_COLUMNS, self._try[:6], strict=True))
        changes["claim_number"] = seen.claim_number + 1
        if not self._is_remembered(seen):
            changes |= {"transfer_id": None, "sent_at": None, "memory": json.dumps(self._first_values)}
        # A key's delivery may have been sent meanwhile.
        condition = "[claim_number] = ? AND ([delivery_key] IS NULL OR [sent_at] IS NULL)"
        with self._warehouse.transaction() as tx:
            return self._update(tx, changes, condition, (seen.claim_number,)) == 1

    # Reads and writes.

    def get(self, key: str, default: Any = None) -> Any:
        """Return what was stored last under ``key``.

        :raises StaleTry: a later try of this task has claimed the row, or another task has since this one claimed it.
        :raises MemoryUnavailable: the database fails.
        """
        with self._table.naming(f"The task stops, as {self._key} cannot be read"):
            self._table.ensure()
            return self._values(self._read()).get(key, default)

    def _values(self, row: _Row | None) -> dict[str, Any]:
        if self._claim_number:
            row = self._check_still_owner(row)
        elif row is not None and row.delivery_key is None:
            self._try.check_newest(row.owner)
        return dict(json.loads(row.memory)) if row and self._is_remembered(row) else {}

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:  # noqa: ARG002  # until it is cleaned
        """Store a value that JSON can represent.

        :raises StaleTry: this try has not claimed the delivery key, or another one has since.
        :raises MemoryUnavailable: the database fails.
        """
        with self._table.naming(f"The task stops, as {self._key} cannot be written"):
            self._join()
            self._change(partial(_with_value, key, value))

    def record_sent(self, transfer_id: str) -> None:
        """Store that the delivery was sent: from now on, other tasks read it without a claim.

        :raises StaleTry: another try has claimed the row.
        :raises MemoryUnavailable: the database fails.
        """
        with self._table.naming(f"Transfer {transfer_id} was sent, and {self._key} cannot be written"):
            self._join()
            now, stored_id = self._table.now(), _storable_id(transfer_id)
            self._change(lambda row: {"sent_at": now, "transfer_id": stored_id or row.transfer_id})

    def check_still_owner(self) -> None:
        """Check that no other try has claimed the row.

        :raises StaleTry: this try has not claimed it, or another one has since.
        :raises MemoryUnavailable: the database fails.
        """
        with self._table.naming(f"The task does not go on, as {self._key} cannot be read"):
            self._check_still_owner(self._read())

    def of_other_keys(self, transfer_id: str) -> list[MemoryRow]:
        """Return the rows of other keys of the account under which this transfer was made, to read them."""
        with self._table.naming(f"The task stops, as {self._key} cannot be read"):
            rows = self._find("[transfer_id] = ?", transfer_id)
        return [
            self._of(row)
            for row in rows
            # Compared here, as a database may take two texts for one.
            if row.transfer_id == transfer_id
            and row.delivery_key is not None
            and (row.account == self._key.account and row.delivery_key != self._key.delivery_key)
        ]

    def _of(self, row: _Row) -> MemoryRow:
        return MemoryRow(self._table, row.key, self._try)

    def _find(self, condition: str, value: str) -> list[_Row]:
        self._table.ensure()
        with self._warehouse.read() as tx:
            rows = self._warehouse.run(tx, f"SELECT {_COLUMNS} FROM {{memory}} WHERE {condition}", (value,))  # noqa: S608
            return [_Row(*row) for row in fetch_all(rows)]

    def _join(self) -> None:
        """Share the claim of this try on its task's own row, or claim the row."""
        if self._claim_number or self._key.delivery_key is not None:
            return
        self._table.ensure()
        row = self._read()
        if row is not None and row.owner[:6] == self._try[:6]:
            self._claim_number = row.claim_number
        else:
            self._claim(lambda _: True)

    def _change(self, change: Callable[[_Row], dict[str, Any]]) -> None:
        def run() -> None:
            with self._warehouse.transaction() as tx:
                # Locks the row: no other try changes it between the read and the write.
                self._warehouse.run(tx, f"UPDATE {{memory}} SET [updated_at] = [updated_at] {_WHERE}", self._key[:1])  # noqa: S608
                self._update(tx, change(self._check_still_owner(self._row(tx))))

        self._warehouse.retry_on_conflict(run)

    def _update(self, tx: Any, changes: dict[str, Any], condition: str = "", values: tuple[Any, ...] = ()) -> int:
        """Change the row if it meets a condition; return whether it does, as 1 or 0."""
        changes = changes | {"updated_at": self._table.now()}
        changed = ", ".join(f"[{name}] = ?" for name in changes)
        statement = f"UPDATE {{memory}} SET {changed} {_WHERE}" + (f" AND {condition}" if condition else "")  # noqa: S608
        self._warehouse.run(tx, statement, (*changes.values(), self._key.digest, *values))
        return self._warehouse.dialect.rowcount(tx)

    def _check_still_owner(self, row: _Row | None) -> _Row:
        if row is None:
            raise StaleTry(f"The row of {self._key} is gone, so what was sent is not known. Nothing is sent")
        if row.claim_number < self._claim_number:
            # A replica that is behind, or a database that was restored.
            raise UnreliableTable(
                f"The database does not return the row of {self._key} as this task has written it: {self._table.name} "
                "must lead to the primary, not to a replica"
            )
        # A row that was deleted and made again counts its claims from 1.
        if row.claim_number > self._claim_number or row.owner[:6] != self._try[:6]:
            raise self._superseded(row)
        return row

    def _superseded(self, row: _Row) -> StaleTry:
        if self._key.delivery_key is None:
            self._try.check_newest(row.owner)
            return StaleTry("Another process of this try has begun: this one does nothing more, and sends nothing")
        return StaleTry(
            f"Another task has claimed {self._key} ({row.dag_id}.{row.task_id} of run {row.run_id}, try "
            f"{row.try_number}): this one does nothing more, and sends nothing. A retry returns its transfer"
        )

    def _read(self) -> _Row | None:
        with self._warehouse.read() as tx:
            return self._row(tx)

    def _row(self, tx: Any) -> _Row | None:
        rows = fetch_all(self._warehouse.run(tx, f"SELECT {_COLUMNS} FROM {{memory}} {_WHERE}", self._key[:1]))  # noqa: S608
        if len(rows) > 1:
            raise UnreliableTable(f"The table has {len(rows)} rows of {self._key}: it needs its primary key")
        return _Row(*rows[0]) if rows else None


def _with_value(key: str, value: Any, row: _Row) -> dict[str, Any]:
    """Return the changes that store a value, and the id of its draft where people read it."""
    draft_id = (value.get("draft_id") or value.get("transfer_id")) if isinstance(value, Mapping) else None
    memory = json.dumps(json.loads(row.memory) | {key: value})
    return {"memory": memory, "transfer_id": _storable_id(draft_id) or row.transfer_id}


def _storable_id(transfer_id: str | None) -> str | None:
    """Return the id for the column that people and :meth:`MemoryRow.of_other_keys` read; None if it does not fit."""
    if transfer_id and len(transfer_id) <= MAX_EVENT_ID_BYTES and transfer_id.isprintable():
        return transfer_id
    return None
