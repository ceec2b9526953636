"""What processes share of a poll, in tables: the lease, what each waits for, and what was read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from outbound_transfer.protocol.models import Transfer, is_valid_unicode
from outbound_transfer.protocol.poll_lease import (
    REPEAT_INTERVAL,
    ClusterState,
    PollLease,
    ProcessState,
    SharedWaiter,
)
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.key_rows import WHERE, Key, KeyRows
from outbound_transfer.warehouse.tables import POLL_LEASES, POLL_READINGS, POLL_WAITERS
from outbound_transfer.warehouse.timestamps import format_epoch

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


class _Known(NamedTuple):
    """What a process knows of the tables after a transaction.

    :ivar written: its rows in ``poll_waiters``; None if they may not be there.
    :ivar written_at: when all of them were written.
    :ivar read_until: number of the last change whose readings it has read.
    :ivar others: what the others wait for.
    :ivar others_read_at: the lease's ``waiters_changed`` when it has read that; 0 if it has not.
    """

    written: Mapping[str, SharedWaiter] | None = None
    written_at: float = 0.0
    read_until: int = 0
    others: Mapping[str, SharedWaiter] = {}
    others_read_at: int = 0


def _values(key: Key, lease: PollLease, now: float) -> tuple[Any, ...]:
    return (
        key.conn_id,
        lease.holder or None,
        format_epoch(lease.held_since) if lease.holder else None,
        format_epoch(lease.expires_at) if lease.holder else None,
        format_epoch(lease.polled_at) if lease.polled_at else None,
        msgspec.json.encode(lease).decode(),
        format_epoch(now),
    )


_LEASES: Final = KeyRows(POLL_LEASES, "lease", PollLease, _values)


class PollTables:
    """The part of one process in the shared poll of a key. Every transaction locks the row of the lease for a moment.

    :param process: the process's id.
    """

    def __init__(self, warehouse: Warehouse, key: Key, process: str) -> None:
        self.warehouse, self._key, self._process = warehouse, key, process
        self._known = _Known()

    def sync(self, own: ProcessState) -> ClusterState:
        """Renew the lease or take a free one; write what this process waits for, and what it has read as the holder."""

        def sync(tx: Any, lease: PollLease, now: float) -> tuple[ClusterState, _Known]:
            return self._sync(tx, lease, now, own)

        state, self._known = _LEASES.change(self.warehouse, self._key, sync)
        return state

    def leave(self) -> None:
        """Give up the lease, and what this process waits for."""

        def leave(tx: Any, lease: PollLease, now: float) -> None:
            self._delete(tx, "poll_waiters", "[process] = ?", (self._process,))
            lease.leave(self._process)
            if not lease.seen_at:  # a holder that is left would not publish them again
                self._prune(tx)
            lease.waiters_changed = lease.next_number(now)

        _LEASES.change(self.warehouse, self._key, leave)

    def _sync(self, tx: Any, lease: PollLease, now: float, own: ProcessState) -> tuple[ClusterState, _Known]:
        known, number = self._known, lease.next_number(now)
        if lease.forget_dead(now) or not lease.seen_at:
            self._delete_dead(tx, lease)
            lease.waiters_changed = number
        # The rows of a process that was taken for dead are gone; others may be damaged.
        if self._process not in lease.seen_at or abs(now - known.written_at) >= REPEAT_INTERVAL:
            known = known._replace(written=None, read_until=0, written_at=now)
        is_holder = lease.renew(self._process, now, can_poll=own.can_poll)
        if self._write_waiters(tx, known.written, own.waiters, number):
            lease.waiters_changed = number
        known = known._replace(written=dict(own.waiters))
        found: dict[str, Transfer | None] = {}
        if is_holder:
            self._write_readings(tx, own.readings, number)
            if known.others_read_at != lease.waiters_changed:
                known = known._replace(others=self._read_others(tx), others_read_at=lease.waiters_changed)
            lease.polled_at = now if own.has_polled else lease.polled_at
        else:
            found = self._read_readings(tx, known.read_until)
            known = known._replace(others={}, others_read_at=0)
        return ClusterState(is_holder, bool(lease.holder), known.others, found), known._replace(read_until=number)

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
            f"{WHERE} AND [process] <> ? GROUP BY [transfer_id]"
        )
        rows = fetch_all(self.warehouse.run(tx, query, (*self._key[:2], self._process)))
        return {str(one): SharedWaiter(interval, sent_at) for one, interval, sent_at in rows}

    def _prune(self, tx: Any) -> None:
        self.warehouse.run(tx, _PRUNE, (*self._key[:2], *self._key[:2]))

    def _read_readings(self, tx: Any, since: int) -> dict[str, Transfer | None]:
        rows = self.warehouse.run(tx, _NEW_READINGS, (*self._key[:2], self._process, since, since))
        return {str(one): _decode(one, stored) for one, stored in fetch_all(rows)}

    def _delete(self, tx: Any, table: str, condition: str, parameters: Sequence[Any]) -> None:
        self.warehouse.run(tx, f"DELETE FROM {{{table}}} {WHERE} AND {condition}", (*self._key[:2], *parameters))  # noqa: S608


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
