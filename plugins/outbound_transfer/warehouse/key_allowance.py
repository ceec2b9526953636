"""What the processes that use a key share: its calls, and the pages of listings that one of them has read for all.

The calls are a document in one row for each key. Every transaction locks it, so that all happens one after the other,
by the database's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from outbound_transfer.protocol.call_schedule import CallSchedule
from outbound_transfer.protocol.models import TransferPage
from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.tables import KEY_ALLOWANCE, POLL_PAGES
from outbound_transfer.warehouse.timestamps import format_epoch

T = TypeVar("T")

#: Seconds for which a page that a process is about to read is not read by others, once its call has had its turn.
READ_SECONDS: Final = 20.0

#: The maximum with the wait for that turn, which takes a minute.
CLAIM_SECONDS: Final = 90.0

#: Seconds after which a page is removed.
KEEP_SECONDS: Final = 600.0

_WHERE: Final = "WHERE [account] = ? AND [key_digest] = ?"
_LOCK: Final = f"UPDATE {{key_allowance}} SET [updated_at] = [updated_at] {_WHERE}"  # noqa: S608
_SELECT: Final = f"SELECT [schedule] FROM {{key_allowance}} {_WHERE}"  # noqa: S608
_UPDATE: Final = (
    f"UPDATE {{key_allowance}} SET {', '.join(f'[{each.name}] = ?' for each in list(KEY_ALLOWANCE.columns)[2:])} "  # noqa: S608
    f"{_WHERE}"
)
_SELECT_PAGE: Final = f"SELECT [read_ms], [page] FROM {{poll_pages}} {_WHERE} AND [listing] = ?"  # noqa: S608
_STORE_PAGE: Final = f"UPDATE {{poll_pages}} SET [page] = ?, [read_ms] = ? {_WHERE} AND [listing] = ? AND [read_ms] = ?"  # noqa: S608
_DELETE_PAGES: Final = f"DELETE FROM {{poll_pages}} {_WHERE}"  # noqa: S608
#: Old ones of all keys: nobody may poll with theirs any more. One statement, so that no two sessions deadlock.
_DELETE_OLD_PAGES: Final = f"{_DELETE_PAGES} AND [listing] = ? OR [read_ms] < ? OR [read_ms] > ?"


class Key(NamedTuple):
    """A key and what the service grants it.

    :ivar digest: of the key.
    :ivar conn_id: the Airflow connection that has the key.
    """

    account: str
    digest: str
    conn_id: str
    calls_per_minute: int


class PageClaim(NamedTuple):
    """What is to be done about a page.

    :ivar page: the page, if it was read lately.
    :ivar number: of the claim, if this process is to read it; None if another one is about to.
    """

    page: TransferPage | None = None
    number: int | None = None


class _NoRow(Exception):
    """The key has no row yet, or somebody has deleted it."""


def reserve_call(warehouse: Warehouse, key: Key, *, is_poll: bool) -> float:
    """Reserve a call for the next time that the key has one left.

    :return: seconds until then.
    """

    def reserve(_: Any, schedule: CallSchedule, now: float) -> float:
        return schedule.reserve(now, key.calls_per_minute, is_poll=is_poll) - now

    return _change(warehouse, key, reserve)


def record_refusal(warehouse: Warehouse, key: Key, retry_after: float) -> None:
    """Record that the service has refused a call, and accepts no other for ``retry_after`` seconds."""

    def record(_: Any, schedule: CallSchedule, now: float) -> None:
        schedule.record_refusal(now, retry_after)

    _change(warehouse, key, record)


def claim_page(warehouse: Warehouse, key: Key, listing: str, max_age: float) -> PageClaim:
    """Return a page that was read lately, or claim it: of the processes that want it, one reads it.

    :param listing: what identifies the page, of 32 characters.
    :param max_age: seconds since another process claimed it, and so began to read it.
    """

    def claim(tx: Any, schedule: CallSchedule, now: float) -> PageClaim:
        for read_ms, stored in fetch_all(warehouse.run(tx, _SELECT_PAGE, (*key[:2], listing))):
            age = now - read_ms / 1_000
            if stored is None:  # one that is killed, hangs or is slow must not hold up the others, page after page
                turn = max(read_ms / 1_000, schedule.not_before, *schedule.poll_calls[-1:])
                is_of_use = age < CLAIM_SECONDS and now < turn + READ_SECONDS
            else:
                is_of_use = age < max_age
            if age >= 0 and is_of_use and (found := _decode(stored)):
                return found
        number = int(now * 1_000)
        oldest = number - int(KEEP_SECONDS * 1_000)
        warehouse.run(tx, _DELETE_OLD_PAGES, (*key[:2], listing, oldest, number))
        warehouse.insert(tx, POLL_PAGES, [(*key[:2], listing, number, None)])
        return PageClaim(number=number)

    return _change(warehouse, key, claim)


def store_page(warehouse: Warehouse, key: Key, listing: str, number: int, page: TransferPage | None) -> None:
    """Store a page that this process has claimed for the others; None if it could not be read."""
    # ASCII: not every database has all of Unicode. The page is as old as its claim, however long its read took.
    stored = (json.dumps(msgspec.to_builtins(page)), number) if page else (None, 0)

    def store() -> None:
        with warehouse.transaction() as tx:
            warehouse.run(tx, _STORE_PAGE, (*stored, *key[:2], listing, number))

    warehouse.retry_on_conflict(store)


def forget_pages(warehouse: Warehouse, key: Key) -> None:
    """Remove the pages of a key."""

    def forget() -> None:
        with warehouse.transaction() as tx:
            warehouse.run(tx, _DELETE_PAGES, key[:2])

    warehouse.retry_on_conflict(forget)


def _change(warehouse: Warehouse, key: Key, change: Callable[[Any, CallSchedule, float], T]) -> T:
    """Change what is shared of a key in a transaction.

    :param change: called with the transaction's cursor, the schedule and the database's time; again after a conflict.
    :return: the result of ``change``.
    """
    while True:
        try:
            return warehouse.retry_on_conflict(lambda: _change_once(warehouse, key, change))
        except _NoRow:
            warehouse.retry_on_conflict(lambda: _create(warehouse, key))


def _change_once(warehouse: Warehouse, key: Key, change: Callable[[Any, CallSchedule, float], T]) -> T:
    with warehouse.transaction() as tx:
        warehouse.run(tx, _LOCK, key[:2])
        # The statement before locks no row that another session adds at that moment, and this query sees it.
        stored = scalar(tx, warehouse.render(_SELECT + warehouse.dialect.row_lock), key[:2])
        if stored is None:
            raise _NoRow
        try:
            schedule = msgspec.json.decode(stored, type=CallSchedule)
        except msgspec.DecodeError:  # what it loses costs some refused calls
            schedule = CallSchedule()
        now = warehouse.epoch_time(tx)
        result = change(tx, schedule, now)
        warehouse.run(tx, _UPDATE, (*_values(key, schedule, now), *key[:2]))
        return result


def _create(warehouse: Warehouse, key: Key) -> None:
    # In a transaction of its own: a row that another session adds meanwhile would not be locked.
    with warehouse.transaction() as tx:
        values = _values(key, CallSchedule(), warehouse.epoch_time(tx))
        warehouse.insert(tx, KEY_ALLOWANCE, [(*key[:2], *values)])


def _values(key: Key, schedule: CallSchedule, now: float) -> tuple[Any, ...]:
    return (
        key.conn_id,
        key.calls_per_minute,
        msgspec.json.encode(schedule).decode(),
        format_epoch(max(schedule.reserved_until, now)),
        format_epoch(schedule.refused_at) if schedule.refused_at else None,
        format_epoch(now),
    )


def _decode(stored: str | None) -> PageClaim | None:
    """Return what is stored of a page; None if it cannot be used: another version wrote it, or a text is no Unicode."""
    try:
        return PageClaim(msgspec.json.decode(stored, type=TransferPage)) if stored is not None else PageClaim()
    except msgspec.DecodeError:
        return None
