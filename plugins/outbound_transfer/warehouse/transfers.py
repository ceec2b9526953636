"""Keeping the tables of transfers and recipients like the listing (service.md, GET /v1/transfers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.feed import MAX_EVENT_ID
from outbound_transfer.protocol.models import Transfer
from outbound_transfer.warehouse.database import Warehouse, rows_of, value
from outbound_transfer.warehouse.rows import instant, occurred_at
from outbound_transfer.warehouse.schema import LISTING, ensure
from outbound_transfer.warehouse.tables import LISTINGS, RECIPIENTS, TRANSFERS

#: Statuses that a transfer keeps (service.md, States and transitions).
FINAL: Final = ("complete", "canceled", "expired")

#: The status here of a transfer that the service knows no more.
REMOVED: Final = "removed"


#: How far the service's clock may be ahead of ours; a time of a send beyond that is none.
CLOCKS_APART: Final = timedelta(days=1)


class Open(msgspec.Struct, frozen=True):
    """What the tables say before the listing is read.

    :ivar newest: every transfer sent up to then is in the tables (:func:`.rows.instant`); None where the listing was
        never read whole.
    :ivar sent: by id, when each transfer was sent whose status may still change.
    """

    newest: str | None
    sent: dict[str, str]

    def is_enough(self, page: Sequence[Transfer], seen: set[str]) -> bool:
        """Whether nothing after this page can be new or have changed: the listing is newest first."""
        missed = [at for transfer_id, at in self.sent.items() if at and transfer_id not in seen]
        return self.newest is not None and _is_mostly_before(page, min([self.newest, *missed]))


def sent_at(transfer: Transfer) -> str:
    """As :func:`.rows.instant`; empty where the service did not say it."""
    return occurred_at(transfer.sent_at) or ""


def newest_of(page: Sequence[Transfer], now: datetime) -> str:
    """Up to when all have been sent before a listing that begins with ``page``; empty where nothing says it.

    Not the newest time of all: some may be absurd, and what is sent until then would be overlooked.
    """
    latest = instant(now + CLOCKS_APART)
    times = sorted((at for at in map(sent_at, page) if at and at <= latest), reverse=True)
    return times[min(max(len(times) // 4, 3), len(times) - 1)] if times else ""


def _is_mostly_before(page: Sequence[Transfer], at: str) -> bool:
    """Whether all that follows this page was sent before ``at``: some absurd times on it say nothing."""
    return bool(page) and 2 * sum("" < sent_at(transfer) < at for transfer in page) >= len(page)


def is_storable(transfer: Transfer) -> bool:
    """Whether the tables can hold it under its own id."""
    return len(transfer.id) <= MAX_EVENT_ID and "\0" not in transfer.id


def _now() -> datetime:
    return datetime.now(timezone.utc)


class TransferTables:
    """The transfers of one account that one key sees: those of its user (service.md, Authentication).

    :param account: whose they are; rows of several accounts share the tables.
    :param conn_id: Airflow's connection, which stands for the key.
    """

    def __init__(
        self, warehouse: Warehouse, account: str, conn_id: str, *, clock: Callable[[], datetime] = _now
    ) -> None:
        self._warehouse, self._account, self._conn_id, self.now = warehouse, account, conn_id, clock

    def open(self) -> Open:
        """What may still change; makes the tables at first."""
        ensure(self._warehouse, LISTING, self.now())
        marks = ", ".join("?" for _ in (*FINAL, REMOVED))
        with self._warehouse.reading() as cursor:
            newest = value(
                cursor,
                self._warehouse.spelled(
                    "SELECT [newest_sent_at] FROM {listings} WHERE [account] = ? AND [conn_id] = ?"
                ),
                (self._account, self._conn_id),
            )
            self._warehouse.run(
                cursor,
                "SELECT [transfer_id], [sent_at] FROM {transfers}"  # noqa: S608
                f" WHERE [account] = ? AND [conn_id] = ? AND [status] NOT IN ({marks})",
                (self._account, self._conn_id, *FINAL, REMOVED),
            )
            newest = _text(newest)
            if newest and newest > instant(self.now() + CLOCKS_APART):
                newest = None
            return Open(newest, {row[0]: _text(row[1]) or "" for row in rows_of(cursor)})

    def save(self, page: Sequence[Transfer], asked_at: datetime) -> int:
        """Commit a page of the listing, all of it storable; how many of its transfers are new.

        :param asked_at: when it was asked for; what was seen later is not overwritten.
        """
        seen = instant(asked_at)
        with self._warehouse.writing() as cursor:
            new = self._warehouse.insert(cursor, TRANSFERS, [self._row(transfer, seen) for transfer in page])
            self._warehouse.insert(cursor, RECIPIENTS, [row for each in page for row in self._recipients(each)])
            for transfer in page:
                self._update(cursor, transfer, seen)
        return new

    def listed(self, newest: str) -> None:
        """Note that the listing was read whole.

        :param newest: of its first page, as :func:`newest_of` gives it.
        """
        now = instant(self.now())
        with self._warehouse.writing() as cursor:
            self._warehouse.insert(cursor, LISTINGS, [(self._account, self._conn_id, newest, now)])
            self._warehouse.run(
                cursor,
                "UPDATE {listings} SET [newest_sent_at] = ?, [updated_at] = ?"
                " WHERE [account] = ? AND [conn_id] = ? AND ([newest_sent_at] < ? OR [newest_sent_at] > ?)",
                (newest, now, self._account, self._conn_id, newest, instant(self.now() + CLOCKS_APART)),
            )

    def remove(self, transfer_id: str, asked_at: datetime) -> None:
        """Mark a transfer that the service knows no more."""
        with self._warehouse.writing() as cursor:
            self._warehouse.run(
                cursor,
                "UPDATE {transfers} SET [status] = ?, [seen_at] = ? WHERE [account] = ? AND [transfer_id] = ?",
                (REMOVED, instant(asked_at), self._account, transfer_id),
            )

    def _update(self, cursor: Any, transfer: Transfer, seen: str) -> None:
        self._warehouse.run(
            cursor,
            "UPDATE {transfers} SET [conn_id] = ?, [status] = ?, [expires_at] = ?, [collected] = ?, [seen_at] = ?"
            " WHERE [account] = ? AND [transfer_id] = ? AND [seen_at] < ?",
            (
                self._conn_id,
                _storable(transfer.status),
                occurred_at(transfer.expires_at),
                transfer.picked_up,
                seen,
                self._account,
                transfer.id,
                seen,
            ),
        )
        for position, recipient in enumerate(transfer.recipients, 1):
            if recipient.picked_up_at is not None:
                self._warehouse.run(
                    cursor,
                    "UPDATE {recipients} SET [picked_up_at] = ? WHERE [account] = ? AND [transfer_id] = ?"
                    " AND [position] = ? AND [picked_up_at] IS NULL",
                    (occurred_at(recipient.picked_up_at), self._account, transfer.id, position),
                )

    def _row(self, transfer: Transfer, seen: str) -> tuple[Any, ...]:
        return (
            self._account,
            transfer.id,
            self._conn_id,
            _storable(transfer.status),
            _storable(transfer.subject),
            occurred_at(transfer.sent_at),
            occurred_at(transfer.expires_at),
            len(transfer.recipients),
            transfer.picked_up,
            seen,
            seen,
        )

    def _recipients(self, transfer: Transfer) -> list[tuple[Any, ...]]:
        return [
            (
                self._account,
                transfer.id,
                position,
                _storable(recipient.email),
                _storable(recipient.name or ""),
                occurred_at(recipient.picked_up_at),
            )
            for position, recipient in enumerate(transfer.recipients, 1)
        ]


def _text(moment: Any) -> str | None:
    return instant(moment) if isinstance(moment, datetime) else moment


def _storable(text: str) -> str:
    # PostgreSQL's text holds no NUL.
    return text.replace("\0", "\ufffd")
