"""The allowance of each key in a table: one row, which a transaction locks while it reserves a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from outbound_transfer.protocol.call_schedule import CallSchedule
from outbound_transfer.warehouse.database import Warehouse, scalar
from outbound_transfer.warehouse.tables import KEY_ALLOWANCE
from outbound_transfer.warehouse.timestamps import format_epoch

T = TypeVar("T")

_WHERE: Final = "WHERE [account] = ? AND [key_digest] = ?"


class Key(NamedTuple):
    """A key and what the service grants it.

    :ivar digest: of the key.
    :ivar conn_id: the Airflow connection that has the key.
    """

    account: str
    digest: str
    conn_id: str
    calls_per_minute: int


class KeyAllowance:
    """The calls of one key, reserved one after the other by every session, by the database's clock."""

    def __init__(self, warehouse: Warehouse, key: Key) -> None:
        self.warehouse, self._key = warehouse, key
        self._is_ready = False

    def reserve(self, *, is_poll: bool) -> float:
        """Reserve a call for the next time that the key has one left.

        :return: seconds until then.
        """

        def reserve(schedule: CallSchedule, now: float) -> float:
            return schedule.reserve(now, self._key.calls_per_minute, is_poll=is_poll) - now

        return self._change(reserve)

    def record_refusal(self, retry_after: float) -> None:
        """Record that the service has refused a call, and accepts no other for ``retry_after`` seconds."""

        def record(schedule: CallSchedule, now: float) -> None:
            schedule.record_refusal(now, retry_after, self._key.calls_per_minute)

        self._change(record)

    def _change(self, change: Callable[[CallSchedule, float], T]) -> T:
        if not self._is_ready:
            self.warehouse.retry_on_conflict(self._create_row)
            self._is_ready = True
        return self.warehouse.retry_on_conflict(lambda: self._change_row(change))

    def _create_row(self) -> None:
        # In a transaction of its own: a row that another session adds meanwhile would not be locked.
        with self.warehouse.transaction() as tx:
            values = _values(self._key, CallSchedule(), self.warehouse.epoch_time(tx))
            self.warehouse.insert(tx, KEY_ALLOWANCE, [(*self._key[:2], *values)])

    def _change_row(self, change: Callable[[CallSchedule, float], T]) -> T:
        warehouse, key = self.warehouse, self._key
        with warehouse.transaction() as tx:
            # Locks the row, so that sessions change it one after the other.
            warehouse.run(tx, f"UPDATE {{key_allowance}} SET [updated_at] = [updated_at] {_WHERE}", key[:2])  # noqa: S608
            stored = scalar(tx, warehouse.render(f"SELECT [schedule] FROM {{key_allowance}} {_WHERE}"), key[:2])  # noqa: S608
            self._is_ready = stored is not None  # somebody may have deleted the row
            schedule, now = _parse(stored), warehouse.epoch_time(tx)
            result = change(schedule, now)
            changed = ", ".join(f"[{column.name}] = ?" for column in KEY_ALLOWANCE.columns[2:])
            values = (*_values(key, schedule, now), *key[:2])
            warehouse.run(tx, f"UPDATE {{key_allowance}} SET {changed} {_WHERE}", values)  # noqa: S608
            return result


def _parse(stored: str | None) -> CallSchedule:
    try:
        return msgspec.json.decode(stored or "", type=CallSchedule)
    except msgspec.DecodeError:  # what it loses costs some refused calls
        return CallSchedule()


def _values(key: Key, schedule: CallSchedule, now: float) -> tuple[Any, ...]:
    return (
        key.conn_id,
        key.calls_per_minute,
        msgspec.json.encode(schedule).decode(),
        format_epoch(max(schedule.reserved_until, now)),
        format_epoch(schedule.refused_at) if schedule.refused_at else None,
        format_epoch(now),
    )
