"""Counts of an ingest, which survive deferrals."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final

import msgspec

from outbound_transfer.client.events import Page, parse_position
from outbound_transfer.wording import pluralize

#: Limits for the types of events, which the service names: they are stored in the deferred task and the XCom.
MAX_TYPES: Final = 50
MAX_TYPE_LENGTH: Final = 100
OTHER_TYPES: Final = "(other types)"

Count = Annotated[int, msgspec.Meta(ge=0)]


class IngestProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of the pages that a task has loaded.

    :ivar events: number of events, of which ``new_events`` were not in the warehouse before.
    :ivar rejected: number of rejected lines.
    :ivar cursor_from: cursor before the first page; ``cursor_to``: after the last one. None before the first page.
    :ivar has_more: whether the feed had more after the last page.
    :ivar types: number of events by type.
    :ivar excess: how far the cursor of a page was beyond its lines at most.
    :ivar claimed: how far the cursor of the page that comes next was claimed to advance; 0 if no response claimed it.
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

    def is_done(self, max_pages: int | None) -> bool:
        """Return whether the feed has no more pages, or as many were loaded as allowed."""
        return not self.has_more or (max_pages is not None and self.pages >= max_pages)

    def __str__(self) -> str:
        return (
            f"Loaded {pluralize(self.events, 'event')} ({self.new_events} new) and "
            f"{pluralize(self.rejected, 'rejected line')} of {pluralize(self.pages, 'page')}; "
            f"cursor {self.cursor_from} to {self.cursor_to}, {'more to come' if self.has_more else 'caught up'}"
        )

    def summary(self) -> dict[str, Any]:
        """Return the counts as the operator returns them."""
        counts: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in counts.items() if name not in ("excess", "claimed")}


def positions_in(page: Page) -> list[int]:
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
    positions = positions_in(page)
    others = len(page.events) - len(positions) + len(page.rejected)
    return page.next_cursor - max(positions, default=page.cursor) - others


def _count_types(types: dict[str, int], page: Page) -> dict[str, int]:
    counted = dict(types)
    for kind, count in Counter([event.type for event in page.events]).items():
        shown = kind[:MAX_TYPE_LENGTH]
        if shown not in counted and len(counted) >= MAX_TYPES:
            shown = OTHER_TYPES
        counted[shown] = counted.get(shown, 0) + count
    return counted
