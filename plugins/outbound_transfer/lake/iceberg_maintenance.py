"""Inspection and repair of a feed in an Iceberg table, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from outbound_transfer.lake.feed_table import Change, FeedState, FeedTable, list_accounts, require_state
from outbound_transfer.lake.iceberg import IcebergEventDestination
from outbound_transfer.store.destination import (
    FeedMaintenance,
    FeedPosition,
    FeedStatus,
    check_cursor,
    check_expected,
)
from outbound_transfer.store.errors import CursorMoved, InvalidCursor
from outbound_transfer.store.values import format_timestamp


def list_feeds_of(catalog: Catalog, table: str) -> list[str]:
    """Return the accounts whose feeds have been read into a table; none if it does not exist."""
    found = FeedTable(catalog, table).find()
    return list_accounts(found.properties) if found else []


class IcebergFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the table of an :class:`.IcebergEventDestination`. No command is recorded."""

    def __init__(self, destination: IcebergEventDestination) -> None:
        self._destination, self._table, self.account = destination, destination.table, destination.account

    def read_address(self) -> str | None:
        table = self._table.find()
        return None if table is None else table.properties.get(self._destination.address_property)

    def read_cursor(self) -> int:
        return self._known_state()[1].cursor

    def _known_table(self) -> Table:
        """Return the table.

        :raises UnknownFeed: it has neither a cursor nor rows of the account.
        """
        table = self._table.find()
        known = list_accounts(table.properties) if table else []
        if table and (self.account in known or self._read(table, "account").num_rows):
            return table
        raise self._unknown_feed(f"table {self._table.name}", known)

    def _known_state(self) -> tuple[Table, FeedState]:
        table = self._known_table()
        return table, require_state(table, self.account)

    def _read(self, table: Table, *columns: str) -> pa.Table:
        """Return columns of the account's rows, in no order."""
        return table.scan(self._destination.rows_from(0), selected_fields=columns).to_arrow()

    def read_position(self) -> FeedPosition:
        return _position_of(self._known_state()[1])

    def status(self) -> FeedStatus:
        table, state = self._known_state()
        rows = self._read(table, "event_id", "loaded_at", "occurred_at")
        events = rows.filter(pc.is_valid(rows["event_id"]))
        return FeedStatus(
            **asdict(_position_of(state)),
            account=self.account,
            address=self.read_address(),
            events=events.num_rows,
            rejected=rows.num_rows - events.num_rows,
            loaded_at=_greatest(events["loaded_at"]),
            occurred_at=_greatest(events["occurred_at"]),
        )

    def find_problems(self) -> Iterator[str]:
        table, state = self._known_state()
        rows = self._read(table, "cursor_from", "line_number")
        if unordered := _count_repeated(rows, ["cursor_from", "line_number"]):
            yield f"{unordered} lines of a page are there more than once: the page was loaded twice"
        if beyond := pc.sum(pc.greater_equal(rows["cursor_from"], state.cursor)).as_py():
            yield (
                f"{beyond} rows are of pages from the cursor {state.cursor} on, which the next run loads: "
                f"`feed reset --to {state.cursor}` deletes them first"
            )

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        check_cursor(to)

        def find_start(pages: list[int], cursor: int | None) -> int:
            if cursor is not None and to >= cursor:
                return to
            return max((page for page in pages if page <= to), default=to)

        return self._move(find_start, expected)

    def rebuild_cursor(self) -> tuple[int | None, int]:
        """Set the cursor to the start of the newest page, whose rows are deleted: its end may not be known."""
        return self._move(lambda pages, _: max(pages, default=0))

    def _move(
        self, find_start: Callable[[list[int], int | None], int], expected: int | None = None
    ) -> tuple[int | None, int]:
        """Set the cursor, and delete the rows that are loaded again, in one commit.

        :param find_start: returns where to, given where pages start, and the cursor; None if it is not valid.
        """
        before = self._find_cursor(self._known_table())
        check_expected(self.account, before, expected)

        def plan(table: Table, commit_id: str) -> Change:
            if self._find_cursor(table) != before:
                raise CursorMoved(f"the cursor of the feed {self.account} is no longer {before}")
            pages = pc.unique(self._read(table, "cursor_from")["cursor_from"]).to_pylist()
            start = find_start(pages, before)
            delete = self._destination.rows_from(start)
            return self._destination.change(FeedState(cursor=start), commit_id, delete=delete)

        return before, require_state(self._table.commit(plan), self.account).cursor

    def _find_cursor(self, table: Table) -> int | None:
        """Return the cursor; None if it is missing or not valid."""
        try:
            return require_state(table, self.account).cursor
        except InvalidCursor:
            return None


def _position_of(state: FeedState) -> FeedPosition:
    caught_up = None if state.has_more is None else not state.has_more
    return FeedPosition(cursor=state.cursor, updated_at=state.updated_at, page_at=state.updated_at, caught_up=caught_up)


def _count_repeated(rows: pa.Table, columns: list[str]) -> int:
    counts = rows.group_by(columns).aggregate([([], "count_all")])["count_all"]
    return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)


def _greatest(column: Any) -> str | None:
    greatest = pc.max(column).as_py()
    return None if greatest is None else format_timestamp(greatest)
