"""Tables of sent transfers and their recipients, kept in sync with the listing (service-api.md, R26)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from outbound_transfer.client.events import MAX_EVENT_ID_BYTES
from outbound_transfer.client.models import KNOWN_STATUSES, Transfer
from outbound_transfer.client.new_transfer import normalize_address
from outbound_transfer.store.insert import insert_new
from outbound_transfer.store.rows import (
    DELETED,
    ERASED,
    TERMINAL_STATUSES,
    read_event_time,
    status_rank,
    storable_text,
    utc_now,
)
from outbound_transfer.store.tables import LISTING, RECIPIENTS, TRANSFER_SYNC, TRANSFERS, Tables

#: How far the service's clock may be ahead; a later ``sent_at`` is ignored.
MAX_CLOCK_SKEW: Final = timedelta(days=1)


class SyncState(NamedTuple):
    """The state of the tables before the listing is read.

    :ivar synced_until: every transfer sent up to then is in the tables; None if the listing was never read completely.
    :ivar outstanding: by id, when each transfer was sent whose status may still change; None if unknown.
    """

    synced_until: datetime | None
    outstanding: dict[str, datetime | None]

    def covers(self, page: Sequence[Transfer], seen: set[str]) -> bool:
        """Return whether no transfer after this page can be new or have changed: the listing is newest first."""
        if self.synced_until is None or not page:
            return False
        missed = [at for transfer_id, at in self.outstanding.items() if at and transfer_id not in seen]
        oldest = min([self.synced_until, *missed])
        times = [read_event_time(each.sent_at) for each in page]
        return 2 * sum(at is not None and at < oldest for at in times) >= len(page)  # some may be wrong


def latest_sent_at(page: Sequence[Transfer], now: datetime) -> datetime | None:
    """Return a time before which all transfers are in a listing that starts with ``page``; None if unknown.

    This is not the newest time on the page: some may be wrong, and transfers sent before them would be missed.
    """
    known = (read_event_time(each.sent_at) for each in page)
    times = sorted((at for at in known if at and at <= now + MAX_CLOCK_SKEW), reverse=True)
    return times[min(max(len(times) // 4, 3), len(times) - 1)] if times else None


def is_storable(transfer: Transfer) -> bool:
    """Return whether the tables can store a transfer under its id."""
    return len(transfer.id) <= MAX_EVENT_ID_BYTES and "\0" not in transfer.id


class TransferTables:
    """The stored transfers of one account that one key can see: those of its user (service-api.md, R4).

    :param conn_id: Airflow connection, which identifies the key.
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
        is_over = transfers.status.in_([*TERMINAL_STATUSES, DELETED])
        outstanding = sa.select(transfers.transfer_id, transfers.sent_at).where(self._of_key(transfers), ~is_over)
        with self._database.begin() as tx:
            newest = tx.scalar(sa.select(sync.synced_until).where(self._of_key(sync)))
            is_wrong = newest is not None and newest > self.now() + MAX_CLOCK_SKEW
            return SyncState(None if is_wrong else newest, dict(tx.execute(outstanding).tuples().all()))

    def _of_key(self, columns: Any) -> sa.ColumnElement[bool]:
        return sa.and_(columns.account == self._account, columns.conn_id == self._conn_id)

    def newest_ids(self, count: int) -> list[str]:
        """Return the ids of the connection's newest transfers, without those that the service no longer has."""
        transfers = self._transfers.c
        query = sa.select(transfers.transfer_id).where(self._of_key(transfers), transfers.status != DELETED)
        with self._database.begin() as tx:
            return list(tx.scalars(query.order_by(transfers.sent_at.desc()).limit(count)))

    def save(self, page: Sequence[Transfer], requested_at: datetime) -> int:
        """Store a page of storable transfers in one transaction; return the number of new ones.

        A page that was requested before another, and is stored after it, takes no status back: no clock decides.
        """
        by_id = {transfer.id: transfer for transfer in reversed(page)}
        return self._database.retry(lambda: self._save(by_id, requested_at)) if by_id else 0

    def _save(self, page: dict[str, Transfer], requested_at: datetime) -> int:
        transfers = self._transfers.c
        of_account = transfers.account == self._account
        of_page = of_account & transfers.transfer_id.in_(page)
        query = sa.select(transfers.transfer_id, transfers.status, transfers.picked_up_count, transfers.expires_at)
        update = sa.update(self._transfers)
        with self._database.begin() as tx:
            # Locked, as another run may store another page with the same transfers.
            stored = tx.execute(query.where(of_page).order_by(transfers.transfer_id).with_for_update()).all()
            known = {row.transfer_id for row in stored}
            new = [transfer for transfer_id, transfer in page.items() if transfer_id not in known]
            if new:
                tx.execute(sa.insert(self._transfers), [self._row(each, requested_at) for each in new])
            if recipients := [row for each in new for row in self._recipient_rows(each)]:
                tx.execute(sa.insert(self._recipients), recipients)
            if known:
                tx.execute(update.where(of_page).values(conn_id=self._conn_id, seen_at=requested_at))
                self._store_pickups(tx, [each for each in page.values() if each.id in known and each.picked_up])
            if changes := list(filter(None, (_changes(row, page[row.transfer_id]) for row in stored))):
                tx.execute(update.where(of_account, transfers.transfer_id == sa.bindparam("of_transfer")), changes)
        return len(new)

    def _store_pickups(self, tx: sa.Connection, transfers: Sequence[Transfer]) -> None:
        """Store new pickups by address, as a listing has no fixed order: "" for one that was erased or never stored."""
        columns = self._recipients.c
        of_page = (columns.account == self._account) & columns.transfer_id.in_([each.id for each in transfers])
        query = sa.select(columns.transfer_id, columns.email, columns.picked_up_at, columns.position).where(of_page)
        waiting, known = defaultdict[Any, list[int]](list), Counter[Any]()
        for transfer_id, email, picked_up_at, position in tx.execute(query.order_by(columns.position)):
            person = transfer_id, "" if email == ERASED else normalize_address(email)
            waiting[person] += [] if picked_up_at else [position]
            known[person, picked_up_at] += 1
        pickups = list[dict[str, Any]]()
        for transfer in transfers:
            for recipient in transfer.recipients:
                at = read_event_time(recipient.picked_up_at)
                person = transfer.id, normalize_address(storable_text(recipient.email))
                person = person if person in waiting else (transfer.id, "")
                if at and known[person, at]:
                    known[person, at] -= 1
                elif at and waiting[person]:
                    position = waiting[person].pop(0)
                    pickups.append({"of_transfer": transfer.id, "at_position": position, "picked_up_at": at})
        if pickups:
            of_transfer = (columns.account == self._account) & (columns.transfer_id == sa.bindparam("of_transfer"))
            is_row = of_transfer & (columns.position == sa.bindparam("at_position"))
            tx.execute(sa.update(self._recipients).where(is_row), pickups)

    def mark_listed(self, newest: datetime) -> None:
        """Record that the whole listing was read; ``newest``: :func:`latest_sent_at` of its first page."""
        sync, now = self._sync.c, self.now()
        values = {"synced_until": newest, "updated_at": now}
        is_older = (sync.synced_until < newest) | (sync.synced_until > now + MAX_CLOCK_SKEW)

        def mark() -> None:
            with self._database.begin() as tx:
                insert_new(tx, self._sync, [{"account": self._account, "conn_id": self._conn_id, **values}])
                tx.execute(sa.update(self._sync).where(self._of_key(sync), is_older).values(values))

        self._database.retry(mark)

    def mark_deleted(self, transfer_id: str, requested_at: datetime) -> None:
        """Mark a transfer that the service no longer has."""
        transfers = self._transfers.c
        # An id that cannot be stored is nobody's.
        where = (transfers.account == self._account) & (transfers.transfer_id == storable_text(transfer_id))
        with self._database.begin() as tx:
            tx.execute(sa.update(self._transfers).where(where).values(status=DELETED, seen_at=requested_at))

    def _row(self, transfer: Transfer, seen_at: datetime) -> dict[str, Any]:
        ids = {"account": self._account, "transfer_id": transfer.id, "conn_id": self._conn_id}
        seen = {"first_seen_at": seen_at, "seen_at": seen_at, "recipient_count": len(transfer.recipients)}
        sent = {"subject": storable_text(transfer.subject), "sent_at": read_event_time(transfer.sent_at)}
        return {**ids, **seen, **sent, **_changing(transfer)}

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


def _changing(transfer: Transfer) -> dict[str, Any]:
    return {
        "status": storable_text(transfer.status),
        "picked_up_count": len(transfer.picked_up),
        "expires_at": read_event_time(transfer.expires_at),
    }


def _changes(row: sa.Row[Any], transfer: Transfer) -> dict[str, Any]:
    """Return the columns of a row that change: no status is taken back, and no pickup."""
    values = _changing(transfer)
    values["picked_up_count"] = max(values["picked_up_count"], row.picked_up_count)
    is_older = row.status in KNOWN_STATUSES and status_rank(row.status) > status_rank(transfer.status)
    has_changed = any(value != getattr(row, name) for name, value in values.items())
    return {"of_transfer": transfer.id, **values} if has_changed and not is_older else {}
