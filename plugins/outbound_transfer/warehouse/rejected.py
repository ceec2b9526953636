"""Which rejected lines are known when pages are read again, cut otherwise than before: pure.

A rejected line has no id. What tells it apart is that a feed's lines keep their order: all that was kept of pages from
the cursor on is to come again, each line once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outbound_transfer.protocol.feed import Page, RejectedLine


class Known(NamedTuple):
    """A row of :data:`.tables.REJECTED_LINES`: where it stands, and the line."""

    cursor_from: int
    line: int
    raw: bytes


class Changes(NamedTuple):
    """What landing a page does to the rows that are there.

    :ivar add: lines that are not there yet.
    :ivar move: rows that lie behind this page, with the place where they are found when the next one is landed.
    :ivar drop: rows whose line the database takes as an event by now.
    """

    add: tuple[RejectedLine, ...]
    move: tuple[tuple[Known, Known], ...] = ()
    drop: tuple[Known, ...] = ()


def changes(page: Page, known: Iterable[Known], frontier: int) -> Changes:
    """What to do when ``page`` is landed. No row is forgotten for not coming again.

    :param known: the rows of pages from ``page.cursor`` to ``page.next_cursor``, both included.
    :param frontier: how far the feed has ever been read.
    """
    known = sorted(known)
    places = {(row.cursor_from, row.line) for row in known}
    left = [row for row in known if row.cursor_from < page.next_cursor]
    add = []
    for line in page.rejected:
        again = next((row for row in left if row.raw == line.raw), None)
        if again:
            left.remove(again)
        else:
            add.append(RejectedLine(_free(places, page.cursor, line.line), line.raw, line.reason))
    drop = _landed(page, left)
    # An old page may reach beyond this one: its rest comes with the next.
    behind = [row for row in left if row not in drop] if page.next_cursor < frontier else []
    move = [(row, Known(page.next_cursor, _free(places, page.next_cursor, row.line), row.raw)) for row in behind]
    return Changes(tuple(add), tuple(move), tuple(drop))


def _landed(page: Page, rows: Sequence[Known]) -> list[Known]:
    if not rows:
        return []
    lines = page.lines()
    events = {lines[event.line - 1] for event in page.events}
    return [row for row in rows if row.raw in events]


def _free(places: set[tuple[int, int]], cursor: int, line: int) -> int:
    """A line of the page after ``cursor`` that no row has; ``line`` itself, where it is free."""
    if (cursor, line) in places:
        line = max(taken for start, taken in places if start == cursor) + 1
    places.add((cursor, line))
    return line
