"""Landing the event feed: rows, rejected lines, the log and the cursor in one transaction (design: promise 5.3)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec

from outbound_transfer.protocol.feed import MAX_CURSOR, Page
from outbound_transfer.warehouse.database import Warehouse, rows_of, value
from outbound_transfer.warehouse.dialects import Row
from outbound_transfer.warehouse.errors import (
    CursorMoved,
    InvalidCursor,
    InvalidName,
    KnownRow,
    RowsRefused,
    UnknownFeed,
    WarehouseError,
)
from outbound_transfer.warehouse.refusals import settled
from outbound_transfer.warehouse.rejected import Known, changes
from outbound_transfer.warehouse.rows import event_rows, instant, rejected_rows
from outbound_transfer.warehouse.schema import FEED, ensure, is_current
from outbound_transfer.warehouse.tables import EVENTS, FEED_CURSOR, FEED_POLLS, MAX_FEED, REJECTED_LINES, Table

#: Characters of a note in the log.
MAX_NOTE: Final = 500

#: What the log calls an answer whose cursor was not believed at once.
CLAIM: Final = "claim"

Add: TypeAlias = Callable[[Any, Table, Sequence[Row]], int]

#: Times that a lost race for creating the tables is run again.
_BEGINNINGS: Final = 20


def _now() -> datetime:
    return datetime.now(timezone.utc)


class _Undone(Exception):
    """Ends a transaction that was only tried."""


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the log, as :data:`.tables.FEED_POLLS` describes it."""

    cursor_from: int
    action: str = "poll"
    status: int | None = None
    events: int = 0
    new_events: int = 0
    rejected: int = 0
    cursor_to: int | None = None
    has_more: bool | None = None
    note: str | None = None


