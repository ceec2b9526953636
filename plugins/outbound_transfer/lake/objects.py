"""Pages of the event feed as objects in a folder: a page is one object, which is put whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import pyarrow.compute as pc
from pyarrow import Table

from outbound_transfer.lake.object_chain import PageChain
from outbound_transfer.lake.object_errors import MissingPages, OtherFormat
from outbound_transfer.lake.object_format import ObjectFormat, PageHeader, Totals
from outbound_transfer.lake.object_polls import PollLog
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.rows import page_table
from outbound_transfer.protocol.events import Page
from outbound_transfer.warehouse.destination import EventDestination, PollRecord, poll_for
from outbound_transfer.warehouse.errors import CursorMoved
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

#: Number of pages after which a hint is written, beside the one when a run finishes.
HINT_INTERVAL: Final = 50


class ObjectEventDestination(EventDestination):
    """The objects of one feed; their chain is the cursor.

    :param account: name of the feed's account, whose folder has the pages.
    :param clock: the current time, for ``loaded_at`` and ``polled_at``.
    :raises InvalidName: the account's name is empty or too long.
    """

    def __init__(
        self, store: ObjectStore, account: str, page_format: ObjectFormat, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self.account, self.now = account, clock
        self.chain = PageChain(store, account, page_format, clock=clock)
        self.polls = PollLog(store, account, clock)
        self._last: PageHeader | None = None
        self._since_hint = 0

    @contextmanager
    def session(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._since_hint:
                self._write_hint()

    def get_or_create_cursor(self) -> int:
        self._last = self.find_last()
        if self._last is None:
            self.chain.write_hint(None)  # one of before a reset would say later that pages are gone
            self.chain.store.check_create()
        self.chain.check_after_resets(self._last)
        self.chain.store.clean_up()
        return self._cursor()

    def bind_account(self, address: str) -> None:
        self.chain.bind_account(address)

    def find_last(self) -> PageHeader | None:
        """Return the last page; None if no page was loaded, or a reset deleted all.

        :raises MissingPages: pages were loaded and are gone.
        :raises OtherFormat: the pages are in another format.
        """
        last = self.chain.find_last()
        if last is None:
            self.chain.check_other_formats()
            if not self.chain.is_reset_to_start() and (self.chain.has_hint() or self.polls.newest_cursor()):
                raise MissingPages(
                    f"{self.chain.store.path(self.chain.folder)} has no page, and what is recorded of the feed says "
                    "that pages were loaded. Restore the objects; or run `feed reset --to N`, N being where to go on"
                )
        return last

    def go_on_from(self, last: PageHeader | None) -> None:
        """Put the next page after this one."""
        self._last = last

    def _cursor(self) -> int:
        return self._last.cursor_to if self._last else 0

    def load_page(self, page: Page) -> int:
        if self._cursor() != page.cursor:
            self._last = self.find_last()
        else:
            self._last = self.chain.follow(self._last) if page.next_cursor == page.cursor else self._last
        if self._cursor() != page.cursor:
            raise self._moved(page.cursor)
        if page.next_cursor == page.cursor:  # no lines, and nothing that the next run would need
            self.log_poll(poll_for(page, 0))
            return 0
        table = page_table(self.account, page, self.now())
        self.append(self._header(page, table), table)
        return int(table.num_rows) - len(page.rejected)

    def append(self, header: PageHeader, table: Table) -> None:
        """Put the page after the last one.

        :raises CursorMoved: another reader has put the page, or a reset removed the page before it.
        """
        try:
            self.chain.create(header, table)
        except Exception as error:  # whatever it is, the object may be there
            found = self.chain.read(header.cursor_from)
            if found is None and not isinstance(error, FileExistsError):
                raise
            if found is None or found.token != header.token:  # a reset may have deleted it meanwhile
                raise self._moved(header.cursor_from) from error
        self._check_predecessor(header)
        self._last = header
        self._since_hint += 1
        if self._since_hint >= HINT_INTERVAL:
            self._write_hint()

    def _check_predecessor(self, header: PageHeader) -> None:
        """Take the page back if the chain does not lead to it any more.

        A reset deletes the newest page first, so a page whose predecessor is there is deleted by the reset itself.
        """
        try:
            if header.previous is None:
                self.chain.check_other_formats()
            if self.chain.has_predecessor(header) or self._is_reached(header.cursor_from):
                return
        except OtherFormat:
            self._take_back(header)
            raise
        self._take_back(header)
        raise self._moved(header.cursor_from)

    def _take_back(self, header: PageHeader) -> None:
        """Delete the page, unless a reset has deleted it and another reader has put the one that is there.

        It could still be replaced between the two calls. That does no harm within the minute that the feed has between
        two pages: the reader that puts the page after it finds, like this one, that its predecessor is gone.
        """
        found = self.chain.read(header.cursor_from)
        if found is not None and found.token == header.token:
            self.chain.store.delete(self.chain.name(header.cursor_from))

    def _is_reached(self, cursor: int) -> bool:
        """Return whether the chain has the page after ``cursor``: pages may be cut differently after a reset."""
        return cursor in self.chain.walk(self.chain.list_cursors()[0])[0]

    def _moved(self, cursor: int) -> CursorMoved:
        return CursorMoved(f"the cursor of the feed {self.account} is no longer {cursor}")

    def _header(self, page: Page, table: Table) -> PageHeader:
        rejected = len(page.rejected)
        return self.next_header(
            cursor_to=page.next_cursor,
            has_more=page.has_more,
            events=table.num_rows - rejected,
            rejected=rejected,
            excess=page.next_cursor - page.cursor - len(page.events) - rejected,
            occurred_at=pc.max(table["occurred_at"]).as_py(),
        )

    def next_header(
        self,
        *,
        cursor_to: int,
        has_more: bool,
        action: str = "poll",
        events: int = 0,
        rejected: int = 0,
        excess: int = 0,
        occurred_at: datetime | None = None,
    ) -> PageHeader:
        """Return the header of the page after the last one."""
        now, before = format_timestamp(self.now()), self._last.totals if self._last else Totals()
        occurred = [before.occurred_at, format_timestamp(occurred_at) if occurred_at else None]
        totals = Totals(
            events=before.events + events,
            rejected=before.rejected + rejected,
            greatest_excess=max(before.greatest_excess, excess),
            loaded_at=now if events else before.loaded_at,
            occurred_at=max(filter(None, occurred), default=None),
        )
        return PageHeader(
            account=self.account,
            cursor_from=self._cursor(),
            cursor_to=cursor_to,
            previous=self._last.cursor_from if self._last else None,
            has_more=has_more,
            action=action,
            events=events,
            rejected=rejected,
            excess=excess,
            polled_at=now,
            token=uuid.uuid4().hex,
            totals=totals,
        )

    def _write_hint(self) -> None:
        self.chain.write_hint(self._last)
        self._since_hint = 0

    def log_poll(self, poll: PollRecord) -> None:
        self.polls.append(poll)

    def greatest_excess(self) -> int:
        # From the last page and not from the hint: a number that anyone may write would let a wrong cursor pass.
        return self._last.totals.greatest_excess if self._last else 0

    def greatest_claim(self, position: int) -> int:
        return self.polls.greatest_claim(position)
