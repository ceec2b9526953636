"""Loading of the event feed, page by page: reading and sleeping are passed in."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from outbound_transfer.client.errors import CallError
from outbound_transfer.client.events import Page, parse_position
from outbound_transfer.observability import metrics
from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.errors import CursorMoved, first_line
from outbound_transfer.store.rows import read_event_time
from outbound_transfer.traces import trace
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from outbound_transfer.store.destination import EventDestination

log = logging.getLogger(__name__)

#: Seconds from one successful response of the feed to the next call (service-api.md, R58).
FEED_INTERVAL: Final = 60.0

#: Limits for event types, whose names the service chooses: they are stored in the deferred task and the XCom.
MAX_TYPES: Final = 50
MAX_TYPE_LENGTH: Final = 100
OTHER_TYPES: Final = "(other types)"

Count = Annotated[int, msgspec.Meta(ge=0)]


class IngestProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of the pages that a task has loaded; they survive deferrals.

    :ivar new_events: number of ``events`` that were not in the warehouse before.
    :ivar cursor_from: cursor before the first page, as ``cursor_to`` is after the last one. None before the first page.
    :ivar types: number of events by type.
    :ivar excess: the most that the next cursor of a loaded page was beyond its lines.
    :ivar claimed: the farthest that a response that was not accepted would have advanced the cursor.
    """

    pages: Count = 0
    events: Count = 0
    new_events: Count = 0
    rejected: Count = 0
    cursor_from: Count | None = None
    cursor_to: Count | None = None
    has_more: bool = True
    types: dict[str, Count] = {}
    excess: Count = 0
    claimed: Count = 0

    def after(self, page: Page, new_events: int) -> IngestProgress:
        """Return the counts including a loaded page."""
        return IngestProgress(
            pages=self.pages + 1,
            events=self.events + len(page.events),
            new_events=self.new_events + new_events,
            rejected=self.rejected + len(page.rejected),
            cursor_from=page.cursor if self.cursor_from is None else self.cursor_from,
            cursor_to=page.next_cursor,
            has_more=page.has_more,
            types=_count_types(self.types, page),
            excess=max(self.excess, excess_of(page)),
        )

    def summary(self) -> dict[str, Any]:
        """Return the counts as the operator returns them."""
        counts: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in counts.items() if name not in ("excess", "claimed")}


def _count_types(types: dict[str, int], page: Page) -> dict[str, int]:
    counted = Counter(types)
    for kind, count in Counter(event.type[:MAX_TYPE_LENGTH] for event in page.events).items():
        counted[kind if kind in counted or len(counted) < MAX_TYPES else OTHER_TYPES] += count
    return dict(counted)


def _positions_in(page: Page) -> list[int]:
    """Return the event ids that are positions: whole numbers up to the next cursor (service-api.md, R44)."""
    numbers = (parse_position(event.event_id) for event in page.events)
    return [number for number in numbers if number is not None and page.cursor < number <= page.next_cursor]


def excess_of(page: Page) -> int:
    """Return by how much ``next_cursor`` exceeds what the lines of the page explain; 0 or less if it does not.

    The lines explain a cursor up to the greatest id that is a position, plus one for each other line. Events within
    the excess would never be requested.
    """
    if page.events and page.events[-1].event_id == str(page.next_cursor):
        return 0
    positions = _positions_in(page)
    others = len(page.events) - len(positions) + len(page.rejected)
    return page.next_cursor - max(positions, default=page.cursor) - others


