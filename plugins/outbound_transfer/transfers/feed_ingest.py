"""Loading of the event feed, page by page, without Airflow: reading, sleeping and reporting are passed in."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from outbound_transfer.client.errors import CallError
from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.errors import CursorMoved, first_line
from outbound_transfer.traces import trace
from outbound_transfer.transfers.progress import IngestProgress, excess_of, positions_in
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from outbound_transfer.client.events import Page
    from outbound_transfer.store.destination import EventDestination

log = logging.getLogger(__name__)

#: Seconds from one successful response of the feed to the next call (service-api.md, R58).
FEED_INTERVAL: Final = 60.0


class FeedIngest:
    """Loads pages of the event feed into a destination, until the feed is drained or a limit is reached.

    A page is loaded whole or not at all, so the ingest may stop at any point and start again from the stored cursor.

    :param read_page: reads the page that follows a cursor.
    :param destination: where events and the cursor are stored.
    :param progress: counts of the pages that were loaded before a deferral.
    :param address: the site address of the feed's account.
    :param max_pages: number of pages to load at most, those of ``progress`` included; None for no limit.
    :param max_rejected: number of unreadable lines that a page may have; None for no limit.
    :param sleep: waits for a number of seconds; it may raise in order to wait elsewhere.
    :param on_page: called with each page that was loaded, and the number of its events that are new.
    :param clock: monotonic seconds.
    :ivar progress: counts of the pages that were loaded so far.
    :ivar cursor: the stored cursor.
    """

    def __init__(
        self,
        read_page: Callable[[int], Page],
        destination: EventDestination,
        progress: IngestProgress,
        *,
        address: str,
        max_pages: int | None,
        max_rejected: int | None,
        sleep: Callable[[float], None],
        on_page: Callable[[Page, int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_page, self._destination, self.progress = read_page, destination, progress
        self._address = address
        self._max_pages, self._max_rejected = max_pages, max_rejected
        self._sleep, self._on_page, self._clock = sleep, on_page, clock
        self.cursor = 0

    def run(self) -> IngestProgress:
        """Load pages until there are no more, or until another reader moves the cursor.

        :raises OtherAccount: the account's name in the destination stands for another account.
        :raises TooManyRejectedLines: a page has more unreadable lines than allowed.
        :raises CallError: the feed cannot be read.
        :raises WarehouseError: the page cannot be loaded.
        """
        try:
            self._load_pages()
        except CursorMoved as moved:
            self.log_poll(200, f"not loaded: {moved}")
            log.warning("%s: another reader loaded the page, or the cursor was set. Stopping; no event is lost", moved)
        return self.progress

    def _load_pages(self) -> None:
        self.cursor = self._destination.get_or_create_cursor()
        self._destination.bind_account(self._address)
        while True:
            with trace("page", account=self.account, cursor=self.cursor) as span:
                page = self._read()
                responded_at = self._clock()
                span.set_attribute("outbound_transfer.events", len(page.events))
                is_accepted = self._accepts_cursor(page)
                if is_accepted:
                    self._load(page)
            if is_accepted and self.progress.is_done(self._max_pages):
                return
            self._wait(FEED_INTERVAL - (self._clock() - responded_at), is_accepted=is_accepted)

    def _read(self) -> Page:
        try:
            return self._read_page(self.cursor)
        except CallError as error:
            self.log_poll(getattr(error, "status", None), str(error))
            raise

    def _accepts_cursor(self, page: Page) -> bool:
        """Return whether the page's ``X-Next-Cursor`` is plausible; if not, remember it as a claim.

        Events between a page's last line and ``X-Next-Cursor`` are never read, so a wrong cursor would skip them. A
        cursor that is further beyond the lines than others that were accepted here is accepted if an earlier response
        claimed at least half of the distance; half, because a feed grows between two responses.
        """
        usual = self.progress.excess if page.events and not positions_in(page) else 0
        distance, excess = page.next_cursor - page.cursor, excess_of(page)
        if excess <= usual or distance <= 2 * self.progress.claimed:
            return True
        self.progress = replace(self.progress, claimed=max(distance, self.progress.claimed))
        lines = len(page.events) + len(page.rejected)
        self.log_poll(200, f"X-Next-Cursor {page.next_cursor} is {excess} beyond what {lines} lines account for")
        return False

    def _load(self, page: Page) -> None:
        try:
            page, new_events = self._destination.load_page(page, self._max_rejected)
        except CursorMoved:
            raise
        except Exception as error:
            self.log_poll(200, f"not loaded: {type(error).__name__}: {first_line(error)}")
            raise
        log.info(
            "Loaded %s (%d new) and %s; cursor %d to %d, %s",
            pluralize(len(page.events), "event"),
            new_events,
            pluralize(len(page.rejected), "rejected line"),
            page.cursor,
            page.next_cursor,
            "more to come" if page.has_more else "caught up",
        )
        self.cursor, self.progress = page.next_cursor, self.progress.after(page, new_events)
        if self._on_page:
            self._on_page(page, new_events)

    def _wait(self, seconds: float, *, is_accepted: bool) -> None:
        reason = "There is more" if is_accepted else "The response's cursor is far beyond its lines and is confirmed"
        log.info("%s; the feed allows one call a minute: next call in %.0f s", reason, max(seconds, 0.0))
        self._sleep(max(seconds, 0.0))

    @property
    def account(self) -> str:
        """The account whose feed is loaded."""
        return self._destination.account

    def log_poll(self, status: int | None, note: str) -> None:
        """Record a poll that loaded nothing. Never raises: the error that led here matters more.

        :param status: HTTP status; None if there was no response.
        """
        try:
            self._destination.log_poll(PollRecord(cursor_from=self.cursor, status=status, note=note))
        except Exception as error:
            log.warning("Could not record this poll: %s", error)
