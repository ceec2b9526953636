"""The event store: a page's events, rejected lines, poll and cursor are stored in one transaction."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from outbound_transfer.client.events import MAX_CURSOR, Event, Page
from outbound_transfer.client.wording import pluralize
from outbound_transfer.store.accounts import bind_account
from outbound_transfer.store.errors import first_line
from outbound_transfer.store.event_content import find_conflicts
from outbound_transfer.store.schema import FEED
from outbound_transfer.store.tables import (
    EVENTS,
    FEED_CURSOR,
    FEED_POLLS,
    REJECTED_LINES,
)
from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.destination import (
    MAX_NOTE,
    EventDestination,
    PollRecord,
    check_account,
    poll_for,
)
from outbound_transfer.warehouse.errors import (
    CursorMoved,
    InvalidCursor,
    PageRefused,
    RowsRefused,
    UnknownFeed,
    WarehouseError,
)
from outbound_transfer.warehouse.refusals import reject_conflicts, storable_page
from outbound_transfer.warehouse.rows import event_rows, line_digest, rejected_rows, storable_text
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

#: Number of event ids in one query, and in an error.
_MAX_IDS: Final = 500
_MAX_NAMED: Final = 3

#: Number of times that a page is loaded again after a conflict, while the cursor is where it was.
_CONFLICT_RETRIES: Final = 5


class EventStore(EventDestination):
    """The stored events, cursor, polls and rejected lines of one feed.

    :param account: name of the feed's account, at most 250 characters; several accounts share the tables.
    :param clock: returns the time of rows; default: the database's, as the clocks of workers differ.
    :raises InvalidName: the account's name is empty or too long.
    """

    def __init__(self, warehouse: Warehouse, account: str, *, clock: Callable[[], datetime] | None = None) -> None:
        check_account(account)
        self.warehouse, self.account, self._clock = warehouse, account, clock

    def now(self, tx: Any = None) -> datetime:
        """Return the time of rows that are written now.

        :param tx: an open transaction; None to open one.
        """
        return self._clock() if self._clock else self.warehouse.now(tx)

    def get_or_create_cursor(self) -> int:
        if self._read() is None:
            self.warehouse.retry_on_conflict(self._create)
        return self.read_cursor()

    def bind_account(self, address: str) -> None:
        bind_account(self.warehouse.tables, self.account, address)

    def read_cursor(self) -> int:
        """Return the cursor of a feed that has been read before; create nothing.

        :raises UnknownFeed: there is no cursor.
        :raises InvalidCursor: the stored value is not a cursor.
        """
        position = self._read()
        if position is None:
            raise UnknownFeed(
                f"the feed {self.account} has no cursor in tables of this version: its next ingestion sees to it"
            )
        if not isinstance(position, int) or not 0 <= position <= MAX_CURSOR:
            raise InvalidCursor(
                f"the cursor of the feed {self.account} is {position!r}: set it to 0, or to where it was"
            )
        return position

    def _read(self) -> Any:
        if self.warehouse.tables.version(FEED) is None:
            return None
        with self.warehouse.read() as tx:
            return self.read_cursor_row(tx)

    def read_cursor_row(self, tx: Any) -> Any:
        """Return the stored cursor, unchecked; None if there is none."""
        query = "SELECT [cursor] FROM {feed_cursor} WHERE [account] = ?"
        return scalar(tx, self.warehouse.render(query), (self.account,))

    def _create(self) -> None:
        self.warehouse.tables.create(FEED)
        with self.warehouse.transaction() as tx:
            # The row exists before the first page, so that setting the cursor is always the same statement.
            self.warehouse.insert(tx, FEED_CURSOR, [(self.account, 0, format_timestamp(self.now(tx)))])

    def load_page(self, page: Page) -> int:
        try:
            return self._load_in_transaction(page)
        except Exception as error:
            if isinstance(error, WarehouseError) or not self.warehouse.dialect.is_refusal(error):
                raise
            accepted = storable_page(page, self._refusal, utc_now())
            if accepted != page:
                raise RowsRefused(f"the database refuses rows of the page after {page.cursor}", accepted) from None
            if not self._is_refused_again(page):
                raise  # it was no refusal, but a trouble that has passed, or goes on: the task's retries do the same
            text = f"the database refuses any row of the page after {page.cursor}: {first_line(error)}"
            raise PageRefused(text) from None  # the error itself may quote a row

    def _is_refused_again(self, page: Page) -> bool:
        """Return whether a database that can be read refuses a page that it has refused."""
        try:
            is_refused = self._refusal(page) is not None
            with self.warehouse.read() as tx:
                self.read_cursor_row(tx)
        except Exception:
            return False
        return is_refused

    def _load_in_transaction(self, page: Page, retries: int = _CONFLICT_RETRIES) -> int:
        try:
            with self.warehouse.transaction() as tx:
                now = self.now(tx)
                new = self._write(tx, page, now)
                if new < len(page.events):
                    self._check_conflicts(tx, page, now)
                return new
        except Exception as error:
            if not self.warehouse.dialect.is_conflict(error):
                raise
            if self._read() != page.cursor:
                raise self._cursor_moved(page.cursor) from error
            if not retries:
                raise
            time.sleep(random.uniform(0.01, 0.1))  # noqa: S311  # so that two readers do not stay in step
            return self._load_in_transaction(page, retries - 1)

    def _refusal(self, page: Page) -> Exception | None:
        try:
            with self.warehouse.trial() as tx:
                self._write(tx, page, self.now(tx))
        except Exception as error:
            if isinstance(error, WarehouseError) or not self.warehouse.dialect.is_refusal(error):
                raise
            return error
        return None

    def _check_conflicts(self, tx: Any, page: Page, now: datetime) -> None:
        """Check that the events whose ids were known are those that are stored.

        :param now: when the others were stored.
        :raises RowsRefused: some have other content.
        """
        known = self.read_events(tx, [event.event_id for event in page.events], loaded_at=now)
        if conflicts := find_conflicts(page.events, known):
            some = ", ".join(f"'{event.event_id}'" for event in conflicts[:_MAX_NAMED])
            raise RowsRefused(
                f"{pluralize(len(conflicts), 'event')} of the page after cursor {page.cursor} with the id of another "
                f"event and other content ({some}{', …' if len(conflicts) > _MAX_NAMED else ''})",
                reject_conflicts(page, conflicts),
            )

    def read_events(self, tx: Any, ids: Sequence[str], *, loaded_at: datetime | None = None) -> dict[str, Event]:
        """Return the stored events among ``ids``, without their line numbers, by id.

        :param loaded_at: events that were loaded just then are left out.
        """
        query = (
            "SELECT [event_id], [type], [timestamp], CAST([data] AS TEXT), CAST([extra_fields] AS TEXT), [raw]"
            " FROM {events} WHERE [account] = ?"
        )
        parameters = [self.account]
        if loaded_at is not None:
            query += " AND [loaded_at] <> ?"
            parameters.append(format_timestamp(loaded_at))
        found: dict[str, Event] = {}
        for at in range(0, len(ids), _MAX_IDS):
            part = ids[at : at + _MAX_IDS]
            among = f" AND [event_id] IN ({', '.join('?' for _ in part)})"
            rows = fetch_all(self.warehouse.run(tx, query + among, (*parameters, *part)))
            for event_id, type_, timestamp, data, extra_fields, raw in rows:
                found[event_id] = Event(event_id, type_, timestamp, data, extra_fields, 0, raw)
        return found

    def _write(self, tx: Any, page: Page, now: datetime) -> int:
        # First, because it locks the row: readers that race for one page queue here.
        self.compare_and_set_cursor(tx, page.cursor, page.next_cursor)
        self._save_rejected(tx, page, now)
        new = self.warehouse.insert(tx, EVENTS, event_rows(self.account, page, now))
        self.append_poll(tx, poll_for(page, new))
        return new

    def compare_and_set_cursor(self, tx: Any, old: int, new: int) -> None:
        """Set the cursor from ``old`` to ``new``.

        :raises CursorMoved: the stored cursor is not ``old``.
        """
        now = format_timestamp(self.now(tx))
        self.warehouse.run(
            tx,
            "UPDATE {feed_cursor} SET [cursor] = ?, [updated_at] = ? WHERE [account] = ? AND [cursor] = ?",
            (new, now, self.account, old),
        )
        if self.warehouse.dialect.rowcount(tx) != 1:
            raise self._cursor_moved(old)

    def _cursor_moved(self, old: int) -> CursorMoved:
        return CursorMoved(f"the cursor of the feed {self.account} is no longer {old}")

    def _save_rejected(self, tx: Any, page: Page, now: datetime) -> None:
        count = "SELECT count(*) FROM {rejected_lines} WHERE [account] = ?"
        if page.events and scalar(tx, self.warehouse.render(count), (self.account,)):
            # The feed is read again, and lines of it are valid by now, or the database accepts them.
            lines = page.lines()
            digests = [line_digest(lines[event.line_number - 1]) for event in page.events]
            for at in range(0, len(digests), _MAX_IDS):
                part = digests[at : at + _MAX_IDS]
                among = ", ".join("?" for _ in part)
                query = f"DELETE FROM {{rejected_lines}} WHERE [account] = ? AND [line_digest] IN ({among})"  # noqa: S608
                self.warehouse.run(tx, query, (self.account, *part))
        self.warehouse.insert(tx, REJECTED_LINES, rejected_rows(self.account, page.cursor, page.rejected, now))

    def append_poll(self, tx: Any, poll: PollRecord) -> None:
        """Insert a poll in an open transaction."""
        row = (
            uuid.uuid4().hex,
            self.account,
            format_timestamp(self.now(tx)),
            poll.action,
            poll.status,
            poll.events,
            poll.new_events,
            poll.rejected,
            poll.cursor_from,
            poll.cursor_to,
            None if poll.has_more is None else int(poll.has_more),
            None if poll.note is None else storable_text(poll.note)[:MAX_NOTE],
        )
        self.warehouse.insert(tx, FEED_POLLS, [row])

    def log_poll(self, poll: PollRecord) -> None:
        with self.warehouse.transaction() as tx:
            self.append_poll(tx, poll)
