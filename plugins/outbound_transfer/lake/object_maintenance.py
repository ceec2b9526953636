"""Inspection and repair of a feed's objects, for the command line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

import pyarrow.parquet as pq

from outbound_transfer.lake.objects import ObjectEventDestination, list_accounts
from outbound_transfer.warehouse.destination import (
    FeedMaintenance,
    FeedStatus,
    check_cursor,
    check_expected,
)
from outbound_transfer.warehouse.errors import InvalidCursor

#: Number of objects that a problem names.
_NAMED: Final = 3


class ObjectFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the objects of an :class:`.ObjectEventDestination`. No command is recorded."""

    def __init__(self, feed: ObjectEventDestination) -> None:
        self._feed, self.account = feed, feed.account

    def read_address(self) -> str | None:
        return self._feed.read_address()

    def read_cursor(self) -> int:
        return self.status().cursor

    def _require_known(self) -> None:
        known = list_accounts(self._feed.store)
        if self.account not in known:
            raise self._unknown_feed("path", known)

    def status(self) -> FeedStatus:
        self._require_known()
        newest = self._feed.read_newest()  # a page without lines is not put, so its time is that of the last lines
        return FeedStatus(
            account=self.account,
            address=self.read_address(),
            cursor=newest.cursor_to,
            updated_at=newest.polled_at,
            page_at=newest.polled_at,
            caught_up=None if newest.has_more is None else not newest.has_more,
            events=newest.events,
            rejected=newest.rejected,
            loaded_at=newest.loaded_at,
            occurred_at=newest.occurred_at,
        )

    def find_problems(self) -> Iterator[str]:
        self._require_known()
        pages, foreign = self._feed.list_pages()
        if foreign:
            yield f"objects that are not pages are beside the pages: {', '.join(foreign[:_NAMED])}"
        finish: int | None = 0
        for cursor in pages:
            if finish not in (None, cursor):
                yield (
                    f"the pages from the cursor {finish} to {cursor} are gone, or are there twice. `feed reset --to "
                    f"{cursor}` deletes those after them, and the feed is read again from {finish}"
                )
            try:
                finish = self._read_whole(cursor)
            except Exception as error:  # of whatever library reads it
                yield f"{self._feed.page_name(cursor)} cannot be read: {type(error).__name__}: {error}"
                finish = None

    def _read_whole(self, cursor: int) -> int | None:
        """Read a page with all its rows; return the cursor after it, None if it is gone."""
        content = self._feed.store.read(self._feed.page_name(cursor))
        if content is None:
            return None
        pq.read_table(io.BytesIO(content))
        return self._feed.decode_page(cursor, content).cursor_to

    # -- repair

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        """Set the cursor; return the cursor before (None if it is not known) and after.

        Backward, the pages from the one with ``to`` on are deleted, so the cursor becomes its start. Forward, or if no
        page is left, a page without rows is put.
        """
        check_cursor(to)
        self._require_known()
        self._feed.check_erasure()
        try:
            before: int | None = self.read_cursor()
        except InvalidCursor:
            before = None
        check_expected(self.account, before, expected)
        if before is not None and to >= before:
            start, after = before, to
        else:
            pages, _ = self._feed.list_pages()
            start, after = 0, max((cursor for cursor in pages if cursor <= to), default=to)
            if pages[1:2] == [after] and pages[0] > 0:  # a page alone is followed only if the feed begins with it
                after = pages[0]
            self._feed.delete_pages(after)
            if any(cursor < after for cursor in pages):
                return before, self.read_cursor()
        if start < after:
            self._feed.skip(start, after)
        return before, after
