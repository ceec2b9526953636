"""The event feed in an Iceberg table: a page, its cursor and its poll are one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from outbound_transfer.lake.catalog import IcebergCatalog
from outbound_transfer.lake.feed_state import FeedState, LastPoll, address_property, read_details, read_state
from outbound_transfer.lake.feed_table import Change, FeedTable
from outbound_transfer.lake.filters import filters
from outbound_transfer.lake.lineage import is_rolled_back
from outbound_transfer.lake.polls import PollTable
from outbound_transfer.lake.rows import SCHEMA, page_table
from outbound_transfer.protocol.events import Page
from outbound_transfer.warehouse.destination import (
    CLAIM,
    EventDestination,
    PollRecord,
    check_account,
    check_address,
)
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor, InvalidName
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

#: How long a snapshot is left to its readers, however many there are.
KEEP_SNAPSHOTS_FOR: Final = timedelta(hours=1)


class IcebergEventDestination(EventDestination):
    """The events and rejected lines of an account's feed in an Iceberg table, and its cursor in a table property.

    The log of polls is a table beside it. An event that the feed repeats on another page is there once for each page:
    no id is searched for.

    :param table: namespace and table, with dots; several accounts share a table.
    :param keep_snapshots_for: snapshots younger than that do not expire.
    :param clock: the current time, for ``loaded_at`` and ``polled_at``.
    :raises InvalidName: the table has no namespace, or the account's name is empty or too long.
    """

    def __init__(
        self,
        catalog: IcebergCatalog,
        table: str,
        account: str,
        *,
        keep_snapshots_for: timedelta = KEEP_SNAPSHOTS_FOR,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        check_account(account)
        if not account.isprintable():
            raise InvalidName(f"the account's name {account!r} has characters that are not printable")
        self.table = FeedTable(catalog, table, SCHEMA, partition_by="loaded_at")
        self.account, self.now = account, clock
        self._polls, self._keep_snapshots_for = PollTable(catalog, table), keep_snapshots_for

    def release(self) -> None:
        self.table.catalog.close()

    def get_or_create_cursor(self) -> int:
        state = self._checked_state(self.table.find_or_create())
        if state.cursor is None:
            self.table.commit(self._plan_first)
            state = read_state(self.table.load().properties, self.account)
        return state.cursor or 0

    def bind_account(self, address: str) -> None:
        name = address_property(self.account)

        def plan(table: Table, commit_id: str) -> Change:
            changed = self.change(self._checked_state(table), commit_id)
            return changed._replace(properties=changed.properties | {name: table.properties.get(name, address)})

        table = self.table.load()
        if name not in table.properties:
            table = self.table.commit(plan)
        remedy = f"remove the property '{name}' of the table {self.table.name}"
        check_address(self.account, table.properties.get(name), address, remedy)

    def _checked_state(self, table: Table) -> FeedState:
        """Return the state of the feed; its cursor is None if the feed has never been read.

        :raises InvalidCursor: somebody changed the cursor, or rolled the rows back and not the cursor.
        """
        state, committed = read_state(table.properties, self.account), read_details(table.properties, self.account)
        if committed.cursor is not None and state.cursor != committed.cursor:
            found = "missing" if state.cursor is None else state.cursor
            raise InvalidCursor(
                f"the cursor of the feed {self.account} in the table {self.table.name} is {found}, and the last commit "
                f"set it to {committed.cursor}: somebody changed the property. `feed rebuild-cursor` sets the cursor "
                "by the rows, `feed reset --to` to where you say"
            )
        if state.commit and self._has_other_rows(table, state):
            raise InvalidCursor(
                f"the table {self.table.name} was rolled back or replaced: its properties have the cursor "
                f"{state.cursor} of the feed {self.account}, and its rows are those of another time. "
                "`feed rebuild-cursor` sets the cursor by the rows"
            )
        return state

    def _has_other_rows(self, table: Table, state: FeedState) -> bool:
        """Return whether the commit of the state is not in effect, and that changed the rows."""
        if not is_rolled_back(table.metadata, state.commit, state.committed_at):
            return False
        mine = filters.EqualTo("account", self.account)
        beyond = filters.And(mine, filters.GreaterThanOrEqual("cursor_from", state.cursor or 0))
        newest = filters.And(mine, filters.EqualTo("cursor_from", state.rows_from or 0))
        is_lost = state.rows_from is not None and not self.table.has_rows(table, newest)
        return is_lost or self.table.has_rows(table, beyond)

    def _plan_first(self, table: Table, commit_id: str) -> Change:
        state = self._checked_state(table)
        if state.cursor is None:
            if self.table.has_rows(table, filters.EqualTo("account", self.account)):
                raise InvalidCursor(
                    f"the table {self.table.name} has events of {self.account} but no cursor: it was replaced, or its "
                    "properties were removed. `feed rebuild-cursor` sets the cursor by the rows"
                )
            state = FeedState(cursor=0)
        return self.change(state, commit_id)

    def change(
        self,
        state: FeedState,
        commit_id: str,
        *,
        append: pa.Table | None = None,
        delete: BooleanExpression | None = None,
    ) -> Change:
        """Return a change that sets the state of the feed, deletes rows, and appends rows then."""
        stamped = state.stamped(commit_id, format_timestamp(self.now()))
        rows = SCHEMA.empty_table() if append is None else append
        return Change(rows, stamped.as_properties(self.account), delete)

    def load_page(self, page: Page) -> int:
        rows = page_table(self.account, page, self.now())
        poll = self._poll_properties(page)

        def plan(table: Table, commit_id: str) -> Change:
            changed = self.change(self.state_at(table, page.cursor).after(page), commit_id, append=rows)
            return changed._replace(properties=changed.properties | poll)

        if page.next_cursor == page.cursor and not rows.num_rows:
            self.state_at(self.table.load(), page.cursor)
            self.table.set_properties(poll)  # nothing but the time of the poll changed: no snapshot
        else:
            self.table.expire_snapshots(self.table.commit(plan), self._expire_before())
        return int(rows.num_rows) - len(page.rejected)

    def _poll_properties(self, page: Page) -> dict[str, str]:
        poll = LastPoll(
            polled_at=format_timestamp(self.now()),
            status=200,
            has_more=page.has_more,
            events=len(page.events),
            rejected=len(page.rejected),
        )
        return poll.as_properties(self.account)

    def state_at(self, table: Table, position: int | None) -> FeedState:
        """Return the state of the feed.

        :raises CursorMoved: the cursor is not ``position``.
        :raises InvalidCursor: somebody changed it, or the rows and not the cursor.
        """
        state = self._checked_state(table)
        if state.cursor != position:
            raise CursorMoved(f"the cursor of the feed {self.account} is no longer {position}")
        return state

    def log_poll(self, poll: PollRecord) -> None:
        if poll.action == CLAIM and poll.cursor_to is not None:
            self._store_claim(poll.cursor_from, poll.cursor_to)
        self._polls.append(self.account, poll, self.now(), self._expire_before())

    def last_poll(self) -> dict[str, Any] | None:
        """Return the last row of the log of polls, without commands; None if there is none."""
        return self._polls.last(self.account)

    def _store_claim(self, position: int, claimed: int) -> None:
        self.table.commit(
            lambda table, commit_id: self.change(
                self.state_at(table, position).with_claim(position, claimed), commit_id
            )
        )

    def _expire_before(self) -> datetime:
        return self.now() - self._keep_snapshots_for

    def greatest_excess(self) -> int:
        return read_details(self.table.load().properties, self.account).excess

    def greatest_claim(self, position: int) -> int:
        return read_details(self.table.load().properties, self.account).greatest_claim(position)