@dataclass
class FeedIngest:
    """Loads pages of the event feed into a destination, until the feed is drained or a limit is reached.

    A page is loaded whole or not at all, so the ingest may stop at any point and start again from the stored cursor.

    :ivar read_page: reads the page that follows a cursor.
    :ivar progress: counts of the loaded pages, including those before a deferral.
    :ivar address: the site address of the feed's account.
    :ivar max_pages: maximum number of pages to load, including those in ``progress``; None for no limit.
    :ivar max_rejected: number of unreadable lines that a page may have; None for no limit.
    :ivar sleep: waits for a number of seconds; it may raise in order to wait elsewhere.
    :ivar cursor: the stored cursor.
    """

    read_page: Callable[[int], Page]
    destination: EventDestination
    progress: IngestProgress
    address: str
    max_pages: int | None
    max_rejected: int | None
    sleep: Callable[[float], None]
    cursor: int = 0

    def run(self) -> IngestProgress:
        """Load pages until there are no more, or until another reader moves the cursor.

        :raises CallError: the feed cannot be read.
        :raises WarehouseError: the account's name belongs to another account, or the page cannot be loaded.
        """
        self.cursor = self.destination.get_or_create_cursor()
        self.destination.bind_account(self.address)
        while True:
            try:
                is_loaded, responded_at = self._load_next()
            except CursorMoved as moved:
                log.warning(
                    "%s: another reader loaded the page, or a command set it. Stopping; no event is lost", moved
                )
                return self.progress
            is_limit_reached = self.max_pages is not None and self.progress.pages >= self.max_pages
            if is_loaded and (is_limit_reached or not self.progress.has_more):
                return self.progress
            seconds = max(responded_at + FEED_INTERVAL - time.monotonic(), 0.0)
            log.info("The feed allows one call a minute: next call in %.0f s", seconds)
            self.sleep(seconds)

    def _load_next(self) -> tuple[bool, float]:
        """Load the next page if its cursor is plausible; return whether, and when it was received."""
        with trace("page", account=self.destination.account, cursor=self.cursor) as span:
            try:
                page, responded_at = self.read_page(self.cursor), time.monotonic()
                span.set_attribute("outbound_transfer.events", len(page.events))
                if is_accepted := self._accepts_cursor(page):
                    self._load(page)
            except CallError as error:
                self.log_poll(getattr(error, "status", None), str(error))
                raise
            except Exception as error:
                self.log_poll(200, f"not loaded: {type(error).__name__}: {first_line(error)}")
                raise
        return is_accepted, responded_at

    def _accepts_cursor(self, page: Page) -> bool:
        """Return whether the page's ``X-Next-Cursor`` is plausible; if not, remember it as a claim.

        Events between a page's last line and ``X-Next-Cursor`` are never read, so a wrong cursor would skip them. A
        cursor that is further beyond the lines than others that were accepted here is accepted if an earlier response
        claimed at least half of the distance; half, because a feed grows between two responses.
        """
        distance, excess = page.next_cursor - page.cursor, excess_of(page)
        if excess <= 0 or distance <= 2 * self.progress.claimed:
            return True
        if excess <= self.progress.excess and page.events and not _positions_in(page):
            return True
        self.progress = replace(self.progress, claimed=max(distance, self.progress.claimed))
        lines = len(page.events) + len(page.rejected)
        note = f"X-Next-Cursor {page.next_cursor} is {excess} beyond what {lines} lines account for"
        log.warning("%s: not loaded unless another response confirms it", note)
        self.log_poll(200, note)
        return False

    def _load(self, page: Page) -> None:
        page, new_events = self.destination.load_page(page, self.max_rejected)
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
        account, now = self.destination.account, time.time()
        metrics.ROWS_LOADED.emit(new_events, table="events")
        metrics.REJECTED_LINES.emit(len(page.rejected), account=account)
        is_behind = page.events and page.has_more
        newest = read_event_time(page.events[-1].timestamp) if is_behind else datetime.fromtimestamp(now, UTC)
        if newest:
            metrics.FEED_LAG.emit(max(now - newest.timestamp(), 0.0), account=account)

    def log_poll(self, status: int | None, note: str) -> None:
        """Record a poll that loaded nothing. Never raises: the error that led here matters more.

        :param status: HTTP status; None if there was no response.
        """
        try:
            self.destination.log_poll(PollRecord(cursor_from=self.cursor, status=status, note=note))
        except Exception as error:
            log.warning("Could not record this poll: %s", error)
