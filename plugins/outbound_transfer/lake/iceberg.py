"""The event feed in an Iceberg table: a page and its cursor are one commit; inspection and repair of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.expressions
from msgspec.structs import replace
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from outbound_transfer.client.events import Page
from outbound_transfer.lake.feed_table import (
    ADDRESS,
    Change,
    FeedState,
    FeedTable,
    list_accounts,
    read_state,
    require_state,
)
from outbound_transfer.lake.rows import page_table
from outbound_transfer.store.destination import (
    EventDestination,
    FeedStatus,
    Loaded,
    check_account,
    check_address,
    check_rejected,
)
from outbound_transfer.store.errors import CursorMoved, InvalidCursor, InvalidName
from outbound_transfer.store.rows import utc_now


def list_feeds_of(catalog: Catalog, table: str) -> list[str]:
    """Return the accounts whose feeds have been read into a table; none if it does not exist."""
    found = FeedTable(catalog, table).find()
    return list_accounts(found.properties) if found else []


class IcebergEventDestination(EventDestination):
    """The events and rejected lines of an account's feed in an Iceberg table, and its cursor in a table property.

    An event that the feed repeats on another page is there once for each page: no id is searched for. Polls that load
    nothing are not recorded, and neither are commands.

    :param table: namespace and table, with dots; several accounts share a table.
    :param keep_snapshots_for: snapshots younger than that do not expire.
    :param clock: the current time, for ``loaded_at``.
    :raises InvalidName: the table has no namespace, or the account's name is empty, too long or not printable.
    """

    def __init__(
        self,
        catalog: Catalog,
        table: str,
        account: str,
        *,
        keep_snapshots_for: timedelta = timedelta(hours=1),
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        check_account(account)
        if not account.isprintable():
            raise InvalidName(f"the account's name {account!r} has characters that are not printable")
        self._table, self._address = FeedTable(catalog, table), f"{ADDRESS}{account}"
        self.account, self._now, self._keep_snapshots_for = account, clock, keep_snapshots_for

    def get_or_create_cursor(self) -> int:
        table = self._table.find_or_create()
        if read_state(table.metadata, self.account) is None:
            table = self._table.commit(self._plan_first)
        return require_state(table, self.account).cursor

    def _plan_first(self, table: Table, commit_id: str) -> Change:
        has_rows = table.scan(self._rows_from(0), limit=1).to_arrow().num_rows
        state = require_state(table, self.account) if has_rows else read_state(table.metadata, self.account)
        return self._change(state or FeedState(), commit_id)

    def _rows_from(self, cursor: int) -> BooleanExpression:
        """Return the condition that rows are of the account, and of pages from a cursor on."""
        filters: Any = pyiceberg.expressions  # its types deny the arguments that it is documented with
        is_of_account = filters.EqualTo("account", self.account)
        where: BooleanExpression = filters.And(is_of_account, filters.GreaterThanOrEqual("cursor_from", cursor))
        return where

    def bind_account(self, address: str) -> None:
        name, table = self._address, self._table.load()
        if name not in table.properties:
            table = self._table.commit(lambda table, _: Change({name: table.properties.get(name, address)}))
        remedy = f"remove the property '{name}' of the table {self._table.name}"
        check_address(self.account, table.properties.get(name), address, remedy)

    def _change(self, state: FeedState, commit_id: str, **rows: Any) -> Change:
        """Return a change that sets the state of the feed, and deletes and appends rows."""
        stamped = replace(state, commit=commit_id, updated_at=self._now())
        return Change(stamped.as_properties(self.account), **rows)

    def load_page(self, page: Page, max_rejected: int | None = None) -> Loaded:
        check_rejected(page, max_rejected)
        now = self._now()
        rows = page_table(self.account, page, now)
        if not rows.num_rows:
            state = self._state_at(self._table.load(), page.cursor)
            if state.after(page) == state:
                return Loaded(page, 0)

        def plan(table: Table, commit_id: str) -> Change:
            return self._change(self._state_at(table, page.cursor).after(page), commit_id, append=rows)

        self._table.commit(plan, expire_before=now - self._keep_snapshots_for)
        return Loaded(page, int(rows.num_rows) - len(page.rejected))

    def _state_at(self, table: Table, position: int) -> FeedState:
        """Return the state of the feed; raise CursorMoved if its cursor is not ``position``."""
        state = require_state(table, self.account)
        if state.cursor != position:
            raise CursorMoved(f"the cursor of the feed {self.account} is no longer {position}")
        return state

    def read_address(self) -> str | None:
        table = self._table.find()
        return table.properties.get(self._address) if table else None

    def read_cursor(self) -> int:
        return require_state(self._known_table(), self.account).cursor

    def _known_table(self) -> Table:
        """Return the table; raise UnknownFeed if it has neither a cursor nor rows of the account."""
        table = self._table.find()
        known = list_accounts(table.properties) if table else []
        if table and (self.account in known or self._read(table, "account").num_rows):
            return table
        raise self._unknown_feed(f"table {self._table.name}", known)

    def _read(self, table: Table, *columns: str) -> pa.Table:
        """Return columns of the account's rows, in no order."""
        return table.scan(self._rows_from(0), selected_fields=columns).to_arrow()

    def status(self, *, counts: bool = True) -> FeedStatus:
        table = self._known_table()
        state = require_state(table, self.account)
        found = FeedStatus(
            account=self.account,
            address=table.properties.get(self._address),
            cursor=state.cursor,
            updated_at=state.updated_at,
            page_at=state.updated_at,
            caught_up=None if state.has_more is None else not state.has_more,
        )
        if not counts:
            return found
        rows = self._read(table, "event_id", "loaded_at", "occurred_at")
        events = rows.filter(pc.is_valid(rows["event_id"]))
        newest = {name: pc.max(events[name]).as_py() for name in ("loaded_at", "occurred_at")}
        return replace(found, events=events.num_rows, rejected=rows.num_rows - events.num_rows, **newest)

    def find_problems(self) -> Iterator[str]:
        table = self._known_table()
        cursor = require_state(table, self.account).cursor
        rows = self._read(table, "cursor_from", "line_number")
        lines = rows.group_by(rows.column_names).aggregate([([], "count_all")])["count_all"]
        if repeated := pc.sum(pc.greater(lines, 1)).as_py():
            yield f"{repeated} lines of a page are stored more than once: the page was loaded twice"
        if beyond := pc.sum(pc.greater_equal(rows["cursor_from"], cursor)).as_py():
            yield (
                f"{beyond} rows are of pages from the cursor {cursor} on, which the next run loads: "
                f"`feed reset --to {cursor}` deletes them first"
            )

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        def find_start(pages: list[int], cursor: int | None) -> int:
            if cursor is not None and to >= cursor:
                return to
            return max((page for page in pages if page <= to), default=to)

        return self._move(find_start, to, expected)

    def rebuild_cursor(self) -> tuple[int | None, int]:
        """Set the cursor to the start of the newest page, whose rows are deleted: its end may not be known."""
        return self._move(lambda pages, _: max(pages, default=0))

    def _move(
        self, find_start: Callable[[list[int], int | None], int], to: int = 0, expected: int | None = None
    ) -> tuple[int | None, int]:
        """Set the cursor, and delete the rows that are loaded again, in one commit.

        :param find_start: returns where to, given where pages start, and the cursor; None if it is not valid.
        """
        before = self._find_cursor(self._known_table())
        self._check_move(before, to, expected)

        def plan(table: Table, commit_id: str) -> Change:
            if self._find_cursor(table) != before:
                raise CursorMoved(f"the cursor of the feed {self.account} is no longer {before}")
            pages = pc.unique(self._read(table, "cursor_from")["cursor_from"]).to_pylist()
            start = find_start(pages, before)
            return self._change(FeedState(cursor=start), commit_id, delete=self._rows_from(start))

        return before, require_state(self._table.commit(plan), self.account).cursor

    def _find_cursor(self, table: Table) -> int | None:
        """Return the cursor; None if it is missing or not valid."""
        try:
            return require_state(table, self.account).cursor
        except InvalidCursor:
            return None
