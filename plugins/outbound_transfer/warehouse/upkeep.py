"""What a person does to a feed's tables: look, check, and set the cursor; every change leaves a row in the log.

Whoever looks changes nothing, and a feed that has never been read is an error, not a new feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.feed import MAX_CURSOR, Event, Page, read_line
from outbound_transfer.warehouse.database import Warehouse, rows_of, value
from outbound_transfer.warehouse.errors import InvalidCursor, UnknownFeed
from outbound_transfer.warehouse.feed import CLAIM, FeedTables, Poll
from outbound_transfer.warehouse.rows import event_rows
from outbound_transfer.warehouse.tables import EVENTS, FEED_CURSOR

#: Rejected lines that one transaction reads again.
_AT_ONCE: Final = 1_000


class Status(msgspec.Struct, frozen=True):
    """A feed at a glance.

    :ivar polled_at: of the last poll, with its HTTP ``status``; ``caught_up`` where the last page that was landed had
        no more after it. ``landed_at`` and ``occurred_at`` are of the newest event.
    """

    feed: str
    cursor: int
    updated_at: str | None
    caught_up: bool | None
    events: int
    rejected: int
    landed_at: str | None
    occurred_at: str | None
    polled_at: str | None
    status: int | None
    note: str | None


def feeds(warehouse: Warehouse) -> list[str]:
    """Whose cursors are in the warehouse."""
    with warehouse.reading() as cursor:
        if not warehouse.has(cursor, FEED_CURSOR):
            return []
        return [row[0] for row in _rows(warehouse, cursor, "SELECT [feed] FROM {feed_cursor} ORDER BY [feed]")]


def check_known(tables: FeedTables) -> None:
    """:raises UnknownFeed: the feed has never been read."""
    known = feeds(tables.warehouse)
    if tables.feed not in known:
        told = f"there is: {', '.join(known)}" if known else "no feed has been read here yet"
        raise UnknownFeed(f"the tables hold no feed {tables.feed}; {told}")


def status(tables: FeedTables) -> Status:
    """The feed's cursor, its last poll, and what is in the tables.

    :raises UnknownFeed: the feed has never been read.
    """
    check_known(tables)
    position, of_feed = tables.known_cursor(), (tables.feed,)
    with tables.warehouse.reading() as cursor:

        def first(query: str) -> tuple[Any, ...] | None:
            return next(iter(_rows(tables.warehouse, cursor, query, of_feed * query.count("?"))), None)

        updated = first("SELECT [updated_at] FROM {feed_cursor} WHERE [feed] = ?")
        newest = first("SELECT count(*), max([landed_at]), max([occurred_at]) FROM {events} WHERE [feed] = ?")
        rejected = first("SELECT count(*) FROM {rejected_lines} WHERE [feed] = ?")
        poll = first(_LAST_POLL)
        page = first(_LAST_PAGE)
    return Status(
        feed=tables.feed,
        cursor=position,
        updated_at=_shown(updated and updated[0]),
        caught_up=None if page is None else not page[0],
        events=newest[0] if newest else 0,
        rejected=rejected[0] if rejected else 0,
        landed_at=_shown(newest and newest[1]),
        occurred_at=_shown(newest and newest[2]),
        polled_at=_shown(poll and poll[0]),
        status=poll[1] if poll else None,
        note=poll[2] if poll else None,
    )


_LAST: Final = "SELECT max([polled_at]) FROM {feed_polls} WHERE [feed] = ? AND"
_OF_LAST: Final = f"FROM {{feed_polls}} WHERE [feed] = ? AND [polled_at] = ({_LAST}"
_LAST_POLL: Final = f"SELECT [polled_at], [status], [note] {_OF_LAST} [action] IN ('poll', '{CLAIM}'))"
_LAST_PAGE: Final = f"SELECT [has_more] {_OF_LAST} [action] = 'poll' AND [cursor_to] IS NOT NULL)"


def faults(tables: FeedTables) -> Iterator[str]:
    """What is wrong with the tables, in words; nothing where all is well.

    :raises UnknownFeed: the feed has never been read.
    """
    check_known(tables)
    position = tables.known_cursor()
    with tables.warehouse.reading() as cursor:

        def count(query: str, *more: Any) -> int:
            return int(value(cursor, tables.warehouse.spelled(query), (tables.feed, *more)) or 0)

        if doubled := count(_DOUBLED):
            yield f"{doubled} event ids stand there more than once"
        for table in ("events", "rejected_lines"):
            beyond = f"SELECT count(*) FROM {{{table}}} WHERE [feed] = ? AND [cursor_from] >= ?"  # noqa: S608
            if beyond_cursor := count(beyond, position):
                yield (
                    f"{beyond_cursor} rows of {table} are of pages from the cursor {position} on: it was set back, or "
                    "lost. Reading on lands nothing twice; `feed rebuild-cursor` spares the reading"
                )
        if unordered := count(_UNORDERED):
            yield f"{unordered} rows share the line of a page with another that was landed at the same time"
        polls = _rows(tables.warehouse, cursor, _MOVES, (tables.feed, CLAIM))
    yield from _gaps(polls, position)


_DOUBLED: Final = (
    "SELECT count(*) FROM (SELECT [event_id] FROM {events} WHERE [feed] = ? GROUP BY [event_id]"
    " HAVING count(*) > 1) AS doubled"
)
_UNORDERED: Final = (
    "SELECT count(*) FROM (SELECT [line] FROM {events} WHERE [feed] = ?"
    " GROUP BY [cursor_from], [line], [landed_at] HAVING count(*) > 1) AS unordered"
)
_MOVES: Final = (
    "SELECT [cursor_from], [cursor_to], [polled_at] FROM {feed_polls} WHERE [feed] = ? AND [cursor_to] IS NOT NULL"
    " AND [action] <> ? ORDER BY [polled_at]"
)


def _gaps(moves: list[tuple[Any, ...]], position: int) -> Iterator[str]:
    """Where the log says that the cursor moved without a page or a command."""
    at: int | None = None
    for start, end, when in moves:
        if at is not None and start != at:
            yield f"the cursor was at {at}, and at {start} when it moved next ({_shown(when)}): the log has a gap"
        at = end
    if at is not None and at != position:
        yield f"the cursor is {position}, and the log ends at {at}: it was set by hand"


def reset(tables: FeedTables, to: int) -> tuple[int, int]:
    """Set the cursor; from where and to where.

    :raises InvalidCursor: ``to`` is no cursor.
    :raises UnknownFeed: the feed has never been read.
    :raises CursorMoved: a reader landed a page just then.
    """
    if not 0 <= to <= MAX_CURSOR:
        raise InvalidCursor(f"a cursor is a whole number from 0 to {MAX_CURSOR}, not {to}")
    return _set(tables, to, "reset", "set by command")


def rebuild(tables: FeedTables) -> tuple[int, int]:
    """Set the cursor to where the page began that left the newest rows: it is read again, and nothing lands twice."""
    check_known(tables)
    tables.cursor()
    with tables.warehouse.reading() as cursor:
        newest = [
            row
            for name in ("events", "rejected_lines")
            for row in _rows(tables.warehouse, cursor, _NEWEST.format(table=f"{{{name}}}"), (tables.feed, tables.feed))
        ]
    return _set(tables, int(max(newest)[1]) if newest else 0, "rebuild", "from the rows")


_NEWEST: Final = (
    "SELECT [landed_at], min([cursor_from]) FROM {table} WHERE [feed] = ?"
    " AND [landed_at] = (SELECT max([landed_at]) FROM {table} WHERE [feed] = ?) GROUP BY [landed_at]"
)


def _set(tables: FeedTables, to: int, action: str, note: str) -> tuple[int, int]:
    check_known(tables)
    position = tables.cursor()
    with tables.warehouse.writing() as cursor:
        tables.move(cursor, position, to)
        tables.forget_claims(cursor)
        tables.add(cursor, Poll(action=action, cursor_from=position, cursor_to=to, note=note))
    return position, to


def replay(tables: FeedTables) -> tuple[int, int]:
    """Read the rejected lines again: those that are events by now become rows; how many, and how many are left."""
    check_known(tables)
    position, landed, left, after = tables.cursor(), 0, 0, (-1, -1)
    while True:
        with tables.warehouse.reading() as cursor:
            lines = _rows(tables.warehouse, cursor, _REJECTED, (tables.feed, after[0], *after))[:_AT_ONCE]
        read = [(start, read_line(bytes(raw), line)) for start, line, raw in lines]
        good = [(start, each) for start, each in read if isinstance(each, Event)]
        replaced = _replaced(tables, position, good)
        landed, left = landed + replaced, left + len(lines) - replaced
        if len(lines) < _AT_ONCE:
            return landed, left
        after = lines[-1][:2]


def _replaced(tables: FeedTables, position: int, events: Sequence[tuple[int, Event]]) -> int:
    """Land rejected lines that can be read by now, each with its page's cursor; how many the database takes."""
    if not events:
        return 0
    try:
        with tables.warehouse.writing() as cursor:
            count = sum(_replace(tables, cursor, start, event) for start, event in events)
            tables.add(cursor, Poll(action="replay", cursor_from=position, new_events=count, note="by command"))
            return count
    except Exception as error:
        if not tables.warehouse.dialect.is_refusal(error):
            raise
    if len(events) == 1:
        return 0  # refused as it was when its page was landed
    middle = len(events) // 2
    return _replaced(tables, position, events[:middle]) + _replaced(tables, position, events[middle:])


_REJECTED: Final = (
    "SELECT [cursor_from], [line], [raw] FROM {rejected_lines} WHERE [feed] = ?"
    " AND ([cursor_from] > ? OR ([cursor_from] = ? AND [line] > ?)) ORDER BY [cursor_from], [line]"
)


def _replace(tables: FeedTables, cursor: Any, start: int, event: Event) -> bool:
    """Make an event of a rejected line; not where an ingestion has taken that away since."""
    tables.warehouse.run(
        cursor,
        "DELETE FROM {rejected_lines} WHERE [feed] = ? AND [cursor_from] = ? AND [line] = ?",
        (tables.feed, start, event.line),
    )
    if tables.warehouse.dialect.changed(cursor) != 1:
        return False
    page = Page(start, start, False, (event,), ())
    tables.warehouse.insert(cursor, EVENTS, event_rows(tables.feed, page, tables.now()))
    return True


def _rows(warehouse: Warehouse, cursor: Any, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return rows_of(warehouse.run(cursor, query, parameters))


def _shown(moment: Any) -> str | None:
    return None if moment is None else str(moment)
