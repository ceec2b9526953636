"""What processes share of a poll, in tables: the lease, what each waits for, and what was read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import Transfer, is_valid_unicode
from outbound_transfer.protocol.poll_lease import (
    REPEAT_INTERVAL,
    ClusterState,
    PollLease,
    ProcessState,
    SharedWaiter,
)
from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.key_allowance import Key
from outbound_transfer.warehouse.tables import POLL_LEASES, POLL_READINGS, POLL_WAITERS
from outbound_transfer.warehouse.timestamps import format_epoch

_WHERE: Final = "WHERE [account] = ? AND [key_digest] = ?"

#: Ids in one statement.
_MAX_IDS: Final = 500

#: Readings of this process's waiters that are new to it, or to a waiter.
_NEW_READINGS: Final = (
    "SELECT r.[transfer_id], r.[transfer] FROM {poll_readings} r JOIN {poll_waiters} w ON w.[account] = r.[account] "
    "AND w.[key_digest] = r.[key_digest] AND w.[transfer_id] = r.[transfer_id] WHERE w.[account] = ? "
    "AND w.[key_digest] = ? AND w.[process] = ? AND (r.[sequence] > ? OR w.[sequence] > ?)"
)

#: Readings that nobody waits for.
_PRUNE: Final = (
    "DELETE FROM {poll_readings} WHERE [account] = ? AND [key_digest] = ? AND [transfer_id] NOT IN "
    "(SELECT [transfer_id] FROM {poll_waiters} WHERE [account] = ? AND [key_digest] = ?)"
)


class PollTables:
    """The part of one process in the shared poll of a key. Every transaction locks the row of the lease for a moment.

    :param process: the process's id.
    """

    def __init__(self, warehouse: Warehouse, key: Key, process: str) -> None:
        self.warehouse, self._key, self._process = warehouse, key, process
        self._has_row = False
        self._written: dict[str, SharedWaiter] = {}
        self._others: dict[str, SharedWaiter] = {}
        self._read_until = self._others_read_at = 0
        self._written_at = 0.0

    def sync(self, own: ProcessState) -> ClusterState:
        """Renew the lease or take a free one; write what this process waits for, and what it has read as the holder."""
        return self.warehouse.retry_on_conflict(lambda: self._sync(own))

    def leave(self) -> None:
        """Give up the lease, and what this process waits for."""
        with self.warehouse.transaction() as tx:
            lease = self._lock(tx)
            if lease is not None:
                self._delete(tx, "poll_waiters", "[process] = ?", (self._process,))
                now = self.warehouse.epoch_time(tx)
                lease.leave(self._process)
                if not lease.seen_at:  # a holder that is left would not publish them again
                    self._prune(tx)
                lease.waiters_changed = lease.next_number(now)
                self._save(tx, lease, now)

    def _sync(self, own: ProcessState) -> ClusterState:
        if not self._has_row:
            self._create_row()
        with self.warehouse.transaction() as tx:
            lease = self._lock(tx)
            self._has_row = lease is not None
            lease, now = lease or PollLease(), self.warehouse.epoch_time(tx)
            number = lease.next_number(now)
            if lease.forget_dead(now) or not lease.seen_at:
                self._delete_dead(tx, lease)
                lease.waiters_changed = number
            # The rows of a process that was taken for dead are gone; others may be damaged.
            is_known = self._process in lease.seen_at and abs(now - self._written_at) < REPEAT_INTERVAL
            before = self._written if is_known else None
            is_holder = lease.renew(self._process, now, can_poll=own.can_poll)
            if self._write_waiters(tx, before, own.waiters, number):
                lease.waiters_changed = number
            if is_holder:
                others = self._others
                self._write_readings(tx, own.readings, number)
                if self._others_read_at != lease.waiters_changed:
                    others = self._read_others(tx)
                lease.polled_at = now if own.has_polled else lease.polled_at
                found: dict[str, Transfer | None] = {}
            else:
                others, found = {}, self._read_readings(tx, self._read_until if before is not None else 0)
            self._save(tx, lease, now)
        self._written, self._read_until = dict(own.waiters), number
        self._written_at = self._written_at if is_known else now
        self._others, self._others_read_at = others, lease.waiters_changed if is_holder else 0
        return ClusterState(is_holder, bool(lease.holder), others, found)

    def _create_row(self) -> None:
        # In a transaction of its own: a row that another session adds meanwhile would not be locked.
        with self.warehouse.transaction() as tx:
            values = self._values(PollLease(), self.warehouse.epoch_time(tx))
            self.warehouse.insert(tx, POLL_LEASES, [(*self._key[:2], *values)])

    def _lock(self, tx: Any) -> PollLease | None:
        """Lock the row of the lease, so that processes change it one after the other; None if there is no row."""
        self.warehouse.run(tx, f"UPDATE {{poll_leases}} SET [updated_at] = [updated_at] {_WHERE}", self._key[:2])  # noqa: S608
        stored = scalar(tx, self.warehouse.render(f"SELECT [lease] FROM {{poll_leases}} {_WHERE}"), self._key[:2])  # noqa: S608
        try:
            return None if stored is None else msgspec.json.decode(stored, type=PollLease)
        except msgspec.DecodeError:  # every process gives its next sign of life in seconds
            return PollLease()

    def _save(self, tx: Any, lease: PollLease, now: float) -> None:
        changed = ", ".join(f"[{column.name}] = ?" for column in POLL_LEASES.columns[2:])
        values = (*self._values(lease, now), *self._key[:2])
        self.warehouse.run(tx, f"UPDATE {{poll_leases}} SET {changed} {_WHERE}", values)  # noqa: S608

    def _values(self, lease: PollLease, now: float) -> tuple[Any, ...]:
        return (
            self._key.conn_id,
            lease.holder or None,
            format_epoch(lease.held_since) if lease.holder else None,
            format_epoch(lease.expires_at) if lease.holder else None,
            format_epoch(lease.polled_at) if lease.polled_at else None,
            msgspec.json.encode(lease).decode(),
            format_epoch(now),
        )

    def _delete_dead(self, tx: Any, lease: PollLease) -> None:
        alive = [*lease.seen_at, self._process]
        self._delete(tx, "poll_waiters", f"[process] NOT IN ({_marks(alive)})", alive)

    def _write_waiters(
        self, tx: Any, before: Mapping[str, SharedWaiter] | None, after: Mapping[str, SharedWaiter], number: int
    ) -> bool:
        """Write what has changed, or all if it is not known what is there; return whether anything was written."""
        if before is None:
            self._delete(tx, "poll_waiters", "[process] = ?", (self._process,))
            before = {}
        new = {one: waiter for one, waiter in after.items() if before.get(one) != waiter}
        for part in _parts([one for one in before if one not in after or one in new]):
            condition = f"[process] = ? AND [transfer_id] IN ({_marks(part)})"
            self._delete(tx, "poll_waiters", condition, (self._process, *part))
        rows = [(*self._key[:2], self._process, one, *waiter, number) for one, waiter in new.items()]
        self.warehouse.insert(tx, POLL_WAITERS, rows)
        return before != after

    def _write_readings(self, tx: Any, readings: Mapping[str, Transfer | None], number: int) -> None:
        for part in _parts(list(readings)):
            self._delete(tx, "poll_readings", f"[transfer_id] IN ({_marks(part)})", part)
        rows = [(*self._key[:2], one, _encode(transfer), number) for one, transfer in readings.items()]
        self.warehouse.insert(tx, POLL_READINGS, rows)

    def _read_others(self, tx: Any) -> dict[str, SharedWaiter]:
        """Return what the other processes wait for; remove the readings that nobody waits for."""
        self._prune(tx)
        query = (
            "SELECT [transfer_id], MIN([interval_seconds]), MAX([sent_epoch]) FROM {poll_waiters} "  # noqa: S608
            f"{_WHERE} AND [process] <> ? GROUP BY [transfer_id]"
        )
        rows = fetch_all(self.warehouse.run(tx, query, (*self._key[:2], self._process)))
        return {str(one): SharedWaiter(interval, sent_at) for one, interval, sent_at in rows}

    def _prune(self, tx: Any) -> None:
        self.warehouse.run(tx, _PRUNE, (*self._key[:2], *self._key[:2]))

    def _read_readings(self, tx: Any, since: int) -> dict[str, Transfer | None]:
        rows = self.warehouse.run(tx, _NEW_READINGS, (*self._key[:2], self._process, since, since))
        return {str(one): _decode(one, stored) for one, stored in fetch_all(rows)}

    def _delete(self, tx: Any, table: str, condition: str, parameters: Sequence[Any]) -> None:
        self.warehouse.run(tx, f"DELETE FROM {{{table}}} {_WHERE} AND {condition}", (*self._key[:2], *parameters))  # noqa: S608


def _encode(transfer: Transfer | None) -> str | None:
    # Without its files, which no waiter needs; the message is part of what a task returns.
    try:
        text = msgspec.json.encode(msgspec.structs.replace(transfer, files=None)).decode() if transfer else None
    except UnicodeEncodeError:  # an unpaired surrogate, which no database stores
        return None
    return text if text and is_valid_unicode(text) else None


def _decode(transfer_id: Any, stored: Any) -> Transfer | None:
    """Return a reading; None if it cannot be used, as it was written by another version or is damaged."""
    try:
        transfer = msgspec.json.decode(stored or "", type=Transfer)
    except (msgspec.DecodeError, TypeError):
        return None
    return transfer if transfer.id == transfer_id else None


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + _MAX_IDS] for at in range(0, len(ids), _MAX_IDS))


def _marks(values: Collection[Any]) -> str:
    return ", ".join("?" for _ in values)
