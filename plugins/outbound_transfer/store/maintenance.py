"""Inspection and repair of a feed's tables, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict

from outbound_transfer.store.accounts import read_address
from outbound_transfer.store.destination import (
    FeedMaintenance,
    FeedPosition,
    FeedStatus,
    PollRecord,
    check_cursor,
    check_expected,
)
from outbound_transfer.store.events import OTHER_CONTENT, EventStore
from outbound_transfer.store.schema import Tables
from outbound_transfer.store.tables import EVENTS, FEED_CURSOR, FEED_POLLS, REJECTED_LINES
from outbound_transfer.store.values import format_timestamp
from outbound_transfer.wording import pluralize


def list_feeds(tables: Tables) -> list[str]:
    """Return the accounts whose feeds have been read."""
    if not tables.exist([FEED_CURSOR]):
        return []
    account = tables.named(FEED_CURSOR).c.account
    with tables.database.begin(reads_only=True) as tx:
        return list(tx.scalars(sa.select(account).order_by(account)))


class SqlFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the tables of an :class:`.EventStore`."""

    def __init__(self, store: EventStore) -> None:
        self._store, self._database, self.account = store, store.database, store.account
        self._events, self._rejected = store.tables.named(EVENTS), store.tables.named(REJECTED_LINES)
        self._polls, self._cursor = store.tables.named(FEED_POLLS), store.tables.named(FEED_CURSOR)

    def read_address(self) -> str | None:
        return read_address(self._store.tables, self.account)

    def read_cursor(self) -> int:
        known = list_feeds(self._store.tables)
        if self.account not in known:
            raise self._unknown_feed("database", known)
        return self._store.read_cursor()

    def _select(self, table: sa.Table, *columns: Any) -> sa.Select[Any]:
        """Return a query of the feed's rows."""
        return sa.select(*columns).select_from(table).where(table.c.account == self.account)

    def read_position(self) -> FeedPosition:
        cursor, polls = self.read_cursor(), self._polls.c
        of_polls = self._select(self._polls, polls.polled_at, polls.status, polls.note, polls.has_more)
        newest = of_polls.where(polls.action == "poll").order_by(polls.polled_at.desc()).limit(1)
        with self._database.begin(reads_only=True) as tx:
            updated_at = tx.scalar(self._select(self._cursor, self._cursor.c.updated_at))
            polled_at, status, note, _ = tx.execute(newest).first() or [None] * 4
            page_at, *_, has_more = tx.execute(newest.where(polls.cursor_to.is_not(None))).first() or [None] * 4
        return FeedPosition(
            cursor=cursor,
            updated_at=_to_text(updated_at),
            page_at=_to_text(page_at),
            caught_up=None if page_at is None else not has_more,
            polled_at=_to_text(polled_at),
            status=status,
            note=note,
        )

    def status(self) -> FeedStatus:
        position, events = self.read_position(), self._events.c
        newest = [sa.func.max(column, type_=column.type) for column in (events.loaded_at, events.occurred_at)]
        with self._database.begin(reads_only=True) as tx:
            count, loaded_at, occurred_at = tx.execute(self._select(self._events, sa.func.count(), *newest)).one()
            rejected = tx.scalar(self._select(self._rejected, sa.func.count()))
        return FeedStatus(
            **asdict(position),
            account=self.account,
            address=self.read_address(),
            events=count,
            rejected=rejected or 0,
            loaded_at=_to_text(loaded_at),
            occurred_at=_to_text(occurred_at),
        )

    def find_problems(self) -> Iterator[str]:
        position = self.read_cursor()
        with self._database.begin(reads_only=True) as tx:
            problems = list(self._find_problems(tx, position))
        yield from problems

    def _find_problems(self, tx: sa.Connection, position: int) -> Iterator[str]:
        events, polls, reason = self._events.c, self._polls.c, self._rejected.c.reason
        if doubled := self._count_repeated(tx, events.event_id):
            yield f"{pluralize(doubled, 'event id')} found more than once"
        for name, table in (("events", self._events), ("rejected_lines", self._rejected)):
            if count := tx.scalar(self._select(table, sa.func.count()).where(table.c.cursor_from >= position)):
                yield (
                    f"{pluralize(count, 'row')} of {name} came with pages from cursor {position} on: it was set back "
                    "or lost. The next run loads no event twice; `feed rebuild-cursor` makes it skip these pages"
                )
        if count := tx.scalar(self._select(self._rejected, sa.func.count()).where(reason == OTHER_CONTENT)):
            yield (
                f"{pluralize(count, 'rejected line')} with the id of a stored event and other content: the feed has "
                "changed the event, or it was that of another account"
            )
        if unordered := self._count_repeated(tx, events.cursor_from, events.line_number, events.loaded_at):
            yield f"{pluralize(unordered, 'row')} with the page, line and load time of another row"
        moves = self._select(self._polls, polls.cursor_from, polls.cursor_to, polls.polled_at)
        moves = moves.where(polls.cursor_to.is_not(None)).order_by(polls.polled_at)
        yield from _find_cursor_gaps(tx.execute(moves.execution_options(yield_per=1_000)), position)

    def _count_repeated(self, tx: sa.Connection, *columns: sa.ColumnElement[Any]) -> int:
        """Return how many combinations of values several of the feed's events have."""
        repeated = self._select(self._events, columns[0]).group_by(*columns).having(sa.func.count() > 1).subquery()
        return tx.scalar(sa.select(sa.func.count()).select_from(repeated)) or 0

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int, int]:
        check_cursor(to)
        return self._set(to, "reset", "set by command", expected)

    def rebuild_cursor(self) -> tuple[int, int]:
        newest: list[tuple[datetime, int]] = []
        with self._database.begin(reads_only=True) as tx:
            for table in (self._events, self._rejected):
                rows = self._select(table, table.c.loaded_at, table.c.cursor_from)
                rows = rows.order_by(table.c.loaded_at.desc(), table.c.cursor_from).limit(1)
                newest += tx.execute(rows).tuples()
        return self._set(max(newest)[1] if newest else 0, "rebuild", "from the rows")

    def _set(self, to: int, action: str, note: str, expected: int | None = None) -> tuple[int, int]:
        position = self.read_cursor()
        check_expected(self.account, position, expected)
        with self._database.begin() as tx:
            self._store.compare_and_set_cursor(tx, position, to)
            self._store.append_poll(tx, PollRecord(action=action, cursor_from=position, cursor_to=to, note=note))
        return position, to


def _find_cursor_gaps(moves: Iterable[Any], position: int) -> Iterator[str]:
    """Yield the changes of the cursor that no page or command in the log explains."""
    at: int | None = None
    for start, end, moved_at in moves:
        if at is not None and start != at:
            yield f"the cursor was at {at}, and at {start} when it moved next ({_to_text(moved_at)}): the log has a gap"
        at = end
    if at is not None and at != position:
        yield f"the cursor is {position}, and the log ends at {at}: it was changed outside the log"


def _to_text(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else format_timestamp(timestamp)
