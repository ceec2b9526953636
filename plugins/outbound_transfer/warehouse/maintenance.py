"""Inspection and repair of a feed's tables, for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import asdict

from outbound_transfer.client.wording import pluralize
from outbound_transfer.store.accounts import read_address
from outbound_transfer.store.tables import FEED_CURSOR
from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.destination import (
    FeedMaintenance,
    FeedPosition,
    FeedStatus,
    PollRecord,
    check_cursor,
    check_expected,
)
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.refusals import OTHER_CONTENT


def list_feeds(warehouse: Warehouse) -> list[str]:
    """Return the accounts whose feeds have been read."""
    if not warehouse.tables.exist([FEED_CURSOR]):
        return []
    with warehouse.read() as tx:
        return [row[0] for row in _rows(warehouse, tx, "SELECT [account] FROM {feed_cursor} ORDER BY [account]")]


_LAST: Final = "SELECT max([polled_at]) FROM {feed_polls} WHERE [account] = ? AND"
_OF_LAST: Final = f"FROM {{feed_polls}} WHERE [account] = ? AND [polled_at] = ({_LAST}"
_LAST_POLL: Final = f"SELECT [polled_at], [status], [note] {_OF_LAST} [action] = 'poll')"
_LAST_PAGE: Final = f"SELECT [has_more], [polled_at] {_OF_LAST} [action] = 'poll' AND [cursor_to] IS NOT NULL)"

_DUPLICATES: Final = (
    "SELECT count(*) FROM (SELECT [event_id] FROM {events} WHERE [account] = ? GROUP BY [event_id]"
    " HAVING count(*) > 1) AS doubled"
)
_UNORDERED: Final = (
    "SELECT count(*) FROM (SELECT [line_number] FROM {events} WHERE [account] = ?"
    " GROUP BY [cursor_from], [line_number], [loaded_at] HAVING count(*) > 1) AS unordered"
)
_CONFLICTS: Final = "SELECT count(*) FROM {rejected_lines} WHERE [account] = ? AND [reason] = ?"
_MOVES: Final = (
    "SELECT [cursor_from], [cursor_to], [polled_at] FROM {feed_polls} WHERE [account] = ? AND [cursor_to] IS NOT NULL"
    " ORDER BY [polled_at]"
)

_NEWEST: Final = (
    "SELECT [loaded_at], min([cursor_from]) FROM {table} WHERE [account] = ?"
    " AND [loaded_at] = (SELECT max([loaded_at]) FROM {table} WHERE [account] = ?) GROUP BY [loaded_at]"
)


class SqlFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the tables of an :class:`.EventStore`."""

    def __init__(self, store: EventStore) -> None:
        self._store, self._warehouse, self.account = store, store.warehouse, store.account

    def _require_known(self) -> None:
        known = list_feeds(self._warehouse)
        if self.account not in known:
            raise self._unknown_feed("database", known)

    def read_address(self) -> str | None:
        return read_address(self._warehouse.tables, self.account)

    def read_cursor(self) -> int:
        self._require_known()
        return self._store.read_cursor()

    def read_position(self) -> FeedPosition:
        cursor = self.read_cursor()
        (updated_at,) = self._first("SELECT [updated_at] FROM {feed_cursor} WHERE [account] = ?") or (None,)
        polled_at, status, note = self._first(_LAST_POLL) or (None, None, None)
        has_more, page_at = self._first(_LAST_PAGE) or (None, None)
        return FeedPosition(
            cursor=cursor,
            updated_at=_to_text(updated_at),
            page_at=_to_text(page_at),
            caught_up=None if page_at is None else not has_more,
            polled_at=_to_text(polled_at),
            status=status,
            note=note,
        )

    def _first(self, query: str) -> tuple[Any, ...] | None:
        with self._warehouse.read() as tx:
            return next(iter(_rows(self._warehouse, tx, query, (self.account,) * query.count("?"))), None)

    def status(self) -> FeedStatus:
        position = self.read_position()
        newest = self._first("SELECT count(*), max([loaded_at]), max([occurred_at]) FROM {events} WHERE [account] = ?")
        events, loaded_at, occurred_at = newest or (0, None, None)
        (rejected,) = self._first("SELECT count(*) FROM {rejected_lines} WHERE [account] = ?") or (0,)
        return FeedStatus(
            **asdict(position),
            account=self.account,
            address=self.read_address(),
            events=events,
            rejected=rejected,
            loaded_at=_to_text(loaded_at),
            occurred_at=_to_text(occurred_at),
        )

    def find_problems(self) -> Iterator[str]:
        self._require_known()
        position = self._store.read_cursor()
        with self._warehouse.read() as tx:

            def count(query: str, *more: Any) -> int:
                return int(scalar(tx, self._warehouse.render(query), (self.account, *more)) or 0)

            if doubled := count(_DUPLICATES):
                yield f"{pluralize(doubled, 'event id')} found more than once"
            for table in ("events", "rejected_lines"):
                beyond = f"SELECT count(*) FROM {{{table}}} WHERE [account] = ? AND [cursor_from] >= ?"  # noqa: S608
                if beyond_cursor := count(beyond, position):
                    yield (
                        f"{pluralize(beyond_cursor, 'row')} of {table} came with pages from cursor {position} on: it "
                        "was set back or lost. The next run loads no event twice; `feed rebuild-cursor` makes it skip "
                        "these pages"
                    )
            if conflicts := count(_CONFLICTS, OTHER_CONTENT):
                yield (
                    f"{pluralize(conflicts, 'rejected line')} with the id of a stored event and other content: the "
                    "feed has changed the event, or it was that of another account"
                )
            if unordered := count(_UNORDERED):
                yield f"{pluralize(unordered, 'row')} with the page, line and load time of another row"
            polls = _rows(self._warehouse, tx, _MOVES, (self.account,))
        yield from _find_cursor_gaps(polls, position)

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int, int]:
        check_cursor(to)
        return self._set(to, "reset", "set by command", expected)

    def rebuild_cursor(self) -> tuple[int, int]:
        self._require_known()
        self._store.get_or_create_cursor()
        with self._warehouse.read() as tx:
            newest = [
                row
                for name in ("events", "rejected_lines")
                for row in _rows(
                    self._warehouse,
                    tx,
                    _NEWEST.format(table=f"{{{name}}}"),
                    (self.account, self.account),
                )
            ]
        return self._set(int(max(newest)[1]) if newest else 0, "rebuild", "from the rows")

    def _set(self, to: int, action: str, note: str, expected: int | None = None) -> tuple[int, int]:
        self._require_known()
        position = self._store.get_or_create_cursor()
        check_expected(self.account, position, expected)
        with self._warehouse.transaction() as tx:
            self._store.compare_and_set_cursor(tx, position, to)
            self._store.append_poll(tx, PollRecord(action=action, cursor_from=position, cursor_to=to, note=note))
        return position, to


def _find_cursor_gaps(moves: list[tuple[Any, ...]], position: int) -> Iterator[str]:
    """Yield the changes of the cursor that no page or command in the log explains."""
    at: int | None = None
    for start, end, moved_at in moves:
        if at is not None and start != at:
            yield f"the cursor was at {at}, and at {start} when it moved next ({_to_text(moved_at)}): the log has a gap"
        at = end
    if at is not None and at != position:
        yield f"the cursor is {position}, and the log ends at {at}: it was changed outside the log"


def _rows(warehouse: Warehouse, tx: Any, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return fetch_all(warehouse.run(tx, query, parameters))


def _to_text(timestamp: Any) -> str | None:
    return None if timestamp is None else str(timestamp)