class FeedTables:
    """The tables of one feed.

    :param feed: whose feed it is; rows of several feeds share the tables. At most 250 characters.
    :param clock: the time, for ``landed_at``, ``updated_at`` and ``polled_at``.
    """

    def __init__(self, warehouse: Warehouse, feed: str, *, clock: Callable[[], datetime] = _now) -> None:
        if not 0 < len(feed) <= MAX_FEED:
            raise InvalidName(f"a feed's name has 1 to {MAX_FEED} characters, not {len(feed)}")
        self.warehouse, self.feed, self.now = warehouse, feed, clock
        self._likely_new = True

    def cursor(self) -> int:
        """Where the feed is read on from; 0 at first, when the tables are created or upgraded too.

        :raises InvalidCursor: the row was changed to what is no cursor.
        :raises NewerTables: the tables were made by a newer version of this package.
        """
        if self._read() is None:
            self._begin_with_others()
        return self.known_cursor()

    def known_cursor(self) -> int:
        """The same of a feed that has been read before; nothing is created, nor upgraded.

        :raises UnknownFeed: there is no cursor.
        :raises InvalidCursor: the row was changed to what is no cursor.
        """
        position = self._read()
        if position is None:
            raise UnknownFeed(
                f"the feed {self.feed} has no cursor in tables of this version: its next ingestion sees to it"
            )
        if not isinstance(position, int) or not 0 <= position <= MAX_CURSOR:
            raise InvalidCursor(f"the cursor of the feed {self.feed} is {position!r}: set it to 0, or to where it was")
        return position

    def _read(self) -> Any:
        with self.warehouse.reading() as cursor:
            if not is_current(self.warehouse, cursor, FEED):
                return None
            return self.position(cursor)

    def position(self, cursor: Any) -> Any:
        """The cursor's row, as it is; None where there is none."""
        return value(
            cursor, self.warehouse.spelled("SELECT [cursor] FROM {feed_cursor} WHERE [feed] = ?"), (self.feed,)
        )

    def _begin_with_others(self) -> None:
        # Where no lock makes them queue, others that do just the same at the same time are an error to one of us.
        for left in range(_BEGINNINGS, -1, -1):
            try:
                self._begin()
                return
            except Exception as error:
                if not left or not (self.warehouse.dialect.is_race(error) or self._read() is not None):
                    raise
            time.sleep(0.05)

    def _begin(self) -> None:
        ensure(self.warehouse, FEED, self.now())
        with self.warehouse.writing() as cursor:
            # The row is there before the first page, so that moving the cursor is one and the same statement always.
            self.warehouse.lock(cursor)
            self.warehouse.insert(cursor, FEED_CURSOR, [(self.feed, 0, instant(self.now()))])

    def believes(self, page: Page) -> bool:
        """Whether the page's cursor can be kept; otherwise it is remembered, and the next answer is to say as much.

        What lies between a page's last line and ``X-Next-Cursor`` is never asked for again, and service.md allows it
        to be anything. So a cursor that is further beyond the lines than this feed's have been is believed when an
        earlier answer has claimed as much, or half of it: a feed grows.
        """
        if page.excess <= self._usual_excess(page):
            return True
        if page.next_cursor - page.cursor <= 2 * (self._claimed(page.cursor) - page.cursor):
            return True
        lines = len(page.events) + len(page.rejected)
        note = f"X-Next-Cursor {page.next_cursor} is {page.excess} beyond what {lines} lines account for"
        self.log(Poll(action=CLAIM, status=200, cursor_from=page.cursor, cursor_to=page.next_cursor, note=note))
        return False

    def _usual_excess(self, page: Page) -> int:
        """By how much a cursor may be beyond the lines at first sight; nothing where ids say what it should be."""
        if page.excess <= 0 or not page.events or page.has_positions:
            return 0
        return self._asked(
            "SELECT max([cursor_to] - [cursor_from] - [events] - [rejected]) FROM {feed_polls}"
            " WHERE [feed] = ? AND [action] = 'poll' AND [cursor_to] IS NOT NULL"
        )

    def _claimed(self, position: int) -> int:
        query = "SELECT max([cursor_to]) FROM {feed_polls} WHERE [feed] = ? AND [action] = ? AND [cursor_from] = ?"
        return max(self._asked(query, CLAIM, position), position)

    def forget_claims(self, cursor: Any) -> None:
        """What was claimed says nothing once the cursor was set back: the same answers come again."""
        self.warehouse.run(
            cursor,
            "UPDATE {feed_polls} SET [action] = 'poll', [cursor_to] = NULL WHERE [feed] = ? AND [action] = ?",
            (self.feed, CLAIM),
        )

    def _asked(self, query: str, *parameters: Any) -> int:
        with self.warehouse.reading() as cursor:
            return int(value(cursor, self.warehouse.spelled(query), (self.feed, *parameters)) or 0)

    def land(self, page: Page) -> int:
        """Commit a page: all of it, the cursor and a row of the log, or nothing.

        :return: how many of its events were not there before.
        :raises CursorMoved: the cursor is not the one that the page was asked with.
        :raises RowsRefused: the database refuses rows for what they hold; the error has the page that it takes.
        """
        try:
            return self._land_once(page)
        except Exception as error:
            if isinstance(error, WarehouseError) or not self.warehouse.dialect.is_refusal(error):
                raise
            accepted = settled(page, self._refusal, self.now())
            if accepted == page:
                raise
            raise RowsRefused(f"the database refuses rows of the page after {page.cursor}", accepted) from error

    def _land_once(self, page: Page) -> int:
        if self._likely_new and self._appends:
            with suppress(KnownRow):
                return self._land(page, self.warehouse.append)
        new = self._land(page, self.warehouse.insert)
        # Where one page is known, as of a feed that is read again, the next ones are likely to be.
        self._likely_new = new == len(page.events)
        return new

    @cached_property
    def _appends(self) -> bool:
        return self.warehouse.gains_by_append(EVENTS)

    def _land(self, page: Page, add_events: Add) -> int:
        try:
            with self.warehouse.writing() as cursor:
                return self._write(cursor, page, add_events)
        except Exception as error:
            if self.warehouse.dialect.is_race(error):
                raise self._moved(page.cursor) from error
            raise

    def _refusal(self, page: Page) -> Exception | None:
        try:
            with self.warehouse.writing() as cursor:
                self._write(cursor, page, self.warehouse.insert)
                raise _Undone
        except _Undone:
            return None
        except Exception as error:
            if isinstance(error, WarehouseError) or not self.warehouse.dialect.is_refusal(error):
                raise
            return error

    def _write(self, cursor: Any, page: Page, add_events: Add) -> int:
        now = self.now()
        # First, because it locks the row: readers that race for one page queue here, not in the middle of it.
        self.move(cursor, page.cursor, page.next_cursor)
        self._keep_rejected(cursor, page, now)
        new = add_events(cursor, EVENTS, event_rows(self.feed, page, now))
        self.add(cursor, landed(page, new))
        return new

    def move(self, cursor: Any, old: int, new: int) -> None:
        """Compare and set the cursor.

        :raises CursorMoved: it is not ``old``.
        """
        self.warehouse.run(
            cursor,
            "UPDATE {feed_cursor} SET [cursor] = ?, [updated_at] = ? WHERE [feed] = ? AND [cursor] = ?",
            (new, instant(self.now()), self.feed, old),
        )
        if self.warehouse.dialect.changed(cursor) != 1:
            raise self._moved(old)

    def _moved(self, old: int) -> CursorMoved:
        return CursorMoved(f"the cursor of the feed {self.feed} is not {old} any more")

    def _keep_rejected(self, cursor: Any, page: Page, now: datetime) -> None:
        # There are none from the cursor on, but where the feed is read again: pages may be cut otherwise then.
        query = "SELECT [cursor_from], [line], [raw] FROM {rejected_lines}"
        where = " WHERE [feed] = ? AND [cursor_from] >= ? AND [cursor_from] <= ?"
        found = rows_of(self.warehouse.run(cursor, query + where, (self.feed, page.cursor, page.next_cursor)))
        if not found:
            self.warehouse.insert(cursor, REJECTED_LINES, rejected_rows(self.feed, page.cursor, page.rejected, now))
            return
        known = [Known(start, line, bytes(raw)) for start, line, raw in found]
        change = changes(page, known, self._frontier(cursor))
        place = "WHERE [feed] = ? AND [cursor_from] = ? AND [line] = ?"
        for row in change.drop:
            self.warehouse.run(cursor, f"DELETE FROM {{rejected_lines}} {place}", (self.feed, *row[:2]))  # noqa: S608
        for row, to in change.move:
            self.warehouse.run(
                cursor,
                f"UPDATE {{rejected_lines}} SET [cursor_from] = ?, [line] = ? {place}",  # noqa: S608
                (*to[:2], self.feed, *row[:2]),
            )
        self.warehouse.insert(cursor, REJECTED_LINES, rejected_rows(self.feed, page.cursor, change.add, now))

    def _frontier(self, cursor: Any) -> int:
        """How far the feed has ever been read, as the log knows."""
        furthest = "SELECT max([cursor_to]) FROM {feed_polls} WHERE [feed] = ? AND [action] = 'poll'"
        return int(value(cursor, self.warehouse.spelled(furthest), (self.feed,)) or 0)

    def add(self, cursor: Any, poll: Poll) -> None:
        """A row of the log, in a transaction that is open."""
        row = (
            uuid.uuid4().hex,
            self.feed,
            instant(self.now()),
            poll.action,
            poll.status,
            poll.events,
            poll.new_events,
            poll.rejected,
            poll.cursor_from,
            poll.cursor_to,
            None if poll.has_more is None else int(poll.has_more),
            None if poll.note is None else _printable(poll.note),
        )
        self.warehouse.append(cursor, FEED_POLLS, [row])

    def log(self, poll: Poll) -> None:
        """A row of the log by itself: of a poll that landed nothing."""
        with self.warehouse.writing() as cursor:
            self.add(cursor, poll)


def landed(page: Page, new_events: int) -> Poll:
    """The row of a page that is landed."""
    return Poll(
        status=200,
        events=len(page.events),
        new_events=new_events,
        rejected=len(page.rejected),
        cursor_from=page.cursor,
        cursor_to=page.next_cursor,
        has_more=page.has_more,
    )


def _printable(note: str) -> str:
    # An error may quote what the service said, and that is anything.
    return note.encode(errors="replace").decode().replace("\0", "\ufffd")[:MAX_NOTE]
