"""Landing the event feed: rows, rejected lines, the log and the cursor in one transaction (design: promise 5.3)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.feed import MAX_CURSOR, Page
from outbound_transfer.warehouse.database import Warehouse, value
from outbound_transfer.warehouse.dialects import Row
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor, InvalidName, KnownRow
from outbound_transfer.warehouse.rows import event_rows, instant, rejected_rows
from outbound_transfer.warehouse.schema import FEED, ensure, is_current
from outbound_transfer.warehouse.tables import EVENTS, FEED_CURSOR, FEED_POLLS, MAX_FEED, REJECTED_LINES, Table

#: Characters of a note in the log.
MAX_NOTE: Final = 500

#: Times that a lost race for creating the tables is run again.
_BEGINNINGS: Final = 20


def _now() -> datetime:
    return datetime.now(timezone.utc)


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
        position = self._read()
        if position is None:
            self._begin_with_others()
            position = self._read()
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

    def land(self, page: Page) -> int:
        """Commit a page: all of it, the cursor and a row of the log, or nothing.

        :return: how many of its events were not there before.
        :raises CursorMoved: the cursor is not the one that the page was asked with.
        """
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

    def _land(self, page: Page, add_events: Callable[[Any, Table, Sequence[Row]], int]) -> int:
        now = self.now()
        try:
            with self.warehouse.writing() as cursor:
                # First, because it locks the row: readers that race for one page queue here, not in the middle of it.
                self.move(cursor, page.cursor, page.next_cursor)
                self._forget_rejected(cursor, page)
                self.warehouse.insert(cursor, REJECTED_LINES, rejected_rows(self.feed, page, now))
                new = add_events(cursor, EVENTS, event_rows(self.feed, page, now))
                self.add(cursor, landed(page, new))
                return new
        except Exception as error:
            if self.warehouse.dialect.is_race(error):
                raise self._moved(page.cursor) from error
            raise

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

    def _forget_rejected(self, cursor: Any, page: Page) -> None:
        # Read again from 0, pages may be cut differently; what is rejected again must not stand there twice.
        self.warehouse.run(
            cursor,
            "DELETE FROM {rejected_lines} WHERE [feed] = ? AND [cursor_from] >= ? AND [cursor_from] < ?",
            (self.feed, page.cursor, page.next_cursor),
        )

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
