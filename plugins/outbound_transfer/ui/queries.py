"""What the page asks of the warehouse: portable SQL, each statement bounded by a window of time, a key or a limit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from outbound_transfer.protocol.models import DRAFT
from outbound_transfer.ui.filters import FAILED, FINAL, IN_FLIGHT, Filter, Position, bounds
from outbound_transfer.ui.kept import Kept
from outbound_transfer.ui.text import moment
from outbound_transfer.warehouse.database import Warehouse, rows_of
from outbound_transfer.warehouse.rows import instant
from outbound_transfer.warehouse.tables import (
    CALLS,
    DELIVERIES,
    FEED_CURSOR,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    TRANSFERS,
    Table,
)

Rows = list[tuple[Any, ...]]

PAGE: Final = 25

#: Of so many of the latest deliveries, the pickups are plotted.
PICKUPS_OF: Final = 1_000

#: Deliveries that one task instance is shown with, feeds, and the recipients of one delivery: more are not read.
MANY: Final = 250

#: More than there can be. A planner that looks through the subselect takes each instant for a group of its own, and
#: sorts them all; it does not look through a limit.
_ALL: Final = 2**62

_TABLES: Final = (DELIVERIES, CALLS, TRANSFERS, RECIPIENTS, FEED_CURSOR, FEED_POLLS, REJECTED_LINES)

_KNOWN_FINAL: Final = ", ".join(f"'{status}'" for status in FINAL)

#: The ledger knows of a delivery what its own tasks saw, the transfers' table what the listing says: the newer holds,
#: and nothing follows a final status.
_NEWER_STATUS: Final = (
    f"CASE WHEN d.[status] IN ({_KNOWN_FINAL}) OR t.[status] IS NULL THEN d.[status]"
    f" WHEN t.[status] IN ({_KNOWN_FINAL}) OR t.[seen_at] >= d.[updated_at] THEN t.[status] ELSE d.[status] END"
)
_MORE_COLLECTED: Final = "CASE WHEN t.[collected] > d.[collected] THEN t.[collected] ELSE d.[collected] END"
#: Only what may still change is looked for.
_BESIDE: Final = (
    "{deliveries} d LEFT JOIN {transfers} t ON t.[account] = d.[account] AND t.[transfer_id] = d.[transfer_id]"
    f" AND d.[status] NOT IN ({_KNOWN_FINAL})"
)

#: The columns of a delivery, as :func:`.shapes.delivery` takes them. Each has its own name: some drivers go by that.
_COLUMNS: Final = (
    "d.[account], d.[transfer_id], d.[conn_id], d.[dag_id], d.[task_id], d.[run_id], d.[map_index], d.[try_number],"
    " d.[subject], {status} AS status, d.[error], d.[files], d.[bytes], d.[recipients], {collected} AS collected,"
    " d.[created_at], d.[sent_at], d.[expires_at], d.[ended_at]"
)


@dataclass(frozen=True)
class Overview:
    """The rows behind the page.

    :ivar has: which tables there are.
    :ivar outcomes: bar of the plot, status, how many: all deliveries of the window.
    :ivar deliveries: a page of them; ``before`` and ``after``: whether there are newer and older ones.
    :ivar pickups: ``sent_at``, ``picked_up_at``.
    :ivar feeds: feed, cursor, ``updated_at``, last poll, last landed page, rejected lines.
    :ivar calls: connection, minute, calls, those answered 429, those that failed.
    """

    has: frozenset[Table]
    outcomes: Rows = field(default_factory=list)
    deliveries: Rows = field(default_factory=list)
    before: bool = False
    after: bool = False
    pickups: Rows = field(default_factory=list)
    feeds: Rows = field(default_factory=list)
    calls: Rows = field(default_factory=list)


@dataclass(frozen=True)
class OfTask:
    """The rows behind the view of a task instance; ``recipients``: transfer's id, address, name, ``picked_up_at``."""

    has: frozenset[Table]
    deliveries: Rows = field(default_factory=list)
    recipients: Rows = field(default_factory=list)


def overview(warehouse: Warehouse, wanted: Filter, readable: Collection[str], now: datetime, kept: Kept) -> Overview:
    """Everything that the page shows, over one connection.

    :param readable: the DAGs whose deliveries may be seen.
    :param kept: where the counts behind the plots are found, which are dear and change little.
    """
    with warehouse.reading() as cursor:
        reader = _Reader(warehouse, cursor)
        has = reader.has
        if DELIVERIES not in has:
            return Overview(has, feeds=reader.feeds(), calls=reader.calls(now))
        starts = bounds(wanted.days, now)
        dags = reader.dags(starts[0], readable)
        rows, before, after = reader.page(wanted, starts[0], dags)
        outcomes, pickups = kept(
            (has, warehouse.qualified(DELIVERIES), *starts, *dags),
            lambda: (reader.outcomes(starts, dags), reader.pickups(starts[0], dags)),
        )
        return Overview(has, outcomes, rows, before, after, pickups, reader.feeds(), reader.calls(now))


