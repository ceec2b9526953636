"""The event store: a page's events, rejected lines, poll and cursor are stored in one transaction."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from msgspec.structs import asdict, replace
from sqlalchemy.exc import DBAPIError

from outbound_transfer.client.events import MAX_CURSOR, Event, Page, RejectedLine
from outbound_transfer.store.accounts import bind_account
from outbound_transfer.store.destination import (
    MAX_NOTE,
    EventDestination,
    Loaded,
    PollRecord,
    check_account,
    check_rejected,
)
from outbound_transfer.store.engine import is_refusal
from outbound_transfer.store.errors import CursorMoved, InvalidCursor, PageRefused, UnknownFeed, words_of
from outbound_transfer.store.event_content import event_of, find_conflicts
from outbound_transfer.store.insert import MAX_KEYS, Row, insert_new
from outbound_transfer.store.schema import FEED, Tables
from outbound_transfer.store.tables import EVENTS, FEED_CURSOR, FEED_POLLS, REJECTED_LINES
from outbound_transfer.store.values import read_event_time, storable_text
from outbound_transfer.wording import pluralize

log = logging.getLogger(__name__)

#: Why an event is a rejected line whose id is that of another event.
OTHER_CONTENT: Final = "an event with this id and other content is stored"

#: Events in a warning.
_MAX_NAMED: Final = 3


class _RolledBack(Exception):
    """Ends a trial."""


class EventStore(EventDestination):
    """The stored events, cursor, polls and rejected lines of one feed.

    :param account: name of the feed's account, at most 250 characters; several accounts share the tables.
    :param clock: returns the time of rows; default: the database's, as the clocks of workers differ.
    :raises InvalidName: the account's name is empty or too long.
    """

    def __init__(self, tables: Tables, account: str, *, clock: Callable[[], datetime] | None = None) -> None:
        check_account(account)
        self.tables, self.database, self.account, self._clock = tables, tables.database, account, clock
        self._events, self._cursor = tables.named(EVENTS), tables.named(FEED_CURSOR)
        self._rejected, self._polls = tables.named(REJECTED_LINES), tables.named(FEED_POLLS)

    def _now(self, tx: sa.Connection) -> datetime:
        now = self._clock() if self._clock else tx.scalar(sa.select(self.database.clock()))
        assert isinstance(now, datetime)
        return now

    def get_or_create_cursor(self) -> int:
        try:
            return self.read_cursor()
        except (UnknownFeed, DBAPIError):  # the tables may be missing
            self.tables.create(FEED)
            self.database.retry(self._insert_cursor)
        return self.read_cursor()

    def _insert_cursor(self) -> None:
        # The row exists before the first page, so that setting the cursor is always the same statement.
        with self.database.begin() as tx:
            insert_new(tx, self._cursor, [{"account": self.account, "cursor": 0, "updated_at": self._now(tx)}])

    def bind_account(self, address: str) -> None:
        bind_account(self.tables, self.account, address)

    def read_cursor(self) -> int:
        """Return the cursor of a feed that has been read before; create nothing.

        :raises UnknownFeed: there is no cursor.
        :raises InvalidCursor: the stored value is not a cursor.
        """
        query = sa.select(self._cursor.c.cursor).where(self._cursor.c.account == self.account)
        with self.database.begin(reads_only=True) as tx:
            position = tx.scalar(query)
        if position is None:
            raise UnknownFeed(f"the feed {self.account} has no cursor: its next ingestion sees to it")
        if not isinstance(position, int) or not 0 <= position <= MAX_CURSOR:
            raise InvalidCursor(
                f"the cursor of the feed {self.account} is {position!r}: set it to 0, or to where it was"
            )
        return position

    def load_page(self, page: Page, max_rejected: int | None = None) -> Loaded:
        try:
            return self._load(page, max_rejected)
        except (DBAPIError, ValueError) as error:
            if not is_refusal(error):
                raise
        refused = {event.line_number: reason for event in page.events if (reason := self._refusal(event))}
        if refused and len(refused) == len(page.events):
            reason = next(iter(refused.values()))
            raise PageRefused(f"the database refuses any row of the page after {page.cursor}: {reason}")
        # In ASCII, because the database may have refused other characters.
        reasons = {
            line: f"the database refused it: {reason.encode('ascii', 'backslashreplace').decode()}"
            for line, reason in refused.items()
        }
        return self._load(_reject(page, reasons), max_rejected)

    def _load(self, page: Page, max_rejected: int | None) -> Loaded:
        return self.database.retry(lambda: self._load_in_transaction(page, max_rejected))

    def _load_in_transaction(self, page: Page, max_rejected: int | None) -> Loaded:
        with self.database.begin() as tx:
            # First, because it locks the row: readers that race for one page queue here.
            self.compare_and_set_cursor(tx, page.cursor, page.next_cursor)
            now = self._now(tx)
            new = insert_new(tx, self._events, [self._event_row(event, page.cursor, now) for event in page.events])
            if new < len(page.events):
                page = self._reject_conflicts(tx, page)
            check_rejected(page, max_rejected)
            self._save_rejected(tx, page, now)
            poll = PollRecord(
                status=200,
                events=len(page.events),
                new_events=new,
                rejected=len(page.rejected),
                cursor_from=page.cursor,
                cursor_to=page.next_cursor,
                has_more=page.has_more,
            )
            self.append_poll(tx, poll)
        return Loaded(page, new)

    def _refusal(self, event: Event) -> str | None:
        """Return why the database refuses an event, by trying; None if it takes it."""
        try:
            with self.database.begin() as tx:
                insert_new(tx, self._events, [self._event_row(event, 0, self._now(tx))])
                raise _RolledBack
        except _RolledBack:
            return None
        except (DBAPIError, ValueError) as error:
            if not is_refusal(error):
                raise
            return words_of(error).replace("\0", " ")

    def _reject_conflicts(self, tx: sa.Connection, page: Page) -> Page:
        """Return the page with the events as rejected lines whose id is that of another event."""
        events, ids, known = self._events.c, [event.event_id for event in page.events], dict[str, Event]()
        for at in range(0, len(ids), MAX_KEYS):
            is_known = (events.account == self.account) & events.event_id.in_(ids[at : at + MAX_KEYS])
            for row in tx.execute(sa.select(self._events).where(is_known)).mappings():
                known[row["event_id"]] = event_of(dict(row))
        conflicts = find_conflicts(page.events, known)
        if conflicts:
            some = ", ".join(f"{event.event_id!r}" for event in conflicts[:_MAX_NAMED])
            log.warning(
                "%s of the page after cursor %d with the id of another event and other content (%s%s): stored as "
                "rejected lines",
                pluralize(len(conflicts), "event"),
                page.cursor,
                some,
                ", …" if len(conflicts) > _MAX_NAMED else "",
            )
        return _reject(page, {event.line_number: OTHER_CONTENT for event in conflicts})

    def compare_and_set_cursor(self, tx: sa.Connection, old: int, new: int) -> None:
        """Set the cursor from ``old`` to ``new``.

        :raises CursorMoved: the stored cursor is not ``old``.
        """
        now = self._clock() if self._clock else self.database.clock()
        is_row = (self._cursor.c.account == self.account) & (self._cursor.c.cursor == old)
        update = sa.update(self._cursor).where(is_row).values(cursor=new, updated_at=now)
        # The time changes with each write, so the count does not depend on what a driver counts.
        if tx.execute(update).rowcount != 1:
            raise CursorMoved(f"the cursor of the feed {self.account} is no longer {old}")

    def _save_rejected(self, tx: sa.Connection, page: Page, now: datetime) -> None:
        rejected, lines = self._rejected.c, page.lines()
        of_account = rejected.account == self.account
        if page.events and tx.scalar(sa.select(rejected.line_number).where(of_account).limit(1)) is not None:
            # The feed is read again, and lines of it are valid by now, or the database accepts them.
            digests = [_digest(lines[event.line_number - 1]) for event in page.events]
            for at in range(0, len(digests), MAX_KEYS):
                is_known = rejected.line_digest.in_(digests[at : at + MAX_KEYS])
                tx.execute(sa.delete(self._rejected).where(of_account, is_known))
        rows = [
            {
                "account": self.account,
                "line_digest": _digest(line.raw),
                "cursor_from": page.cursor,
                "line_number": line.line_number,
                "raw": line.raw,
                "reason": line.reason,
                "loaded_at": now,
            }
            for line in page.rejected
        ]
        insert_new(tx, self._rejected, rows)

    def append_poll(self, tx: sa.Connection, poll: PollRecord) -> None:
        """Insert a poll in an open transaction."""
        note = None if poll.note is None else storable_text(poll.note)[:MAX_NOTE]
        row = {**asdict(poll), "note": note, "account": self.account, "polled_at": self._now(tx)}
        tx.execute(sa.insert(self._polls).values(poll_id=uuid.uuid4().hex, **row))

    def log_poll(self, poll: PollRecord) -> None:
        with self.database.begin() as tx:
            self.append_poll(tx, poll)

    def _event_row(self, event: Event, cursor: int, now: datetime) -> Row:
        return {
            "account": self.account,
            "event_id": event.event_id,
            "type": event.type,
            "timestamp": event.timestamp,
            "occurred_at": read_event_time(event.timestamp),
            "data": event.data if event.raw is None else None,
            "extra_fields": event.extra_fields if event.raw is None else None,
            "raw": event.raw,
            "cursor_from": cursor,
            "line_number": event.line_number,
            "loaded_at": now,
        }


def _reject(page: Page, reasons: Mapping[int, str]) -> Page:
    """Return the page with events as rejected lines.

    :param reasons: by line number.
    """
    lines = page.lines()
    rejected = [*page.rejected, *(RejectedLine(at, lines[at - 1], reason) for at, reason in reasons.items())]
    return replace(
        page,
        events=tuple(event for event in page.events if event.line_number not in reasons),
        rejected=tuple(sorted(rejected, key=lambda each: each.line_number)),
    )


def _digest(line: bytes) -> str:
    """Return what identifies a line of the feed when it is read again, also after its content was erased."""
    return hashlib.sha256(line).hexdigest()
