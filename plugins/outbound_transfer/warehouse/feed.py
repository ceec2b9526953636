"""Landing the event feed: rows, rejected lines and the cursor in one transaction (design: promise 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from outbound_transfer.protocol.feed import MAX_CURSOR, Page
from outbound_transfer.warehouse.database import Warehouse, value
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor
from outbound_transfer.warehouse.rows import event_rows, instant, rejected_rows
from outbound_transfer.warehouse.tables import EVENTS, FEED_CURSOR, REJECTED_LINES

_TABLES: Final = (EVENTS, FEED_CURSOR, REJECTED_LINES)


def _now() -> datetime:
    return datetime.now(timezone.utc)


class FeedTables:
    """The tables of one feed.

    :param feed: whose feed it is; rows of several feeds share the tables.
    :param clock: the time, for ``landed_at`` and ``updated_at``.
    """

    def __init__(self, warehouse: Warehouse, feed: str, *, clock: Callable[[], datetime] = _now) -> None:
        self._warehouse, self._feed, self._clock = warehouse, feed, clock

    def cursor(self) -> int:
        """Where the feed is read on from; 0 at first, when the tables are created too.

        :raises InvalidCursor: the row was changed to what is no cursor.
        """
        position = self._read()
        if position is None:
            self._begin()
            position = self._read()
        if not isinstance(position, int) or not 0 <= position <= MAX_CURSOR:
            raise InvalidCursor(f"the cursor of the feed {self._feed} is {position!r}: set it to 0, or to where it was")
        return position

    def _read(self) -> Any:
        with self._warehouse.reading() as cursor:
            if not self._warehouse.has(cursor, _TABLES):
                return None
            table, mark = self._warehouse.name(FEED_CURSOR), self._warehouse.dialect.mark
            return value(cursor, f"SELECT cursor FROM {table} WHERE feed = {mark}", (self._feed,))  # noqa: S608

    def _begin(self) -> None:
        with self._warehouse.writing() as cursor:
            self._warehouse.create(cursor, _TABLES)
            # The row is there before the first page, so that moving the cursor is one and the same statement always.
            self._warehouse.insert(cursor, FEED_CURSOR, [(self._feed, 0, instant(self._clock()))])

    def land(self, page: Page) -> int:
        """Commit a page: all of it and the cursor, or nothing.

        :return: how many of its events were not there before.
        :raises CursorMoved: the cursor is not the one that the page was asked with.
        """
        now = self._clock()
        with self._warehouse.writing() as cursor:
            # First, because it locks the row: readers that race for one page queue here, not in the middle of it.
            self._move(cursor, page, now)
            self._forget_rejected(cursor, page)
            self._warehouse.insert(cursor, REJECTED_LINES, rejected_rows(self._feed, page, now))
            return self._warehouse.insert(cursor, EVENTS, event_rows(self._feed, page, now))

    def _move(self, cursor: Any, page: Page, now: datetime) -> None:
        table, mark = self._warehouse.name(FEED_CURSOR), self._warehouse.dialect.mark
        cursor.execute(
            f"UPDATE {table} SET cursor = {mark}, updated_at = {mark} WHERE feed = {mark} AND cursor = {mark}",  # noqa: S608
            (page.next_cursor, instant(now), self._feed, page.cursor),
        )
        if cursor.rowcount != 1:
            raise CursorMoved(f"the cursor of the feed {self._feed} is not {page.cursor} any more")

    def _forget_rejected(self, cursor: Any, page: Page) -> None:
        # Read again from 0, pages may be cut differently; what is rejected again must not stand there twice.
        table, mark = self._warehouse.name(REJECTED_LINES), self._warehouse.dialect.mark
        cursor.execute(
            f"DELETE FROM {table} WHERE feed = {mark} AND cursor_from >= {mark} AND cursor_from < {mark}",  # noqa: S608
            (self._feed, page.cursor, page.next_cursor),
        )
