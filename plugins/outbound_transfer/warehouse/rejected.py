"""Finds the rejected lines that are stored already when a feed is read again, and its pages are cut differently.

A rejected line has no id, but a feed's lines keep their order, so each stored line from the cursor on comes again once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outbound_transfer.protocol.events import Page, RejectedLine
from outbound_transfer.protocol.personal_data import erased_line


class StoredLine(NamedTuple):
    """A row of :data:`.tables.REJECTED_LINES`."""

    cursor_from: int
    line: int
    raw: bytes


class RejectedChanges(NamedTuple):
    """The changes of the stored rows when a page is loaded.

    :ivar add: lines that are not stored yet.
    :ivar move: rows that belong to the next page, with the position where the next load finds them.
    :ivar drop: rows whose line is now stored as an event.
    """

    add: tuple[RejectedLine, ...]
    move: tuple[tuple[StoredLine, StoredLine], ...] = ()
    drop: tuple[StoredLine, ...] = ()


def plan_changes(page: Page, known: Iterable[StoredLine], highest_cursor: int) -> RejectedChanges:
    """Return the changes for loading ``page``. A row is never deleted only because its line does not come again.

    :param known: the rows of the pages from ``page.cursor`` to ``page.next_cursor``, inclusive.
    :param highest_cursor: the cursor that the feed has been read to so far.
    """
    known = sorted(known)
    positions = {(row.cursor_from, row.line) for row in known}
    contents = {row: erased_line(row.raw) for row in known if row.cursor_from < page.next_cursor}
    left = list(contents)
    add = []
    for line in page.rejected:
        content = erased_line(line.raw)
        again = next((row for row in left if contents[row] == content), None)
        if again:
            left.remove(again)
        else:
            add.append(RejectedLine(_free_line(positions, page.cursor, line.line_number), line.raw, line.reason))
    drop = _loaded_as_events(page, left)
    # A page of the previous reading may reach beyond this one: its other lines come with the next page.
    behind = [row for row in left if row not in drop] if page.next_cursor < highest_cursor else []
    move = [
        (row, StoredLine(page.next_cursor, _free_line(positions, page.next_cursor, row.line), row.raw))
        for row in behind
    ]
    return RejectedChanges(tuple(add), tuple(move), tuple(drop))


def _loaded_as_events(page: Page, rows: Sequence[StoredLine]) -> list[StoredLine]:
    if not rows:
        return []
    lines = page.lines()
    events = {erased_line(lines[event.line_number - 1]) for event in page.events}
    return [row for row in rows if erased_line(row.raw) in events]


def _free_line(positions: set[tuple[int, int]], cursor: int, line: int) -> int:
    """Return a line number that no row of the page has: ``line`` if it is free."""
    if (cursor, line) in positions:
        line = max(taken for start, taken in positions if start == cursor) + 1
    positions.add((cursor, line))
    return line
