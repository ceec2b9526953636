"""The allowance of each key, in a row that a transaction locks while it reserves a call."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outbound_transfer.protocol.call_schedule import CallSchedule
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_rows import Key, KeyRows
from outbound_transfer.warehouse.tables import KEY_ALLOWANCE
from outbound_transfer.warehouse.timestamps import format_epoch


def reserve_call(warehouse: Warehouse, key: Key, *, is_poll: bool) -> float:
    """Reserve a call for the next time that the key has one left.

    :return: seconds until then.
    """

    def reserve(_: Any, schedule: CallSchedule, now: float) -> float:
        return schedule.reserve(now, key.calls_per_minute, is_poll=is_poll) - now

    return _ROWS.change(warehouse, key, reserve)


def record_refusal(warehouse: Warehouse, key: Key, retry_after: float) -> None:
    """Record that the service has refused a call, and accepts no other for ``retry_after`` seconds."""

    def record(_: Any, schedule: CallSchedule, now: float) -> None:
        schedule.record_refusal(now, retry_after, key.calls_per_minute)

    _ROWS.change(warehouse, key, record)


def _values(key: Key, schedule: CallSchedule, now: float) -> tuple[Any, ...]:
    return (
        key.conn_id,
        key.calls_per_minute,
        msgspec.json.encode(schedule).decode(),
        format_epoch(max(schedule.reserved_until, now)),
        format_epoch(schedule.refused_at) if schedule.refused_at else None,
        format_epoch(now),
    )


_ROWS: Final = KeyRows(KEY_ALLOWANCE, "schedule", CallSchedule, _values)
