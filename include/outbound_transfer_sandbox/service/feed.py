"""The account's event feed (service-api.md, R40 to R49)."""

from __future__ import annotations

from msgspec import Struct

from outbound_transfer_sandbox.domain import defaults, rate_limit
from outbound_transfer_sandbox.domain.clock import SECOND
from outbound_transfer_sandbox.domain.errors import rate_limited
from outbound_transfer_sandbox.domain.models import Event, FeedCall

from .context import Context


class FeedPage(Struct, frozen=True):
    """Events after a cursor, the next cursor, and whether another page may be available."""

    events: list[Event]
    next_cursor: int
    has_more: bool


class FeedService:
    """Reads the feed within its rate, and writes its usage log."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._activity = context.activity

    def read(self, cursor: int, limit: int) -> FeedPage:
        """Return a page, oldest event first. Raises 429 if the last success is too recent (service-api.md, R58)."""
        self._check_rate()
        events = self._activity.events_after(cursor, limit + 1)
        page = events[:limit]
        return FeedPage(page, page[-1].event_id if page else cursor, len(events) > limit)

    def _check_rate(self) -> None:
        last, interval = self._activity.last_feed_success(), self._context.account.feed_interval_seconds
        if last is None:
            return
        wait = last + int(interval * SECOND) - self._context.clock.now()
        if wait > 0:
            raise rate_limited(rate_limit.whole_seconds(wait))

    def usage(self, before: int) -> tuple[list[FeedCall], int | None]:
        """Return a page of the feed usage log (R16), newest first, and where the next page starts."""
        rows = self._activity.feed_calls_before(before, defaults.ROWS_PER_PAGE + 1)
        page = rows[: defaults.ROWS_PER_PAGE]
        return page, page[-1].pk if len(rows) > len(page) else None

    def log(self, status: int, events: int) -> None:
        """Add a call to the feed usage log."""
        self._activity.add_feed_call(self._context.clock.now(), status, events)
