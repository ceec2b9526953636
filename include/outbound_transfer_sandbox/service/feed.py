"""The account event feed (service.md, GET /v1/events)."""

from __future__ import annotations

from msgspec import Struct

from outbound_transfer_sandbox import limits, unspecified
from outbound_transfer_sandbox.clock import SECOND
from outbound_transfer_sandbox.errors import rate_limited
from outbound_transfer_sandbox.models import Event, FeedCall

from .context import Context


class Page(Struct, frozen=True):
    """Events after the cursor, the cursor to go on with, and whether another page may be available."""

    events: list[Event]
    next_cursor: int
    has_more: bool


class Feed:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._journal = context.journal

    def read(self, cursor: int, limit: int) -> Page:
        """One page, oldest first. Raises 429 within the interval after a successful call (service.md, Limits)."""
        self._check_rate()
        events = self._journal.events_after(cursor, limit + 1)
        page = events[:limit]
        return Page(page, page[-1].event_id if page else cursor, len(events) > limit)

    def _check_rate(self) -> None:
        last, interval = self._journal.last_feed_success(), self._context.account.feed_interval_seconds
        if last is None:
            return
        wait = last + int(interval * SECOND) - self._context.clock.now()
        if wait > 0:
            raise rate_limited(limits.whole_seconds(wait))

    def usage(self, before: int) -> tuple[list[FeedCall], int | None]:
        """The feed usage log (service.md), newest first, `before` a row's pk; where to go on."""
        rows = self._journal.feed_calls_before(before, unspecified.PAGE_ROWS + 1)
        page = rows[: unspecified.PAGE_ROWS]
        return page, page[-1].pk if len(rows) > len(page) else None

    def log(self, status: int, events: int) -> None:
        """Adds to the feed usage log that the account settings page shows."""
        self._journal.add_feed_call(self._context.clock.now(), status, events)
