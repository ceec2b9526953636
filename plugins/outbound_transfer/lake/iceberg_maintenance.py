"""Inspection and repair of a feed in an Iceberg table, for the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from outbound_transfer.lake.catalog import IcebergCatalog
from outbound_transfer.lake.feed_state import (
    FeedState,
    address_property,
    list_accounts,
    read_details,
    read_last_poll,
    read_state,
)
from outbound_transfer.lake.feed_table import Change, FeedTable
from outbound_transfer.lake.filters import filters
from outbound_transfer.lake.iceberg import IcebergEventDestination
from outbound_transfer.lake.rows import CONTENT_COLUMNS, SCHEMA, page_table, row_digest
from outbound_transfer.protocol.event_content import content_digest
from outbound_transfer.protocol.events import Event, Page, read_line
from outbound_transfer.warehouse.destination import (
    FeedMaintenance,
    FeedStatus,
    PollRecord,
    check_cursor,
    check_expected,
)
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor, UnknownFeed
from outbound_transfer.warehouse.timestamps import format_timestamp

log = logging.getLogger(__name__)

#: Event ids in one search.
_MAX_IDS: Final = 1_000


def list_feeds_of(catalog: IcebergCatalog, table: str) -> list[str]:
    """Return the accounts whose feeds have been read into a table; none if it does not exist."""
    found = FeedTable(catalog, table, SCHEMA, partition_by="loaded_at").find()
    return list_accounts(found.properties) if found else []


class _Move(NamedTuple):
    """Where a command sets the cursor, and which pages it deletes so that they are not loaded twice."""

    to: int
    delete_from: int | None = None


class IcebergFeedMaintenance(FeedMaintenance):
    """Inspection and repair of the table of an :class:`.IcebergEventDestination`."""

    def __init__(self, destination: IcebergEventDestination) -> None:
        self._destination, self._table, self.account = destination, destination.table, destination.account

    def read_address(self) -> str | None:
        table = self._table.find()
        return None if table is None else table.properties.get(address_property(self.account))

    def read_cursor(self) -> int:
        return self._state_of(self._known_table()).cursor or 0

    def _known_table(self) -> Table:
        """Return the table.

        :raises UnknownFeed: it has neither a cursor nor rows of the account.
        """
        table = self._table.find()
        known = list_accounts(table.properties) if table else []
        if table and (self.account in known or self._table.has_rows(table, self._mine())):
            return table
        hint = f"there is: {', '.join(known)}" if known else "no feed has been read here yet"
        raise UnknownFeed(f"the table {self._table.name} holds no feed {self.account}; {hint}")

    def _state_of(self, table: Table) -> FeedState:
        state = read_state(table.properties, self.account)
        if state.cursor is None:
            raise InvalidCursor(
                f"the table {self._table.name} has events of {self.account} but no cursor: "
                "`feed rebuild-cursor` sets it by the rows"
            )
        return state

    def _mine(self, *more: BooleanExpression) -> BooleanExpression:
        where: BooleanExpression = filters.EqualTo("account", self.account)
        for each in more:
            where = filters.And(where, each)
        return where

    def status(self) -> FeedStatus:
        table = self._known_table()
        state = self._state_of(table)
        columns = ("event_id", "loaded_at", "occurred_at")
        rows = self._table.read(table, self._mine(), *columns)
        events = rows.filter(pc.is_valid(rows["event_id"]))
        page = read_last_poll(table.properties, self.account)
        polled_at, status, note = self._last_poll(table)
        return FeedStatus(
            account=self.account,
            address=self.read_address(),
            cursor=state.cursor or 0,
            updated_at=state.updated_at,
            caught_up=None if page is None else not page.has_more,
            events=events.num_rows,
            rejected=rows.num_rows - events.num_rows,
            loaded_at=_greatest(events["loaded_at"]),
            occurred_at=_greatest(events["occurred_at"]),
            polled_at=polled_at,
            status=status,
            note=note,
        )

    def _last_poll(self, table: Table) -> tuple[str | None, int | None, str | None]:
        """Return the time, HTTP status and note of the last poll, whether it loaded a page or not."""
        page, logged = read_last_poll(table.properties, self.account), self._destination.last_poll()
        logged_at = format_timestamp(logged["polled_at"]) if logged else ""
        if logged and (page is None or logged_at > page.polled_at):
            return logged_at, logged["status"], logged["note"]
        return (page.polled_at, page.status, None) if page else (None, None, None)

    def find_problems(self) -> Iterator[str]:
        table = self._known_table()
        state = self._state_of(table)
        rows = self._table.read(table, self._mine(), "event_id", "cursor_from", "line_number")
        yield from find_row_problems(rows, state)
        yield from self._find_conflicts(table, rows["event_id"].drop_null())
        at_last_commit = read_details(table.properties, self.account).cursor
        if at_last_commit is not None and at_last_commit != state.cursor:
            yield f"the cursor is {state.cursor}, and the last commit set it to {at_last_commit}: somebody changed it"

    def _find_conflicts(self, table: Table, ids: Any) -> Iterator[str]:
        counts = pc.value_counts(ids)
        repeated = [each["values"] for each in counts.to_pylist() if each["counts"] > 1][:_MAX_IDS]
        if not repeated:
            return
        digests: dict[str, set[str]] = {}
        for row in self._table.read(table, self._mine(filters.In("event_id", repeated)), *CONTENT_COLUMNS).to_pylist():
            digests.setdefault(row["event_id"], set()).add(row_digest(row))
        if conflicts := sum(len(each) > 1 for each in digests.values()):
            yield (
                f"{conflicts} of the first {len(repeated)} repeated event ids have rows of different content: the feed "
                "has changed these events, or they were those of another account"
            )

    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        check_cursor(to)
        return self._move(lambda starts, state: _plan_reset(to, starts, state), "reset", "set by command", expected)

    def rebuild_cursor(self) -> tuple[int | None, int]:
        return self._move(_plan_rebuild, "rebuild", "from the rows")

    def _move(
        self,
        plan_move: Callable[[list[int], FeedState], _Move],
        action: str,
        note: str,
        expected: int | None = None,
    ) -> tuple[int | None, int]:
        before = self._cursor_of(self._known_table())
        check_expected(self.account, before, expected)

        def plan(table: Table, commit_id: str) -> Change:
            if self._cursor_of(table) != before:
                raise CursorMoved(f"the cursor of the feed {self.account} is no longer {before}")
            state, starts = read_details(table.properties, self.account), self._page_starts(table)
            move = plan_move(starts, state)
            delete = None if move.delete_from is None else self._from(move.delete_from)
            return self._destination.change(_state_after(move, starts, state), commit_id, delete=delete)

        after = self._state_of(self._table.commit(plan)).cursor or 0
        self._log_command(PollRecord(action=action, cursor_from=before or 0, cursor_to=after, note=note))
        return before, after

    def _from(self, cursor: int) -> BooleanExpression:
        return self._mine(filters.GreaterThanOrEqual("cursor_from", cursor))

    def _cursor_of(self, table: Table) -> int | None:
        """Return the cursor; None if the table's property is missing or is not a cursor."""
        try:
            return read_state(table.properties, self.account).cursor
        except InvalidCursor:
            return None

    def _page_starts(self, table: Table) -> list[int]:
        return sorted(pc.unique(self._table.read(table, self._mine(), "cursor_from")["cursor_from"]).to_pylist())

    def replay_rejected_lines(self) -> tuple[int, int]:
        table, loaded, left = self._known_table(), 0, 0
        position = self._state_of(table).cursor or 0
        if not self._table.has_rows(table, self._rejected()):
            return 0, 0

        def plan(table: Table, commit_id: str) -> Change:
            nonlocal loaded, left
            lines = self._table.read(table, self._rejected(), *SCHEMA.names)
            invalid, events = self._parse(lines)
            loaded, left = lines.num_rows - invalid.num_rows, invalid.num_rows
            changed = pa.concat_tables([invalid, self._unknown(table, events)])
            return self._destination.change(self._state_of(table), commit_id, append=changed, delete=self._rejected())

        self._table.commit(plan)
        self._log_command(PollRecord(action="replay", cursor_from=position, new_events=loaded, note="by command"))
        return loaded, left

    def _rejected(self) -> BooleanExpression:
        return self._mine(filters.IsNull("event_id"))

    def _parse(self, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the lines that are still invalid, as they are, and the events of the others, each once."""
        now, invalid, events = self._destination.now(), [], [SCHEMA.empty_table()]
        seen: set[tuple[str, str]] = set()
        for number, row in enumerate(rejected.to_pylist()):
            read = read_line(row["rejected_line"], row["line_number"])
            if not isinstance(read, Event):
                invalid.append(number)
            elif (key := (read.event_id, content_digest(read))) not in seen:
                seen.add(key)
                events.append(page_table(self.account, Page(row["cursor_from"], 0, False, (read,), ()), now))
        return rejected.take(pa.array(invalid, pa.int64())).cast(SCHEMA), pa.concat_tables(events)

    def _unknown(self, table: Table, events: pa.Table) -> pa.Table:
        """Return the events that are not in the table."""
        ids: list[str] = events["event_id"].to_pylist()
        known: set[tuple[str, str]] = set()
        for start in range(0, len(ids), _MAX_IDS):
            where = self._mine(filters.NotNull("event_id"), filters.In("event_id", ids[start : start + _MAX_IDS]))
            rows = self._table.read(table, where, *CONTENT_COLUMNS).to_pylist()
            known.update((row["event_id"], row_digest(row)) for row in rows)
        are_new = [(row["event_id"], row_digest(row)) not in known for row in events.to_pylist()]
        return events.filter(pa.array(are_new, pa.bool_()))

    def _log_command(self, command: PollRecord) -> None:
        try:
            self._destination.log_poll(command)
        except Exception as error:  # the command took effect
            log.warning("Could not record the command: %s", type(error).__name__)


def _plan_reset(to: int, starts: list[int], state: FeedState) -> _Move:
    """Return where to set the cursor so that it is ``to`` or before, and no row after it is loaded twice."""
    before = [start for start in starts if start <= to]
    if not before:
        return _Move(to, to if starts else None)
    if before[-1] == starts[-1] == state.rows_from and state.rows_to is not None and to >= state.rows_to:
        return _Move(to)
    return _Move(before[-1], before[-1])


def _plan_rebuild(starts: list[int], state: FeedState) -> _Move:
    """Return the cursor after the newest page; if that is not known, its start, and that the page is read again."""
    if not starts:
        return _Move(0)
    if starts[-1] == state.rows_from and state.rows_to is not None:
        return _Move(state.rows_to)
    return _Move(starts[-1], starts[-1])


def _state_after(move: _Move, starts: list[int], state: FeedState) -> FeedState:
    """Return the state once the cursor is set. It forgets claimed and accepted cursors: one may have been wrong."""
    state = replace(state, cursor=move.to, claim=None, excess=0)
    if move.delete_from is None:
        return state
    left = [start for start in starts if start < move.delete_from]
    # The end of the page that is the newest one now is not known; it was not after the first deleted page.
    rows = (left[-1], move.delete_from) if left else (None, None)
    return replace(state, rows_from=rows[0], rows_to=rows[1])


def find_row_problems(rows: pa.Table, state: FeedState) -> Iterator[str]:
    """Yield the problems of an account's rows, seen from its cursor."""
    ids = rows["event_id"].drop_null()
    if doubled := _count_repeated(pa.table({"id": ids}), ["id"]):
        yield f"{doubled} event ids occur more than once: the feed repeated them on other pages"
    if unordered := _count_repeated(rows, ["cursor_from", "line_number"]):
        yield f"{unordered} lines of a page are there more than once: the page was loaded twice"
    cursor = state.cursor or 0
    if beyond := pc.sum(pc.greater_equal(rows["cursor_from"], cursor)).as_py():
        yield (
            f"{beyond} rows are of pages from the cursor {cursor} on: it was set back by hand, and the next run loads "
            f"them twice. `feed reset --to {cursor}` deletes them first; `feed rebuild-cursor` skips their pages"
        )
    newest = pc.max(rows["cursor_from"]).as_py()
    if state.rows_from is not None and (newest is None or newest < state.rows_from):
        yield (
            f"the rows of the newest page, after cursor {state.rows_from}, are missing: they were deleted, or the "
            "table was rolled back. `feed rebuild-cursor` has them read again"
        )


def _count_repeated(rows: pa.Table, columns: list[str]) -> int:
    counts = rows.group_by(columns).aggregate([([], "count_all")])["count_all"]
    return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)


def _greatest(column: Any) -> str | None:
    greatest = pc.max(column).as_py()
    return None if greatest is None else format_timestamp(greatest)
