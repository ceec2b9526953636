"""Finds the rows of a page that the database refuses, by trying.

Which values a database accepts cannot be known beforehand (an encoding, a limit, a user's own constraint). So rows are
inserted in trial transactions that are rolled back. This is slow, and done only for a page that was refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from msgspec.structs import replace

from outbound_transfer.client.events import Event, Page, RejectedLine
from outbound_transfer.store.errors import first_line

#: Inserts the rows of a page in a trial transaction; returns the database's error, or None if it accepts them.
Refusal: TypeAlias = Callable[[Page], Exception | None]

#: Number of events that are tried before a page counts as refused as a whole.
_MAX_SAMPLE: Final = 3

#: Maximum number of characters of the database's error.
_MAX_REASON: Final = 300


def storable_page(page: Page, refusal: Refusal, now: datetime) -> Page:
    """Return the page as the database accepts it: refused events are rejected lines with the database's error.

    Returns the same page if the values of its rows are not the reason.
    """
    if not page.events or _is_refused_whole(page, refusal, now):
        return page
    accepted: list[Event] = []
    rejected = list(page.rejected)
    lines = page.lines()

    def refusal_with(events: Sequence[Event]) -> Exception | None:
        return refusal(replace(page, events=(*accepted, *events), rejected=()))

    def add(events: Sequence[Event]) -> None:
        if (error := refusal_with(events)) is None:
            accepted.extend(events)
        elif len(events) > 1:
            middle = len(events) // 2
            add(events[:middle])
            add(events[middle:])
        elif (trouble := refusal_with([])) is not None:
            raise trouble  # it is not this event's
        elif (error := refusal_with(events)) is None:
            accepted.extend(events)
        else:
            (event,) = events
            rejected.append(RejectedLine(event.line_number, lines[event.line_number - 1], _reason(error)))

    add(page.events)
    return replace(page, events=tuple(accepted), rejected=tuple(sorted(rejected, key=lambda each: each.line_number)))


def _is_refused_whole(page: Page, refusal: Refusal, now: datetime) -> bool:
    """Return whether the database accepts neither an event of its simplest form nor any of the first ones."""
    some = (_simple_event(now), *page.events[:_MAX_SAMPLE])
    return all(refusal(replace(page, events=(event,), rejected=())) is not None for event in some)


#: Why an event is a rejected line whose id is that of another event.
OTHER_CONTENT: Final = "an event with this id and other content is stored"


def reject_conflicts(page: Page, conflicts: Sequence[Event]) -> Page:
    """Return the page with events whose ids are those of other events as rejected lines."""
    lines, numbers = page.lines(), {event.line_number for event in conflicts}
    rejected = [*page.rejected, *(RejectedLine(at, lines[at - 1], OTHER_CONTENT) for at in numbers)]
    return replace(
        page,
        events=tuple(event for event in page.events if event.line_number not in numbers),
        rejected=tuple(sorted(rejected, key=lambda each: each.line_number)),
    )


def _simple_event(now: datetime) -> Event:
    """Return an event that a database refuses only because of what is not in the event."""
    return Event(f"probe-{now.timestamp():.0f}", "transfer_sent", now.isoformat(), json.dumps({}), None, 1)


def _reason(error: Exception) -> str:
    # In ASCII, because the database may have refused other characters.
    text = f"{type(error).__name__}: {first_line(error)}".encode("ascii", "backslashreplace").decode()
    return f"the database refused it: {text[:_MAX_REASON]}".replace("\0", " ")
