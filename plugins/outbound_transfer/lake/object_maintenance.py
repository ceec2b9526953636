"""Inspection and repair of a feed's objects, for the command line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

import pyarrow.parquet as pq

from outbound_transfer.lake.object_errors import InvalidObject
from outbound_transfer.lake.object_folder import Listing, PageName, list_accounts
from outbound_transfer.lake.objects import ObjectEventDestination
from outbound_transfer.lake.rows import CONTENT_COLUMNS, row_digest
from outbound_transfer.warehouse.destination import FeedMaintenance, FeedStatus, check_cursor, check_expected
from outbound_transfer.warehouse.errors import InvalidCursor, UnknownFeed

#: Number of objects that a problem names.
_NAMED: Final = 3


class ObjectFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the objects of an :class:`.ObjectEventDestination`. No command is recorded."""

    def __init__(self, destination: ObjectEventDestination) -> None:
        self._destination, self._folder, self.account = destination, destination.folder, destination.account

    def read_address(self) -> str | None:
        return self._folder.read_address()

    def read_cursor(self) -> int:
        self._require_known()
        return self._folder.read_position().cursor

    def _require_known(self) -> None:
        known = list_accounts(self._folder.store)
        if self.account not in known:
            hint = f"there is: {', '.join(known)}" if known else "no feed has been read here yet"
            raise UnknownFeed(f"the path has no feed {self.account}; {hint}")

    def status(self) -> FeedStatus:
        self._require_known()
        position = self._folder.read_position()
        last = position.last
        return FeedStatus(
            account=self.account,
            address=self.read_address(),
            cursor=position.cursor,
            updated_at=last.polled_at if last else None,
            caught_up=not last.has_more if last else None,
            events=last.events if last else 0,
            rejected=last.rejected if last else 0,
            loaded_at=last.loaded_at if last else None,
            occurred_at=last.occurred_at if last else None,
            polled_at=last.polled_at if last else None,
            status=200 if last else None,
            note=None,
        )

    def find_problems(self) -> Iterator[str]:
        self._require_known()
        listing = self._folder.list_objects()
        if listing.foreign:
            yield f"objects that are not pages are beside the pages: {', '.join(listing.foreign[:_NAMED])}"
        if listing.void:
            paths = [self._folder.page_path(page) for page in listing.void[:_NAMED]]
            yield f"{', '.join(paths)}: a reset made these pages void; the next run deletes them"
        yield from self._find_bad_pages(listing)

    def _find_bad_pages(self, listing: Listing) -> Iterator[str]:
        digests: dict[str, str] = {}
        finish: int | None = 0
        doubled = conflicts = 0
        for page in listing.pages:
            if finish not in (None, page.cursor) and self._is_still_missing(finish, page):
                yield (
                    f"the pages from the cursor {finish} to {page.cursor} are gone. `feed reset --to {finish}` deletes "
                    "those after them, and the feed is read again from there"
                )
            try:
                found = self._folder.read_page(page)
                rows = pq.read_table(io.BytesIO(found[1]), columns=list(CONTENT_COLUMNS)).to_pylist() if found else []
            except Exception as error:  # of whatever library reads it
                yield f"{self._folder.page_path(page)} cannot be read: {type(error).__name__}: {error}"
                finish = None
                continue
            finish = found[0].cursor_to if found else None
            events = [(row["event_id"], row_digest(row)) for row in rows if row["event_id"] is not None]
            doubled += sum(event_id in digests for event_id, _ in events)
            conflicts += sum(digests.setdefault(event_id, digest) != digest for event_id, digest in events)
        if doubled:
            yield f"{doubled} events have an id that an earlier page has: the feed sent them twice"
        if conflicts:
            yield (
                f"{conflicts} events have the id of another event and other content: the feed has changed these "
                "events, or they were those of another account"
            )

    def _is_still_missing(self, cursor: int | None, following: PageName) -> bool:
        """Return whether no page starts at a cursor, and the one that follows is there: others may go on meanwhile."""
        pages = self._folder.list_objects().pages
        return following in pages and all(page.cursor != cursor for page in pages)

    # -- repair

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        """Set the cursor; return the cursor before (None if it is not known) and after.

        Backward, the pages from the one with ``to`` on are deleted, so the cursor becomes its start. Forward, a page
        without rows is put.
        """
        check_cursor(to)
        self._require_known()
        try:
            listing, _, before = self._folder.read_position()
        except InvalidCursor:
            listing, before = self._folder.list_objects(), None
        check_expected(self.account, before, expected)
        if before is not None and to > before:
            self._skip(before, to)
            return before, to
        start, after = self._find_start(listing, to)
        self._folder.create_reset(listing, start)
        if start < after:
            self._skip(start, after)
        return before, after

    def _find_start(self, listing: Listing, to: int) -> tuple[int, int]:
        """Return from where on pages are void, and where the feed goes on then: further on if pages are missing."""
        page = max((page for page in listing.pages if page.cursor <= to), default=None)
        if page is None:
            return 0, to
        try:
            found = self._folder.read_page(page)
        except InvalidObject:
            found = None
        if found is None or found[0].cursor_to > to:
            return page.cursor, page.cursor
        return found[0].cursor_to, to

    def _skip(self, position: int, to: int) -> None:
        if self._destination.get_or_create_cursor() != position:
            raise self._folder.moved()
        self._destination.skip_to(to)

    def rebuild_cursor(self) -> tuple[int | None, int]:
        """Return the cursor twice: it is always that of the pages."""
        cursor = self.read_cursor()
        return cursor, cursor

    def replay_rejected_lines(self) -> tuple[int, int]:
        """Return that all are left: loaders do not read a page twice, so that it is never rewritten."""
        return 0, self.status().rejected
