"""Tables of sent transfers and their recipients, kept in sync with the listing (service-api.md, R26)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from outbound_transfer.client.events import MAX_EVENT_ID_BYTES
from outbound_transfer.client.models import Transfer
from outbound_transfer.client.outcomes import DELETED, KNOWN_STATUSES, TERMINAL_STATUSES, status_rank
from outbound_transfer.warehouse.database import Warehouse, fetch_all, fetch_some, scalar
from outbound_transfer.warehouse.rows import storable_text
from outbound_transfer.warehouse.schema import LISTING, ensure_schema
from outbound_transfer.warehouse.tables import RECIPIENTS, TRANSFER_SYNC, TRANSFERS
from outbound_transfer.warehouse.timestamps import format_timestamp, parse_event_timestamp

#: How far the service's clock may be ahead; a later ``sent_at`` is ignored.
MAX_CLOCK_SKEW: Final = timedelta(days=1)


class SyncState(msgspec.Struct, frozen=True):
    """The state of the tables before the listing is read.

    :ivar synced_until: every transfer sent up to then is in the tables; None if the listing was never read completely.
    :ivar outstanding: by id, when each transfer was sent whose status may still change.
    """

    synced_until: str | None
    outstanding: dict[str, str]

    def covers(self, page: Sequence[Transfer], seen: set[str]) -> bool:
        """Return whether no transfer after this page can be new or have changed: the listing is newest first."""
        missed = [at for transfer_id, at in self.outstanding.items() if at and transfer_id not in seen]
        return self.synced_until is not None and _is_mostly_before(page, min([self.synced_until, *missed]))


def sent_at(transfer: Transfer) -> str:
    """Return when a transfer was sent (:func:`.timestamps.format_timestamp`); empty if unknown."""
    return parse_event_timestamp(transfer.sent_at) or ""


def latest_sent_at(page: Sequence[Transfer], now: datetime) -> str:
    """Return a time before which all transfers are in a listing that starts with ``page``; empty if unknown.

    This is not the newest time on the page: some may be wrong, and transfers sent before them would be missed.
    """
    latest = format_timestamp(now + MAX_CLOCK_SKEW)
    times = sorted((at for at in map(sent_at, page) if at and at <= latest), reverse=True)
    return times[min(max(len(times) // 4, 3), len(times) - 1)] if times else ""


def _is_mostly_before(page: Sequence[Transfer], at: str) -> bool:
    """Return whether all transfers after this page were sent before ``at``, even if some times on it are wrong."""
    return bool(page) and 2 * sum("" < sent_at(transfer) < at for transfer in page) >= len(page)


def is_storable(transfer: Transfer) -> bool:
    """Return whether the tables can store a transfer under its id."""
    return len(transfer.id) <= MAX_EVENT_ID_BYTES and "\0" not in transfer.id


class TransferTables:
    """The stored transfers of one account that one key can see: those of its user (service-api.md, R4).

    :param account: name of the account; several accounts share the tables.
    :param conn_id: Airflow connection, which identifies the key.
    :param clock: returns the time; default: the database's, as the clocks of workers differ.
    :param stores_recipients: whether names and addresses are stored, or empty texts.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        account: str,
        conn_id: str,
        *,
        clock: Callable[[], datetime] | None = None,
        stores_recipients: bool = True,
    ) -> None:
        self._warehouse, self._account, self._conn_id = warehouse, account, conn_id
        self._stores_recipients = stores_recipients
        self.now = clock or warehouse.now

    def sync_state(self) -> SyncState:
        """Return what is stored and may still change; create the tables first if necessary."""
        now = self.now()
        ensure_schema(self._warehouse, LISTING, now)
        marks = ", ".join("?" for _ in (*TERMINAL_STATUSES, DELETED))
        with self._warehouse.read() as tx:
            newest = scalar(
                tx,
                self._warehouse.render(
                    "SELECT [synced_until] FROM {transfer_sync} WHERE [account] = ? AND [conn_id] = ?"
                ),
                (self._account, self._conn_id),
            )
            self._warehouse.run(
                tx,
                "SELECT [transfer_id], [sent_at] FROM {transfers}"  # noqa: S608
                f" WHERE [account] = ? AND [conn_id] = ? AND [status] NOT IN ({marks})",
                (self._account, self._conn_id, *TERMINAL_STATUSES, DELETED),
            )
            newest = _text(newest)
            if newest and newest > format_timestamp(now + MAX_CLOCK_SKEW):
                newest = None
            return SyncState(newest, {row[0]: _text(row[1]) or "" for row in fetch_all(tx)})

    def newest_ids(self, count: int) -> list[str]:
        """Return the ids of the connection's newest transfers, without those that the service no longer has."""
        with self._warehouse.read() as tx:
            self._warehouse.run(
                tx,
                "SELECT [transfer_id] FROM {transfers} WHERE [account] = ? AND [conn_id] = ? AND [status] <> ?"
                " ORDER BY [sent_at] DESC",
                (self._account, self._conn_id, DELETED),
            )
            return [row[0] for row in fetch_some(tx, count)]

    def save(self, page: Sequence[Transfer], requested_at: datetime) -> int:
        """Store a page of the listing in one transaction; return the number of new transfers.

        A page that was requested before another, and is stored after it, takes no status back: no clock decides.

        :param page: storable transfers only.
        :param requested_at: when the page was requested.
        """
        seen_at = format_timestamp(requested_at)
        with self._warehouse.transaction() as tx:
            new = self._warehouse.insert(tx, TRANSFERS, [self._row(transfer, seen_at) for transfer in page])
            self._warehouse.insert(tx, RECIPIENTS, [row for each in page for row in self._recipients(each)])
            for transfer in page:
                self._update(tx, transfer, seen_at)
        return new

    def mark_listed(self, newest: str) -> None:
        """Record that the whole listing was read.

        :param newest: :func:`latest_sent_at` of its first page.
        """
        now = self.now()
        with self._warehouse.transaction() as tx:
            self._warehouse.insert(tx, TRANSFER_SYNC, [(self._account, self._conn_id, newest, format_timestamp(now))])
            self._warehouse.run(
                tx,
                "UPDATE {transfer_sync} SET [synced_until] = ?, [updated_at] = ?"
                " WHERE [account] = ? AND [conn_id] = ? AND ([synced_until] < ? OR [synced_until] > ?)",
                (
                    newest,
                    format_timestamp(now),
                    self._account,
                    self._conn_id,
                    newest,
                    format_timestamp(now + MAX_CLOCK_SKEW),
                ),
            )

    def mark_deleted(self, transfer_id: str, requested_at: datetime) -> None:
        """Mark a transfer that the service no longer has."""
        with self._warehouse.transaction() as tx:
            self._warehouse.run(
                tx,
                "UPDATE {transfers} SET [status] = ?, [seen_at] = ? WHERE [account] = ? AND [transfer_id] = ?",
                (DELETED, format_timestamp(requested_at), self._account, transfer_id),
            )

    def _update(self, tx: Any, transfer: Transfer, seen_at: str) -> None:
        later = [status for status in KNOWN_STATUSES if status_rank(status) > status_rank(transfer.status)]
        self._warehouse.run(
            tx,
            "UPDATE {transfers} SET [conn_id] = ?, [status] = ?, [expires_at] = ?, [seen_at] = ?,"  # noqa: S608
            " [picked_up_count] = CASE WHEN [picked_up_count] < ? THEN ? ELSE [picked_up_count] END"
            " WHERE [account] = ? AND [transfer_id] = ?"
            + (f" AND [status] NOT IN ({', '.join('?' for _ in later)})" if later else ""),
            (
                self._conn_id,
                storable_text(transfer.status),
                parse_event_timestamp(transfer.expires_at),
                seen_at,
                transfer.picked_up_count,
                transfer.picked_up_count,
                self._account,
                transfer.id,
                *later,
            ),
        )
        for position, recipient in enumerate(transfer.recipients, 1):
            if recipient.picked_up_at is not None:
                self._warehouse.run(
                    tx,
                    "UPDATE {recipients} SET [picked_up_at] = ? WHERE [account] = ? AND [transfer_id] = ?"
                    " AND [position] = ? AND [picked_up_at] IS NULL",
                    (parse_event_timestamp(recipient.picked_up_at), self._account, transfer.id, position),
                )

    def _row(self, transfer: Transfer, seen_at: str) -> tuple[Any, ...]:
        return (
            self._account,
            transfer.id,
            self._conn_id,
            storable_text(transfer.status),
            storable_text(transfer.subject),
            parse_event_timestamp(transfer.sent_at),
            parse_event_timestamp(transfer.expires_at),
            len(transfer.recipients),
            transfer.picked_up_count,
            seen_at,
            seen_at,
        )

    def _recipients(self, transfer: Transfer) -> list[tuple[Any, ...]]:
        return [
            (
                self._account,
                transfer.id,
                position,
                storable_text(recipient.email) if self._stores_recipients else "",
                storable_text(recipient.name or "") if self._stores_recipients else "",
                parse_event_timestamp(recipient.picked_up_at),
            )
            for position, recipient in enumerate(transfer.recipients, 1)
        ]


def _text(timestamp: Any) -> str | None:
    return format_timestamp(timestamp) if isinstance(timestamp, datetime) else timestamp
