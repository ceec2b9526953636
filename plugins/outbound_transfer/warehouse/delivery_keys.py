"""What is known of each delivery key, in a table: one row, owned by one attempt of one task.

The row is the state store of its delivery. A claim and each write compare the number of the last claim in their
transaction, so an attempt that has lost the key can write nothing, and stops before its next step. Until then it can
only work on the draft whose id is in the row, which the service sends once (service-api.md, R36).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from outbound_transfer.airflow_compat.task_attempt import StaleAttempt, TaskAttempt
from outbound_transfer.protocol.events import MAX_EVENT_ID_BYTES
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.errors import DeliveryKeyInUse, UnreliableTable
from outbound_transfer.warehouse.schema import DELIVERY_KEYS_GROUP, ensure_schema
from outbound_transfer.warehouse.tables import DELIVERY_KEYS
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

_WHERE: Final = "WHERE [account] = ? AND [delivery_key] = ?"

_COLUMNS: Final = ", ".join(f"[{column.name}]" for column in DELIVERY_KEYS.columns)

#: Claims that others may win before this one gives up; its task is retried.
_MAX_LOST_CLAIMS: Final = 20


class _KeyRow(NamedTuple):
    """In the order of the table's columns."""

    account: str
    delivery_key: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    run_started_at: str
    claim_number: int
    transfer_id: str | None
    sent_at: Any
    state: str
    created_at: Any
    updated_at: Any

    @property
    def owner(self) -> TaskAttempt:
        return TaskAttempt(*self[2:8], is_fresh=False)


