"""The event feed in an Iceberg table: a page and its cursor are one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from msgspec.structs import replace
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from outbound_transfer.client.events import Page
from outbound_transfer.lake.feed_table import ADDRESS, Change, FeedState, FeedTable, filters, read_state, require_state
from outbound_transfer.lake.rows import SCHEMA, page_table
from outbound_transfer.store.destination import EventDestination, Loaded, check_account, check_address, check_rejected
from outbound_transfer.store.errors import CursorMoved, InvalidName
from outbound_transfer.store.values import format_timestamp, utc_now

#: How long a snapshot is left to its readers.
KEEP_SNAPSHOTS_FOR: Final = timedelta(hours=1)


class IcebergEventDestination(EventDestination):
    """The events and rejected lines of an account's feed in an Iceberg table, and its cursor in a table property.

    An event that the feed repeats on another page is there once for each page: no id is searched for. Polls that load
    nothing are not recorded.

    :param table: namespace and table, with dots; several accounts share a table.
    :param keep_snapshots_for: snapshots younger than that do not expire.
    :param clock: the current time, for ``loaded_at``.
    :raises InvalidName: the table has no namespace, or the account's name is empty or too long.
    """

    def __init__(
        self,
        catalog: Catalog,
        table: str,
        account: str,
        *,
        keep_snapshots_for: timedelta = KEEP_SNAPSHOTS_FOR,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        check_account(account)
        if not account.isprintable():
            raise InvalidName(f"the account's name {account!r} has characters that are not printable")
        self.table = FeedTable(catalog, table)
        self.account, self.now, self._keep_snapshots_for = account, clock, keep_snapshots_for
        self.address_property = f"{ADDRESS}{account}"

    def get_or_create_cursor(self) -> int:
        table = self.table.find_or_create()
        if read_state(table.metadata, self.account) is None:
            table = self.table.commit(self._plan_first)
        return require_state(table, self.account).cursor

    def _plan_first(self, table: Table, commit_id: str) -> Change:
        has_rows = table.scan(self.rows_from(0), limit=1).to_arrow().num_rows
        state = require_state(table, self.account) if has_rows else read_state(table.metadata, self.account)
        return self.change(state or FeedState(), commit_id)

    def rows_from(self, cursor: int) -> BooleanExpression:
        """Return the condition that rows are of the account, and of pages from a cursor on."""
        is_of_account = filters.EqualTo("account", self.account)
        where: BooleanExpression = filters.And(is_of_account, filters.GreaterThanOrEqual("cursor_from", cursor))
        return where

    def bind_account(self, address: str) -> None:
        name, table = self.address_property, self.table.load()
        if name not in table.properties:
            table = self.table.commit(lambda table, _: Change({name: table.properties.get(name, address)}))
        remedy = f"remove the property '{name}' of the table {self.table.name}"
        check_address(self.account, table.properties.get(name), address, remedy)

    def change(
        self,
        state: FeedState,
        commit_id: str,
        *,
        append: pa.Table = SCHEMA.empty_table(),  # noqa: B008  # it is immutable
        delete: BooleanExpression | None = None,
    ) -> Change:
        """Return a change that sets the state of the feed, deletes rows, and appends rows then."""
        stamped = replace(state, commit=commit_id, updated_at=format_timestamp(self.now()))
        return Change(stamped.as_properties(self.account), append, delete)

    def load_page(self, page: Page, max_rejected: int | None = None) -> Loaded:
        check_rejected(page, max_rejected)
        now = self.now()
        rows = page_table(self.account, page, now)
        if not rows.num_rows:
            state = self._state_at(self.table.load(), page.cursor)
            if state.after(page) == state:
                return Loaded(page, 0)

        def plan(table: Table, commit_id: str) -> Change:
            return self.change(self._state_at(table, page.cursor).after(page), commit_id, append=rows)

        self.table.commit(plan, expire_before=now - self._keep_snapshots_for)
        return Loaded(page, int(rows.num_rows) - len(page.rejected))

    def _state_at(self, table: Table, position: int) -> FeedState:
        """Return the state of the feed.

        :raises CursorMoved: the cursor is not ``position``.
        :raises InvalidCursor: somebody changed the state, or the rows and not the state.
        """
        state = require_state(table, self.account)
        if state.cursor != position:
            raise CursorMoved(f"the cursor of the feed {self.account} is no longer {position}")
        return state
