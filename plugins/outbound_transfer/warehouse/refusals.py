"""A page that the database refuses although its lines can be read: which of its rows it is, found by trying.

What a database takes is more than its documents say (an encoding, a limit, a user's own constraint), so nothing is
guessed: rows are offered in transactions that are undone. This is slow, and done only where a page was refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from msgspec.structs import replace

from outbound_transfer.protocol.feed import Event, Page, RejectedLine

#: What the database says to the rows of a page, none of which stays; None where it takes them.
Refusal: TypeAlias = Callable[[Page], Exception | None]

#: Characters of what the database says.
_MAX_REASON: Final = 300


def settled(page: Page, refusal: Refusal, now: datetime) -> Page:
    """The page as the database takes it: events that it refuses are kept raw, or as rejected lines with its reason.

    The same page where its rows are not what is refused.
    """
    if not page.events or refusal(replace(page, events=(_harmless(now),), rejected=())) is not None:
        return page
    taken: list[Event] = []
    rejected = list(page.rejected)
    lines = page.lines()

    def offer(events: Sequence[Event]) -> Exception | None:
        return refusal(replace(page, events=(*taken, *events), rejected=()))

    def take(events: Sequence[Event]) -> None:
        if (said := offer(events)) is None:
            taken.extend(events)
        elif len(events) > 1:
            middle = len(events) // 2
            take(events[:middle])
            take(events[middle:])
        else:
            keep(events[0], said)

    def keep(event: Event, said: Exception) -> None:
        line = lines[event.line - 1]
        raw = replace(event, raw=line.decode().strip(" \t\r"))
        if event.raw is None and offer([raw]) is None:
            taken.append(raw)
        else:
            rejected.append(RejectedLine(event.line, line, _reason(said)))

    take(page.events)
    return replace(page, events=tuple(taken), rejected=tuple(sorted(rejected, key=lambda each: each.line)))


def _harmless(now: datetime) -> Event:
    """An event that is refused only where the tables take none at all."""
    return Event(f"probe {now.timestamp()}", "transfer_sent", now.isoformat(), json.dumps({}), None, 1)


def _reason(said: Exception) -> str:
    # In a character set that every database has: it may be one of another that was refused.
    text = " ".join(f"{type(said).__name__}: {said}".split()).encode("ascii", "backslashreplace").decode()
    return f"the database refused it: {text[:_MAX_REASON]}".replace("\0", " ")