class KeyState:
    """The state of a delivery key, as one attempt of a task reads it and, once it has claimed it, writes it.

    :param attempt: of the task.
    :param first_values: what is stored under a key that is not there, when it is claimed.
    :ivar is_sent: whether the delivery was sent when the key was to be claimed: its state never changes again.
    :ivar is_resumed: whether this very attempt had the key before, and deferred.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        account: str,
        delivery_key: str,
        attempt: TaskAttempt,
        *,
        first_values: Mapping[str, Any] | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._warehouse, self._attempt, self._now = warehouse, attempt, clock
        self._id = (account, delivery_key)
        self._first_values = dict(first_values or {})
        self._claim_number = 0
        self.is_sent = self.is_resumed = False

    @property
    def is_taken_over(self) -> bool:
        """Whether the key was claimed before this attempt has claimed it."""
        return self._claim_number > 1

    def claim(self, is_active: Callable[[TaskAttempt], bool]) -> None:
        """Make this attempt the owner of the key, unless its delivery was sent: then the key is only read.

        :param is_active: returns whether Airflow runs the task of another attempt, or is going to.
        :raises DeliveryKeyInUse: another task that is active owns the key.
        :raises StaleAttempt: a later try of this task has claimed it.
        :raises UnsupportedWarehouse: the database cannot keep two owners apart.
        """
        self.ensure_tables()
        for _ in range(_MAX_LOST_CLAIMS):
            row = self._read()
            if row is not None and row.sent_at is not None:
                self.is_sent = True
                return
            if row is not None:
                self._check_owner(row, is_active)
            change = partial(self._take_over, row) if row else self._insert
            if self._warehouse.retry_on_conflict(change):
                self._claim_number = row.claim_number + 1 if row else 1
                self.is_resumed = row is not None and row.owner[:5] == self._attempt[:5]
                return
        raise DeliveryKeyInUse(f"Other tasks claim delivery key {self._id[1]!r} all the time")

    def ensure_tables(self) -> None:
        """Make the table, if it is not there.

        :raises UnsupportedWarehouse: the database cannot keep two owners apart.
        """
        ensure_schema(self._warehouse, DELIVERY_KEYS_GROUP, self._now())

    def _check_owner(self, row: _KeyRow, is_active: Callable[[TaskAttempt], bool]) -> None:
        owner, attempt = row.owner, self._attempt
        if owner[:4] == attempt[:4]:
            # A run that was deleted and made anew counts its tries from 1; it was started later.
            if owner.try_number > attempt.try_number and owner.run_started_at >= attempt.run_started_at:
                raise attempt.superseded(owner.try_number)
        elif is_active(owner):
            index = f"[{owner.map_index}]" if owner.map_index >= 0 else ""
            raise DeliveryKeyInUse(
                f"Task {owner.dag_id}.{owner.task_id}{index} of run {owner.run_id} delivers under delivery key "
                f"{row.delivery_key!r} and has not sent yet. Nothing is done; a retry returns its transfer, or goes on "
                "with its draft should it fail"
            )

    def _insert(self) -> bool:
        now = format_timestamp(self._now())
        row = (*self._id, *self._attempt[:6], 1, None, None, json.dumps(self._first_values), now, now)
        with self._warehouse.transaction() as tx:
            return self._warehouse.insert(tx, DELIVERY_KEYS, [row]) == 1

    def _take_over(self, seen: _KeyRow) -> bool:
        """Return whether the key was claimed; False if another attempt was faster, or its delivery was sent."""
        changed = ", ".join(f"[{column.name}] = ?" for column in DELIVERY_KEYS.columns[2:9])
        values = (*self._attempt[:6], seen.claim_number + 1, format_timestamp(self._now()))
        condition = f"{_WHERE} AND [claim_number] = ? AND [sent_at] IS NULL"
        with self._warehouse.transaction() as tx:
            statement = f"UPDATE {{delivery_keys}} SET {changed}, [updated_at] = ? {condition}"  # noqa: S608
            self._warehouse.run(tx, statement, (*values, *self._id, seen.claim_number))
            return self._warehouse.dialect.rowcount(tx) == 1

    def get(self, key: str, default: Any = None) -> Any:
        """Return what was stored last under ``key``.

        :raises StaleAttempt: this attempt has claimed the delivery key, and another one has since.
        """
        row = self._read()
        if self._claim_number:
            row = self._check_still_owner(row)
        return json.loads(row.state).get(key, default) if row else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:  # noqa: ARG002  # rows are never cleaned
        """Store a value that JSON can represent.

        :raises StaleAttempt: this attempt has not claimed the delivery key, or another one has since.
        """
        self._warehouse.retry_on_conflict(lambda: self._set(key, value))

    def _set(self, key: str, value: Any) -> None:
        transfer_id = value.get("transfer_id") if isinstance(value, Mapping) else None

        def change(row: _KeyRow) -> dict[str, Any]:
            state = json.dumps(json.loads(row.state) | {key: value})
            return {"state": state, "transfer_id": _storable_id(transfer_id) or row.transfer_id}

        self._change(change)

    def record_sent(self, transfer_id: str) -> None:
        """Store that the delivery was sent: from now on, other tasks read it without a claim.

        :raises StaleAttempt: another attempt has claimed the delivery key.
        """
        now = format_timestamp(self._now())
        self._warehouse.retry_on_conflict(
            lambda: self._change(lambda _: {"sent_at": now, "transfer_id": _storable_id(transfer_id)})
        )

    def check_still_owner(self) -> None:
        """:raises StaleAttempt: this attempt has not claimed the delivery key, or another one has since."""
        self._check_still_owner(self._read())

    def in_other_accounts(self) -> list[KeyState]:
        """Return the states of this key in other accounts, in so far as this task is their owner, to read them."""
        account, delivery_key = self._id
        rows = self._find("WHERE [delivery_key] = ? AND [account] <> ?", (delivery_key, account))
        return [self._of(row) for row in rows if row.owner[:4] == self._attempt[:4]]

    def of_other_keys(self, transfer_id: str) -> list[KeyState]:
        """Return the states of other keys of the account under which this transfer was made, to read them."""
        account, delivery_key = self._id
        condition = "WHERE [account] = ? AND [transfer_id] = ? AND [delivery_key] <> ?"
        return [self._of(row) for row in self._find(condition, (account, transfer_id, delivery_key))]

    def _of(self, row: _KeyRow) -> KeyState:
        return KeyState(self._warehouse, row.account, row.delivery_key, self._attempt)

    def _find(self, condition: str, parameters: tuple[str, ...]) -> list[_KeyRow]:
        with self._warehouse.read() as tx:
            rows = self._warehouse.run(tx, f"SELECT {_COLUMNS} FROM {{delivery_keys}} {condition}", parameters)  # noqa: S608
            return [_KeyRow(*row) for row in fetch_all(rows)]

    def _change(self, change: Callable[[_KeyRow], dict[str, Any]]) -> None:
        with self._warehouse.transaction() as tx:
            # Locks the row: no other attempt changes it between the read and the write.
            self._warehouse.run(tx, f"UPDATE {{delivery_keys}} SET [updated_at] = [updated_at] {_WHERE}", self._id)  # noqa: S608
            values = change(self._check_still_owner(self._row(tx))) | {"updated_at": format_timestamp(self._now())}
            changed = ", ".join(f"[{name}] = ?" for name in values)
            self._warehouse.run(
                tx,
                f"UPDATE {{delivery_keys}} SET {changed} {_WHERE}",  # noqa: S608
                (*values.values(), *self._id),
            )

    def _check_still_owner(self, row: _KeyRow | None) -> _KeyRow:
        name = f"delivery key {self._id[1]!r}"
        if row is None:
            raise StaleAttempt(f"The row of {name} is gone, so what was sent under it is not known. Nothing is sent")
        if row.claim_number < self._claim_number:
            raise UnreliableTable(
                f"The database does not return the row of {name} as this task has written it: the connection must lead "
                "to the primary, not to a replica"
            )
        if row.claim_number > self._claim_number:
            raise StaleAttempt(
                f"Another task has claimed {name} ({row.dag_id}.{row.task_id} of run {row.run_id}, try "
                f"{row.try_number}): this one does nothing more, and sends nothing. A retry returns its transfer"
            )
        return row

    def _read(self) -> _KeyRow | None:
        with self._warehouse.read() as tx:
            return self._row(tx)

    def _row(self, tx: Any) -> _KeyRow | None:
        rows = fetch_all(self._warehouse.run(tx, f"SELECT {_COLUMNS} FROM {{delivery_keys}} {_WHERE}", self._id))  # noqa: S608
        if len(rows) > 1 or any(row[:2] != self._id for row in rows):
            raise UnreliableTable(
                f"The database does not return the one row of delivery key {self._id[1]!r}: the table needs its "
                "primary key, and a collation that distinguishes case, accents and trailing spaces"
            )
        return _KeyRow(*rows[0]) if rows else None


def _storable_id(transfer_id: str | None) -> str | None:
    """Return the id for the column that people and :meth:`KeyState.of_other_keys` read; None if it does not fit."""
    if transfer_id and len(transfer_id) <= MAX_EVENT_ID_BYTES and transfer_id.isprintable():
        return transfer_id
    return None
