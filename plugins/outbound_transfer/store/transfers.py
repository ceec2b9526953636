"""Tables of sent transfers and their recipients, kept in sync with the listing (service-api.md, R26)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from outbound_transfer.client.events import MAX_EVENT_ID_BYTES
from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.client.new_transfer import normalize_address
from outbound_transfer.client.outcomes import KNOWN_STATUSES
from outbound_transfer.store.personal_data import ERASED
from outbound_transfer.store.schema import LISTING, Tables
from outbound_transfer.store.statuses import DELETED, TERMINAL_STATUSES, status_rank
from outbound_transfer.store.tables import RECIPIENTS, TRANSFER_SYNC, TRANSFERS
from outbound_transfer.store.values import read_event_time, storable_text, utc_now

#: How far the service's clock may be ahead; a later ``sent_at`` is ignored.
MAX_CLOCK_SKEW: Final = timedelta(days=1)


@dataclass(frozen=True)
class SyncState:
    """The state of the tables before the listing is read.

    :ivar synced_until: every transfer sent up to then is in the tables; None if the listing was never read completely.
    :ivar outstanding: by id, when each transfer was sent whose status may still change; None if unknown.
    """

    synced_until: datetime | None
    outstanding: dict[str, datetime | None]

    def covers(self, page: Sequence[Transfer], seen: set[str]) -> bool:
        """Return whether no transfer after this page can be new or have changed: the listing is newest first."""
        missed = [at for transfer_id, at in self.outstanding.items() if at and transfer_id not in seen]
        return self.synced_until is not None and _is_mostly_before(page, min([self.synced_until, *missed]))


def latest_sent_at(page: Sequence[Transfer], now: datetime) -> datetime | None:
    """Return a time before which all transfers are in a listing that starts with ``page``; None if unknown.

    This is not the newest time on the page: some may be wrong, and transfers sent before them would be missed.
    """
    times = sorted((at for at in map(sent_at, page) if at and at <= now + MAX_CLOCK_SKEW), reverse=True)
    return times[min(max(len(times) // 4, 3), len(times) - 1)] if times else None


def _is_mostly_before(page: Sequence[Transfer], time: datetime) -> bool:
    """Return whether all transfers after this page were sent before ``time``, even if some times on it are wrong."""
    return bool(page) and 2 * sum(at is not None and at < time for at in map(sent_at, page)) >= len(page)


def sent_at(transfer: Transfer) -> datetime | None:
    """Return when a transfer was sent; None if unknown."""
    return read_event_time(transfer.sent_at)


def _address(email: str) -> str:
    """Return what two forms of an address have in common; "" for what is stored in the place of one."""
    return "" if email == ERASED else normalize_address(email)


def is_storable(transfer: Transfer) -> bool:
    """Return whether the tables can store a transfer under its id."""
    return len(transfer.id) <= MAX_EVENT_ID_BYTES and "\0" not in transfer.id


class TransferTables:
    """The stored transfers of one account that one key can see: those of its user (service-api.md, R4).

    :param account: name of the account; several accounts share the tables.
    :param conn_id: Airflow connection, which identifies the key.
    :param clock: returns the time.
    :param stores_recipients: whether names and addresses are stored, or empty texts.
    """

    def __init__(
        self,
        tables: Tables,
        account: str,
        conn_id: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        stores_recipients: bool = True,
    ) -> None:
        self._tables, self._database, self.now = tables, tables.database, clock
        self._account, self._conn_id, self._stores_recipients = account, conn_id, stores_recipients
        self._transfers, self._recipients = tables.named(TRANSFERS), tables.named(RECIPIENTS)
        self._sync = tables.named(TRANSFER_SYNC)

    def sync_state(self) -> SyncState:
        """Return what is stored and may still change; create the tables first if necessary."""
        self._tables.create(LISTING)
        sync, transfers = self._sync.c, self._transfers.c
        of_key = (sync.account == self._account) & (sync.conn_id == self._conn_id)
        is_over = transfers.status.in_([*TERMINAL_STATUSES, DELETED])
        outstanding = sa.select(transfers.transfer_id, transfers.sent_at).where(self._of_key(), ~is_over)
        with self._database.begin() as tx:
            newest = tx.scalar(sa.select(sync.synced_until).where(of_key))
            is_wrong = newest is not None and newest > self.now() + MAX_CLOCK_SKEW
            return SyncState(None if is_wrong else newest, dict(tx.execute(outstanding).tuples().all()))

    def _of_key(self) -> sa.ColumnElement[bool]:
        return (self._transfers.c.account == self._account) & (self._transfers.c.conn_id == self._conn_id)

    def newest_ids(self, count: int) -> list[str]:
        """Return the ids of the connection's newest transfers, without those that the service no longer has."""
        transfers = self._transfers.c
        query = sa.select(transfers.transfer_id).where(self._of_key(), transfers.status != DELETED)
        with self._database.begin() as tx:
            return list(tx.scalars(query.order_by(transfers.sent_at.desc()).limit(count)))

    def save(self, page: Sequence[Transfer], requested_at: datetime) -> int:
        """Store a page of the listing in one transaction; return the number of new transfers.

        A page that was requested before another, and is stored after it, takes no status back: no clock decides.

        :param page: storable transfers only.
        :param requested_at: when the page was requested.
        """
        by_id = {transfer.id: transfer for transfer in reversed(page)}
        return self._database.retry(lambda: self._save(by_id, requested_at)) if by_id else 0

    def _save(self, page: dict[str, Transfer], requested_at: datetime) -> int:
        transfers = self._transfers.c
        stored = sa.select(transfers.transfer_id, transfers.status, transfers.picked_up_count, transfers.expires_at)
        where = (transfers.account == self._account) & transfers.transfer_id.in_(page)
        with self._database.begin() as tx:
            # Locked, as another run may store another page with the same transfers.
            rows = tx.execute(stored.where(where).order_by(transfers.transfer_id).with_for_update()).all()
            known = {row.transfer_id for row in rows}
            new = [transfer for transfer_id, transfer in page.items() if transfer_id not in known]
            self._insert(tx, new, requested_at)
            if known:
                seen = {"conn_id": self._conn_id, "seen_at": requested_at}
                tx.execute(sa.update(self._transfers).where(where).values(seen))
                self._update(tx, rows, page)
        return len(new)

    def _insert(self, tx: sa.Connection, new: Sequence[Transfer], seen_at: datetime) -> None:
        if new:
            tx.execute(sa.insert(self._transfers), [self._row(transfer, seen_at) for transfer in new])
        if recipients := [row for transfer in new for row in self._recipient_rows(transfer)]:
            tx.execute(sa.insert(self._recipients), recipients)

    def _update(self, tx: sa.Connection, rows: Iterable[sa.Row[Any]], page: dict[str, Transfer]) -> None:
        """Update the rows that have changed: no status is taken back, and no pickup."""
        changes = []
        for row in rows:
            transfer = page[row.transfer_id]
            values = {
                "status": storable_text(transfer.status),
                "picked_up_count": max(len(transfer.picked_up), row.picked_up_count),
                "expires_at": read_event_time(transfer.expires_at),
            }
            is_older = row.status in KNOWN_STATUSES and status_rank(row.status) > status_rank(transfer.status)
            if not is_older and any(value != getattr(row, name) for name, value in values.items()):
                changes.append({"of_transfer": transfer.id, **values})
        if changes:
            columns = self._transfers.c
            where = (columns.account == self._account) & (columns.transfer_id == sa.bindparam("of_transfer"))
            tx.execute(sa.update(self._transfers).where(where), changes)
        if collected := self._with_new_pickups(tx, [page[row.transfer_id] for row in rows]):
            self._update_pickups(tx, collected)

    def _with_new_pickups(self, tx: sa.Connection, transfers: Iterable[Transfer]) -> list[Transfer]:
        """Return the transfers with more pickups than are stored."""
        picked_up = {transfer.id: transfer for transfer in transfers if transfer.picked_up}
        columns = self._recipients.c
        query = sa.select(columns.transfer_id, sa.func.count(columns.picked_up_at)).group_by(columns.transfer_id)
        where = (columns.account == self._account) & columns.transfer_id.in_(picked_up)
        counts = dict(tx.execute(query.where(where)).tuples().all()) if picked_up else {}
        return [each for each in picked_up.values() if len(each.picked_up) > counts.get(each.id, 0)]

    def _update_pickups(self, tx: sa.Connection, transfers: Sequence[Transfer]) -> None:
        columns = self._recipients.c
        query = sa.select(columns.transfer_id, columns.position, columns.email, columns.picked_up_at)
        of_account = columns.account == self._account
        ids = [transfer.id for transfer in transfers]
        stored = defaultdict[str, list[sa.Row[Any]]](list)
        for row in tx.execute(query.where(of_account, columns.transfer_id.in_(ids)).order_by(columns.position)):
            stored[row.transfer_id].append(row)
        pickups = [
            {"of_transfer": transfer.id, "at_position": position, "picked_up_at": at}
            for transfer in transfers
            for position, at in self._new_pickups(transfer.recipients, stored[transfer.id])
        ]
        if pickups:
            where = (columns.transfer_id == sa.bindparam("of_transfer")) & (
                columns.position == sa.bindparam("at_position")
            )
            tx.execute(sa.update(self._recipients).where(of_account, where), pickups)

    def _new_pickups(
        self, listed: Iterable[Recipient], stored: Sequence[sa.Row[Any]]
    ) -> Iterator[tuple[int, datetime | None]]:
        """Yield position and time of the pickups that are not stored: by address, as a listing has no fixed order.

        An address that is not stored was erased, or has an empty text in its place.
        """
        known = Counter((_address(row.email), row.picked_up_at) for row in stored if row.picked_up_at)
        waiting = defaultdict[str, list[int]](list)
        for row in stored:
            waiting[_address(row.email)] += [] if row.picked_up_at else [row.position]
        for recipient in listed:
            at, email = read_event_time(recipient.picked_up_at), _address(storable_text(recipient.email))
            email = email if email in waiting else ""
            if at and known[email, at]:
                known[email, at] -= 1
            elif at and waiting[email]:
                yield waiting[email].pop(0), at

    def mark_listed(self, newest: datetime) -> None:
        """Record that the whole listing was read.

        :param newest: :func:`latest_sent_at` of its first page.
        """
        self._database.retry(lambda: self._mark_listed(newest))

    def _mark_listed(self, newest: datetime) -> None:
        sync, now = self._sync.c, self.now()
        where = (sync.account == self._account) & (sync.conn_id == self._conn_id)
        values = {"synced_until": newest, "updated_at": now}
        with self._database.begin() as tx:
            before = tx.scalar(sa.select(sync.synced_until).where(where).with_for_update())
            if before is None:
                tx.execute(sa.insert(self._sync), {"account": self._account, "conn_id": self._conn_id, **values})
            elif before < newest or before > now + MAX_CLOCK_SKEW:
                tx.execute(sa.update(self._sync).where(where).values(values))

    def mark_deleted(self, transfer_id: str, requested_at: datetime) -> None:
        """Mark a transfer that the service no longer has."""
        transfers = self._transfers.c
        where = (transfers.account == self._account) & (transfers.transfer_id == transfer_id)
        with self._database.begin() as tx:
            tx.execute(sa.update(self._transfers).where(where).values(status=DELETED, seen_at=requested_at))

    def _row(self, transfer: Transfer, seen_at: datetime) -> dict[str, Any]:
        return {
            "account": self._account,
            "transfer_id": transfer.id,
            "conn_id": self._conn_id,
            "status": storable_text(transfer.status),
            "subject": storable_text(transfer.subject),
            "sent_at": read_event_time(transfer.sent_at),
            "expires_at": read_event_time(transfer.expires_at),
            "recipient_count": len(transfer.recipients),
            "picked_up_count": len(transfer.picked_up),
            "first_seen_at": seen_at,
            "seen_at": seen_at,
        }

    def _recipient_rows(self, transfer: Transfer) -> list[dict[str, Any]]:
        return [
            {
                "account": self._account,
                "transfer_id": transfer.id,
                "position": position,
                "email": storable_text(recipient.email) if self._stores_recipients else "",
                "name": storable_text(recipient.name or "") if self._stores_recipients else "",
                "picked_up_at": read_event_time(recipient.picked_up_at),
            }
            for position, recipient in enumerate(transfer.recipients, 1)
        ]