def of_task(warehouse: Warehouse, dag_id: str, run_id: str, task_id: str, map_index: int) -> OfTask:
    """The deliveries of one task instance."""
    with warehouse.reading() as cursor:
        reader = _Reader(warehouse, cursor)
        if DELIVERIES not in reader.has:
            return OfTask(reader.has)
        where = "d.[run_id] = ? AND d.[dag_id] = ? AND d.[task_id] = ? AND d.[map_index] = ?"
        rows = reader.deliveries(where, (run_id, dag_id, task_id, map_index), "DESC", MANY)
        return OfTask(reader.has, rows, [each for row in rows for each in reader.recipients(*row[:2])])


class _Reader:
    """Statements over one cursor."""

    def __init__(self, warehouse: Warehouse, cursor: Any) -> None:
        self._warehouse, self._cursor = warehouse, cursor
        self.has = frozenset(table for table in _TABLES if self._has(table))
        beside = TRANSFERS in self.has
        self._source = _BESIDE if beside else "{deliveries} d"
        self._status = _NEWER_STATUS if beside else "d.[status]"
        self._collected = _MORE_COLLECTED if beside else "d.[collected]"

    def _has(self, table: Table) -> bool:
        if self._warehouse.dialect.exists is not None:
            return self._warehouse.has(self._cursor, table)
        with self._warehouse.reading() as cursor:  # where the table is missing, this one is of no further use
            return self._warehouse.has(cursor, table)

    def _rows(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        return rows_of(self._warehouse.run(self._cursor, statement, parameters))

    def dags(self, since: datetime, readable: Collection[str]) -> list[str]:
        """Those of the readable DAGs that have deliveries: far fewer than Airflow may have DAGs."""
        found = self._rows("SELECT DISTINCT [dag_id] FROM {deliveries} WHERE [created_at] >= ?", (instant(since),))
        return sorted({row[0] for row in found}.intersection(readable))

    def outcomes(self, starts: Sequence[datetime], dags: list[str]) -> Rows:
        """Bar, status, how many."""
        where, parameters = _all(_since(starts[0]), _of_dags(dags))
        bar, edges = _bar("d.[created_at]", list(map(instant, starts)))
        return self._rows(
            f"SELECT bar, status, count(*) FROM (SELECT {bar} AS bar, {self._status} AS status"  # noqa: S608
            f" FROM {self._source} WHERE {where} LIMIT {_ALL}) counted GROUP BY bar, status",
            (*edges, *parameters),
        )

    def page(self, wanted: Filter, since: datetime, dags: list[str]) -> tuple[Rows, bool, bool]:
        """A page of deliveries, newest first, and whether there are newer and older ones."""
        position, sign, order = wanted.older, "<", "DESC"
        if wanted.newer:
            position, sign, order = wanted.newer, ">", "ASC"
        where, parameters = _all(
            _since(since), _of_dags(dags), self._of_status(wanted.status), _found(wanted.search), _from(position, sign)
        )
        rows = self.deliveries(where, parameters, order, PAGE + 1)
        more, rows = len(rows) > PAGE, rows[:PAGE]
        if wanted.newer:
            return rows[::-1], more, bool(rows)
        return rows, position is not None, more

    def deliveries(self, where: str, parameters: Sequence[Any], order: str, most: int) -> Rows:
        columns = _COLUMNS.format(status=self._status, collected=self._collected)
        return self._rows(
            f"SELECT {columns} FROM {self._source} WHERE {where}"  # noqa: S608
            f" ORDER BY d.[created_at] {order}, d.[transfer_id] {order} LIMIT {most}",
            parameters,
        )

    def _of_status(self, status: str) -> tuple[str, Sequence[Any]]:
        if status == FAILED:
            return "d.[error] IS NOT NULL", ()
        if status == IN_FLIGHT:
            return f"{self._status} NOT IN ('{DRAFT}', {_KNOWN_FINAL})", ()
        return (f"{self._status} = ?", (status,)) if status else ("", ())

    def recipients(self, account: str, transfer_id: str) -> Rows:
        if RECIPIENTS not in self.has:
            return []
        return self._rows(
            "SELECT [transfer_id], [email], [name], [picked_up_at] FROM {recipients}"  # noqa: S608
            f" WHERE [account] = ? AND [transfer_id] = ? ORDER BY [position] LIMIT {MANY}",
            (account, transfer_id),
        )

    def pickups(self, since: datetime, dags: list[str]) -> Rows:
        """When the latest deliveries were sent and recipients picked up; nothing where recipients are not kept."""
        if RECIPIENTS not in self.has:
            return []
        where, parameters = _all(_since(since), _of_dags(dags), ("d.[sent_at] IS NOT NULL", ()))
        return self._rows(
            "SELECT s.[sent_at], r.[picked_up_at] FROM (SELECT d.[account], d.[transfer_id], d.[sent_at]"  # noqa: S608
            f" FROM {{deliveries}} d WHERE {where} ORDER BY d.[created_at] DESC LIMIT {PICKUPS_OF}) s"
            " JOIN {recipients} r ON r.[account] = s.[account] AND r.[transfer_id] = s.[transfer_id]"
            " WHERE r.[picked_up_at] IS NOT NULL",
            parameters,
        )

    def feeds(self) -> Rows:
        """Feed, cursor, ``updated_at``, then when the last poll was, its HTTP status and note, when the last page was
        landed and whether there was more after it, and how many lines were rejected."""
        if FEED_CURSOR not in self.has:
            return []
        rejected: dict[str, int] = dict(self._rejected())
        cursors = self._rows("SELECT [feed], [cursor], [updated_at] FROM {feed_cursor} ORDER BY [feed]")[:MANY]
        return [
            (*row, *self._last_poll(row[0], ""), *self._last_poll(row[0], " AND [cursor_to] IS NOT NULL"),
             rejected.get(row[0], 0))
            for row in cursors
        ]  # fmt: skip

    def _last_poll(self, feed: str, more: str) -> tuple[Any, ...]:
        """When, HTTP status, note, whether there was more."""
        if FEED_POLLS not in self.has:
            return (None, None, None, None)
        statement = (
            "SELECT [polled_at], [status], [note], [has_more] FROM {feed_polls}"  # noqa: S608
            f" WHERE [feed] = ? AND [action] = 'poll'{more} ORDER BY [polled_at] DESC LIMIT 1"
        )
        return next(iter(self._rows(statement, (feed,))), (None, None, None, None))

    def _rejected(self) -> Rows:
        if REJECTED_LINES not in self.has:
            return []
        return self._rows("SELECT [feed], count(*) FROM {rejected_lines} GROUP BY [feed]")

    def calls(self, now: datetime) -> Rows:
        """Connection, minute, calls, those answered 429, those that failed otherwise; the last hour."""
        if CALLS not in self.has:
            return []
        return self._rows(
            "SELECT [conn_id], [minute], sum([calls]) AS made,"
            " sum(CASE WHEN [status] = 429 THEN [calls] ELSE 0 END) AS limited,"
            " sum(CASE WHEN [status] >= 500 OR [status] = 0 THEN [calls] ELSE 0 END) AS failed"
            " FROM {calls} WHERE [minute] > ? GROUP BY [conn_id], [minute] ORDER BY [conn_id], [minute]",
            (instant(now - timedelta(hours=1)),),
        )


Clause = tuple[str, Sequence[Any]]


def _all(*clauses: Clause) -> tuple[str, list[Any]]:
    """All of them that say something."""
    said = [(text, parameters) for text, parameters in clauses if text]
    return " AND ".join(text for text, _ in said), [each for _, parameters in said for each in parameters]


def _since(since: datetime) -> Clause:
    return "d.[created_at] >= ?", (instant(since),)


def _of_dags(dags: Sequence[str]) -> Clause:
    return (f"d.[dag_id] IN ({', '.join('?' * len(dags))})", dags) if dags else ("1 = 0", ())


def _found(search: str) -> Clause:
    if not search:
        return "", ()
    pattern = "%" + "".join(f"!{each}" if each in "!%_" else each for each in search.lower()) + "%"
    columns = ("d.[transfer_id]", "d.[subject]", "d.[dag_id]")
    return f"({' OR '.join(f'lower({each}) LIKE ? ESCAPE {_ESCAPE}' for each in columns)})", (pattern,) * len(columns)


_ESCAPE: Final = "'!'"


def _from(position: Position | None, sign: str) -> Clause:
    if position is None:
        return "", ()
    # Both halves, as an index helps with the first one alone.
    text = f"d.[created_at] {sign}= ? AND (d.[created_at] {sign} ? OR d.[transfer_id] {sign} ?)"
    return text, (position.created_at, position.created_at, position.transfer_id)


def _bar(column: str, starts: Sequence[str], first: int = 0) -> tuple[str, list[str]]:
    """In which of the bars an instant is: halved again and again, as databases agree on nothing else about dates."""
    if len(starts) == 1:
        return str(first), []
    half = len(starts) // 2
    (below, edges), (above, more) = _bar(column, starts[:half], first), _bar(column, starts[half:], first + half)
    return f"CASE WHEN {column} < ? THEN {below} ELSE {above} END", [starts[half], *edges, *more]


def position_of(row: Sequence[Any]) -> Position | None:
    """Where a row of the list stands, for paging."""
    created = moment(row[15])
    return Position(instant(created), str(row[1])) if created else None
