"""Inspection and repair of a feed's objects, for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from outbound_transfer.lake.object_chain import Headers, detect_format, list_accounts, walk_headers
from outbound_transfer.lake.object_errors import InvalidObject, MissingPages, PagesNotRewritten, StrayObjects
from outbound_transfer.lake.object_format import PageHeader, StoredRow, Totals
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.objects import ObjectEventDestination
from outbound_transfer.lake.rows import SCHEMA, row_digest
from outbound_transfer.protocol.events import Event, read_line
from outbound_transfer.warehouse.destination import (
    CLAIM,
    FeedMaintenance,
    FeedStatus,
    PollRecord,
    check_cursor,
    check_expected,
)
from outbound_transfer.warehouse.errors import CursorMoved, SchemaTooNew, UnknownFeed

#: Number of times that a reset deletes pages which are there again, or still.
_MAX_DELETIONS: Final = 20


def open_maintenance(store: ObjectStore, account: str) -> ObjectFeedMaintenance:
    """Return the maintenance of a feed's objects, in the format that they have."""
    return ObjectFeedMaintenance(ObjectEventDestination(store, account, detect_format(store, account)))


class ObjectFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the objects of an :class:`.ObjectEventDestination`."""

    def __init__(self, destination: ObjectEventDestination) -> None:
        self._destination, self.account = destination, destination.account
        self._chain, self._polls = destination.chain, destination.polls

    def read_address(self) -> str | None:
        return self._chain.read_address()

    def read_cursor(self) -> int:
        return _finish(self._find_last())

    def _find_last(self) -> PageHeader | None:
        """Return the last page; None if the feed has been read, and no page was loaded.

        :raises UnknownFeed: the feed has never been read.
        :raises MissingPages: pages were loaded and are gone.
        """
        last = self._destination.find_last()
        if last is None:
            self._require_known()
        return last

    def _require_known(self) -> None:
        known = list_accounts(self._chain.store)
        if self.account not in known:
            hint = f"there is: {', '.join(known)}" if known else "no feed has been read here yet"
            raise UnknownFeed(f"the path has no feed {self.account}; {hint}")

    def status(self) -> FeedStatus:
        last = self._find_last()
        poll, totals = self._polls.newest("poll", CLAIM), last.totals if last else Totals()
        idle = poll if poll and poll.cursor_to == poll.cursor_from == _finish(last) else None
        loaded_at = last.polled_at if last else None
        is_newer = bool(poll and poll.polled_at >= (loaded_at or ""))
        has_more = idle.has_more if idle else last.has_more if last else None
        return FeedStatus(
            account=self.account,
            address=self.read_address(),
            cursor=_finish(last),
            updated_at=loaded_at,
            caught_up=None if has_more is None else not has_more,
            events=totals.events,
            rejected=totals.rejected,
            loaded_at=totals.loaded_at,
            occurred_at=totals.occurred_at,
            polled_at=poll.polled_at if poll and is_newer else loaded_at,
            status=poll.status if poll and is_newer else 200 if last else None,
            note=poll.note if poll and is_newer else None,
        )

    # -- problems

    def find_problems(self) -> Iterator[str]:
        self._require_known()
        cursors, foreign = self._chain.list_cursors()
        headers = self._chain.read_many(cursors)
        if foreign:
            yield f"{self._chain.folder} has objects that are not pages of this feed: {', '.join(foreign[:3])}"
        yield from (str(each) for each in headers.values() if isinstance(each, Exception))
        if is_headless := self._is_headless(cursors):
            yield f"{self._chain.folder} has no page before the one with the cursor {cursors[0]}: they are gone"
        try:
            reached, last = walk_headers(headers, cursors[0] if is_headless else 0)
        except (InvalidObject, SchemaTooNew):  # it was named above, and what is in the chain after it is not known
            pages = (cursor for cursor, header in headers.items() if isinstance(header, PageHeader))
            yield from self._find_bad_rows(sorted(pages), None)
            return
        strays = [cursor for cursor in cursors if cursor not in reached]
        if strays:
            yield (
                f"{self._chain.describe(strays)} `feed rebuild-cursor` deletes what is not in the chain, and the feed "
                f"is read again from {_finish(last)}"
            )
        yield from self._find_bad_rows(sorted(reached), last)

    def _is_headless(self, cursors: Sequence[int]) -> bool:
        """Return whether the chain's beginning is gone, and no reset has deleted it."""
        return bool(cursors) and cursors[0] > 0 and not self._chain.is_reset_to_start()

    def _find_bad_rows(self, cursors: Sequence[int], last: PageHeader | None) -> Iterator[str]:
        digests: dict[str, str] = {}
        events, rejected = self._count_before(cursors)
        doubled = conflicts = 0
        for cursor in cursors:
            path, header = self._chain.store.path(self._chain.name(cursor)), self._chain.read(cursor)
            try:
                rows = self._read_rows(cursor)
                found = [
                    (row.event_id, row_digest(msgspec.structs.asdict(row))) for row in rows if row.event_id is not None
                ]
            except Exception as error:  # of whatever library reads it
                yield f"{path} cannot be read: {type(error).__name__}: {error}"
                continue
            if header and (len(found), len(rows) - len(found)) != (header.events, header.rejected):
                yield f"{path} has {len(rows)} rows, and its header says {header.events} and {header.rejected}"
            if any(row.cursor_from != cursor for row in rows):
                yield f"{path} has rows of another page"
            doubled += sum(event_id in digests for event_id, _ in found)
            conflicts += sum(digests.setdefault(event_id, digest) != digest for event_id, digest in found)
            events, rejected = events + len(found), rejected + len(rows) - len(found)
        if doubled:
            yield f"{doubled} events have an id that an earlier page has: the feed sent them twice"
        if conflicts:
            yield (
                f"{conflicts} events have the id of another event and other content: the feed has changed these "
                "events, or they were those of another account"
            )
        if last and (events, rejected) != (last.totals.events, last.totals.rejected):
            yield f"with the last page, there are {events} events and {rejected} rejected lines; it counts otherwise"

    def _count_before(self, cursors: Sequence[int]) -> tuple[int, int]:
        """Return the events and rejected lines of the pages before the first, which may have expired."""
        first = self._chain.read(cursors[0]) if cursors else None
        return (first.totals.events - first.events, first.totals.rejected - first.rejected) if first else (0, 0)

    def _read_rows(self, cursor: int) -> list[StoredRow]:
        content = self._chain.store.read(self._chain.name(cursor))
        return [] if content is None else self._chain.format.read_rows(content)

    # -- repair

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        """Set the cursor; return the cursor before (None if pages are gone, so that it is not known) and after.

        Backward, pages are deleted, so the cursor becomes the start of the page with ``to``. Forward, a page without
        rows is put.

        :param expected: the cursor that the decision was made at; None if it does not matter.
        :raises CursorMoved: the cursor is another one.
        :raises StrayObjects: pages are in the way, or cannot be deleted.
        """
        check_cursor(to)
        try:
            last = self._find_last()
        except MissingPages:
            check_expected(self.account, None, expected)
            self._polls.forget_claims()
            return None, self._bridge(to)
        position = _finish(last)
        check_expected(self.account, position, expected)
        self._polls.forget_claims()  # before the deletion, which may be killed
        if to < position and self._is_headless(self._chain.list_cursors()[0]):
            return position, self._bridge(to, position)
        if to < position:
            return position, self._shorten(to, position)
        if to > position:
            self._skip_to(to, position)
        self._record("reset", position, to, "set by command")
        return position, to

    def _moved(self, position: int) -> CursorMoved:
        return CursorMoved(f"the cursor of the feed {self.account} is no longer {position}")

    def _skip_to(self, to: int, position: int) -> None:
        if self._destination.get_or_create_cursor() != position:
            raise self._moved(position)
        strays = self._chain.find_strays(position)
        if strays:
            raise StrayObjects(f"{self._chain.describe(strays)} run `feed rebuild-cursor` first")
        header = self._destination.next_header(cursor_to=to, has_more=True, action="reset")
        self._destination.append(header, SCHEMA.empty_table())
        self._chain.write_hint(header)

    def _shorten(self, to: int, position: int) -> int:
        """Delete the pages from the one with ``to`` on; return where the chain finishes then."""
        start = max((cursor for cursor in self._chain.list_cursors()[0] if cursor <= to), default=0)
        first = self._chain.read(start)
        before = None if first is None or first.previous is None else self._chain.read(first.previous)
        if first is None or first.cursor_to <= to or not self._chain.has_predecessor(first):
            raise StrayObjects(f"{self._chain.describe([start])} run `feed rebuild-cursor` first")
        self._delete_from(start, before)
        self._record("reset", position, start, "set by command")
        return start

    def _bridge(self, to: int, position: int = 0) -> int:
        """Delete the pages from the one with ``to`` on, and put pages without rows in place of those that are gone."""
        headers = self._pages_before(to)
        start = min([to, *(cursor for cursor, header in headers.items() if header.cursor_to > to)])
        kept = {cursor: header for cursor, header in headers.items() if cursor < start}
        self._delete_from(start, None)
        last: PageHeader | None = None
        for cursor in [*kept, start]:
            self._destination.go_on_from(last)
            if cursor > _finish(last):
                header = self._bridge_header(cursor, kept.get(cursor))
                self._destination.append(header, SCHEMA.empty_table())
                last = header
            last = kept.get(cursor, last)
        self._chain.write_hint(last)
        self._record("reset", position, start, "set by command; pages were gone")
        return start

    def _bridge_header(self, cursor_to: int, following: PageHeader | None) -> PageHeader:
        """Return the header of a page in place of some that are gone; its totals are those before ``following``."""
        header = self._destination.next_header(cursor_to=cursor_to, has_more=True, action="reset")
        if following is None:
            return header
        events, rejected = (following.totals.events - following.events, following.totals.rejected - following.rejected)
        totals = msgspec.structs.replace(following.totals, events=events, rejected=rejected)
        return msgspec.structs.replace(header, totals=totals)

    def _pages_before(self, to: int) -> dict[int, PageHeader]:
        """Return the pages that begin before ``to``.

        :raises InvalidObject: one is not a page of this feed.
        :raises StrayObjects: two of them overlap.
        """
        headers: dict[int, PageHeader] = {}
        finish = 0
        for cursor, header in self._chain.read_many(
            [each for each in self._chain.list_cursors()[0] if each < to]
        ).items():
            if isinstance(header, Exception):
                raise header
            if cursor < finish:
                raise StrayObjects(f"{self._chain.describe([cursor])} move it away first")
            headers[cursor], finish = header, header.cursor_to
        return headers

    def _delete_from(self, start: int, before: PageHeader | None) -> None:
        """Delete the pages from ``start`` on; the newest first, so that what is left is a chain if this is killed.

        :param before: the last page that stays.
        """
        self._chain.remember_reset(start)
        self._chain.write_hint(before)
        for _ in range(_MAX_DELETIONS):  # readers that do not know yet may put more meanwhile
            cursors = [cursor for cursor in self._chain.list_cursors()[0] if cursor >= start]
            if not cursors:
                return
            self._delete(cursors)
        raise StrayObjects(
            f"{self._chain.describe(cursors)} they are still there after they were deleted {_MAX_DELETIONS} times. "
            "Stop what puts them, or delete them with the storage's own tools, and repeat the command"
        )

    def _delete(self, cursors: Sequence[int]) -> None:
        for cursor in reversed(cursors):
            self._chain.store.delete(self._chain.name(cursor))

    def rebuild_cursor(self) -> tuple[int | None, int]:
        """Follow the chain from its first page; delete the pages that it does not lead to.

        :return: the cursor before (None if it is not known) and after.
        :raises MissingPages: the first page is gone, so that all would be deleted.
        """
        position = self._find_position()
        cursors = self._chain.list_cursors()[0]
        if self._is_headless(cursors):
            raise MissingPages(
                f"the pages before {self._chain.store.path(self._chain.name(cursors[0]))} are gone. Restore them; or "
                "leave them: `feed status` says where the feed goes on, or how to set it"
            )
        headers = self._chain.read_many(cursors)
        reached, last = walk_headers(headers)
        strays = [cursor for cursor in cursors if cursor not in reached]
        self._polls.forget_claims()
        if strays:
            start = max((cursor for cursor in reached if cursor <= strays[0]), default=0)
            self._chain.remember_reset(start)
            self._delete(strays)
        self._chain.forget_other_resets({*reached, _finish(last)})
        self._chain.write_hint(last)
        self._record("rebuild", position or 0, _finish(last), f"from the pages; {len(strays)} deleted")
        return position, _finish(last)

    def _find_position(self) -> int | None:
        """Return the cursor; None if pages in the middle are gone, which are read again after a rebuild."""
        try:
            return _finish(self._find_last())
        except MissingPages:
            if self._chain.list_cursors()[0]:
                return None
            raise

    def _record(self, action: str, position: int, to: int, note: str) -> None:
        self._polls.forget_claims()
        self._polls.append(PollRecord(action=action, cursor_from=position, cursor_to=to, note=note))

    def replay_rejected_lines(self) -> tuple[int, int]:
        """Return how many rejected lines there are, if none of them is valid by now.

        :raises PagesNotRewritten: some are valid; the error says how to load them.
        """
        self._find_last()
        cursors = self._chain.list_cursors()[0]
        headers = self._chain.read_many(cursors)
        pages = sorted(walk_headers(headers, cursors[0] if self._is_headless(cursors) else 0)[0])
        lines = [row for cursor in pages for row in self._rejected_rows(cursor, headers)]
        valid = [row for row in lines if isinstance(read_line(row.rejected_line or b"", row.line_number), Event)]
        if valid:
            raise PagesNotRewritten(
                f"{len(valid)} of {len(lines)} rejected lines are valid by now. Loaders do not read an object twice, "
                f"so pages are not rewritten: `feed reset --to {valid[0].cursor_from}` deletes the page of the first, "
                "and all after it, and the feed is read again from there; delete their rows where they were loaded to"
            )
        return 0, len(lines)

    def _rejected_rows(self, cursor: int, headers: Headers) -> list[StoredRow]:
        header = headers[cursor]
        if not isinstance(header, PageHeader) or not header.rejected:
            return []
        return [row for row in self._read_rows(cursor) if row.rejected_line is not None]


def _finish(last: PageHeader | None) -> int:
    return last.cursor_to if last else 0
