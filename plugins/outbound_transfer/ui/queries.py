"""What the page reads from the warehouse. Each statement is bounded by a time window, a key or a limit.

Rows have values as the database drivers return them: a timestamp may be a datetime or ISO 8601 text, and JSON may be
decoded. :mod:`.view_models` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import Table

from outbound_transfer.protocol.models import COMPLETE, DRAFT
from outbound_transfer.protocol.outcomes import IN_DOUBT
from outbound_transfer.ui.filters import IN_FLIGHT, LEDGER_TERMINAL_STATUSES, WITH_ERROR, Filter, Position, window_start
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.tables import (
    DELIVERIES,
    DELIVERY_RECIPIENTS,
    FEED_CURSOR,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    TRANSFERS,
)
from outbound_transfer.warehouse.timestamps import format_timestamp, parse_timestamp

PAGE_SIZE: Final = 25

#: Maximum number of feeds, of deliveries of one task instance, and of recipients of one delivery.
MAX_ROWS: Final = 250

#: Escapes the wildcards of a search.
_ESCAPE: Final = "!"

_TABLES: Final = (
    DELIVERIES,
    DELIVERY_RECIPIENTS,
    TRANSFERS,
    RECIPIENTS,
    FEED_CURSOR,
    FEED_POLLS,
    REJECTED_LINES,
)

_COLUMNS: Final = (
    "account", "transfer_id", "conn_id", "dag_id", "task_id", "run_id", "map_index", "try_number", "subject", "error",
    "files", "size_bytes", "recipient_count", "created_at", "sent_at", "expires_at", "finished_at",
)  # fmt: skip

_TERMINAL: Final = ", ".join(f"'{status}'" for status in LEDGER_TERMINAL_STATUSES)

# The ledger has what a delivery's own tasks saw; the transfers' table what the listing says. The newer one counts.
# Nothing follows a terminal status, so only deliveries that may still change are joined.
_WITH_LISTING: Final = (
    "{deliveries} d LEFT JOIN {transfers} t ON t.[account] = d.[account] AND t.[transfer_id] = d.[transfer_id]"
    f" AND d.[status] NOT IN ({_TERMINAL})"
)
_NEWER_STATUS: Final = (
    f"CASE WHEN d.[status] IN ({_TERMINAL}) OR t.[status] IS NULL THEN d.[status]"
    f" WHEN t.[status] IN ({_TERMINAL}) OR t.[seen_at] >= d.[updated_at] THEN t.[status] ELSE d.[status] END"
)
_MORE_PICKUPS: Final = (
    "CASE WHEN t.[picked_up_count] > d.[picked_up_count] THEN t.[picked_up_count] ELSE d.[picked_up_count] END"
)

#: A row by its columns' names.
Row: TypeAlias = dict[str, Any]


class TaskKey(NamedTuple):
    """A task instance. ``map_index`` is -1 if the task is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclass(frozen=True)
class Recipients:
    """The recipients of some deliveries.

    :ivar recorded: from the ledger: a row for each delivery, with JSON.
    :ivar listed: from the listing: a row for each recipient, in order.
    """

    recorded: list[Row] = field(default_factory=list)
    listed: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Overview:
    """The rows of the page of all deliveries.

    :ivar tables: the tables that exist.
    :ivar outcomes: counts of all deliveries in the window, by status.
    :ivar deliveries: one page of them, newest first.
    :ivar recipients: those of deliveries that not all have picked up.
    :ivar has_older: whether there are older ones.
    :ivar feeds: of each account's event feed, the cursor, the last poll and the last loaded page.
    """

    tables: frozenset[Table]
    outcomes: list[Row] = field(default_factory=list)
    deliveries: list[Row] = field(default_factory=list)
    recipients: Recipients = field(default_factory=Recipients)
    has_older: bool = False
    feeds: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class TaskDeliveries:
    """The rows of the view of one task instance.

    :ivar tables: the tables that exist.
    """

    tables: frozenset[Table]
    deliveries: list[Row] = field(default_factory=list)
    recipients: Recipients = field(default_factory=Recipients)


def overview(
    warehouse: Warehouse,
    wanted: Filter,
    readable: Collection[str],
    now: datetime,
    *,
    shows_recipients: bool = True,
) -> Overview:
    """Read everything that the page shows, over one connection.

    :param readable: ids of the DAGs whose deliveries the user may see.
    """
    with warehouse.read() as tx:
        reader = _Reader(warehouse, tx)
        shared = Overview(reader.tables, feeds=reader.feeds())
        start = format_timestamp(window_start(wanted.days, now))
        dags = reader.dags(start, readable)
        if not dags:
            return shared
        window = _Conditions(f"d.[created_at] >= ? AND d.[dag_id] IN ({_marks(dags)})", (start, *dags))
        rows, has_older = reader.page(wanted, window)
        unfinished = [row for row in rows if row["status"] != COMPLETE]
        return replace(
            shared,
            outcomes=reader.outcomes(window),
            deliveries=rows,
            recipients=reader.recipients(unfinished) if shows_recipients else Recipients(),
            has_older=has_older,
        )


def task_deliveries(warehouse: Warehouse, task: TaskKey, *, shows_recipients: bool = True) -> TaskDeliveries:
    """Read the deliveries of one task instance."""
    with warehouse.read() as tx:
        reader = _Reader(warehouse, tx)
        if DELIVERIES not in reader.tables:
            return TaskDeliveries(reader.tables)
        of_task = _Conditions(" AND ".join(f"d.[{name}] = ?" for name in task._fields), tuple(task))
        rows = reader.deliveries(of_task, MAX_ROWS)
        return TaskDeliveries(reader.tables, rows, reader.recipients(rows) if shows_recipients else Recipients())


def row_position(row: Row) -> Position | None:
    """Return where a delivery stands in the list, for paging. None if it has no creation time."""
    created = parse_timestamp(row["created_at"])
    return Position(format_timestamp(created), str(row["transfer_id"])) if created else None


class _Conditions(NamedTuple):
    """Conditions of deliveries ``d`` in the form that :meth:`.Warehouse.render` takes, and their parameters."""

    sql: str
    parameters: tuple[Any, ...]

    def and_(self, sql: str, *parameters: Any) -> _Conditions:
        return _Conditions(f"{self.sql} AND {sql}", (*self.parameters, *parameters))


def _marks(values: Collection[Any]) -> str:
    return ", ".join("?" for _ in values)


class _Reader:
    """Runs the page's statements over one DB-API cursor.

    :ivar tables: the tables that exist.
    """

    def __init__(self, warehouse: Warehouse, tx: Any) -> None:
        self._warehouse, self._tx = warehouse, tx
        self.tables = frozenset(table for table in _TABLES if self._exists(table))
        is_listed = TRANSFERS in self.tables
        self._source = _WITH_LISTING if is_listed else "{deliveries} d"
        self._status = _NEWER_STATUS if is_listed else "d.[status]"
        self._picked_up_count = _MORE_PICKUPS if is_listed else "d.[picked_up_count]"

    def _exists(self, table: Table) -> bool:
        if self._warehouse.dialect.exists is not None:
            return self._warehouse.table_exists(self._tx, table)
        with self._warehouse.read() as tx:  # a failed check may make a cursor unusable
            return self._warehouse.table_exists(tx, table)

    def _fetch(self, table: Table, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query. Empty if ``table``, which it reads, does not exist."""
        if table not in self.tables:
            return []
        self._warehouse.run(self._tx, statement, tuple(parameters))
        names = [column[0] for column in self._tx.description]
        return [dict(zip(names, row, strict=True)) for row in fetch_all(self._tx)]

    def dags(self, since: str, readable: Collection[str]) -> list[str]:
        """Return the ids of readable DAGs that have deliveries: far fewer than Airflow may have DAGs."""
        query = "SELECT DISTINCT [dag_id] FROM {deliveries} WHERE [created_at] >= ?"
        rows = self._fetch(DELIVERIES, query, [since])
        return sorted({row["dag_id"] for row in rows}.intersection(readable))

    def deliveries(self, conditions: _Conditions, limit: int) -> list[Row]:
        """Return deliveries, newest first."""
        return self._fetch(
            DELIVERIES,
            f"SELECT {', '.join(f'd.[{name}]' for name in _COLUMNS)}, {self._status} AS [status],"  # noqa: S608
            f" {self._picked_up_count} AS [picked_up_count] FROM {self._source} WHERE {conditions.sql}"
            f" ORDER BY d.[created_at] DESC, d.[transfer_id] DESC LIMIT {limit}",
            conditions.parameters,
        )

    def page(self, wanted: Filter, conditions: _Conditions) -> tuple[list[Row], bool]:
        """Return a page of deliveries, newest first, and whether there are older ones."""
        if wanted.status == WITH_ERROR:
            conditions = conditions.and_("d.[error] IS NOT NULL")
        elif wanted.status == IN_FLIGHT:
            conditions = conditions.and_(f"{self._status} NOT IN (?, ?, {_TERMINAL})", DRAFT, IN_DOUBT)
        elif wanted.status:
            conditions = conditions.and_(f"{self._status} = ?", wanted.status)
        if wanted.search:
            searched = (f"LOWER(d.[{name}]) LIKE ? ESCAPE '{_ESCAPE}'" for name in ("transfer_id", "subject", "dag_id"))
            conditions = conditions.and_(f"({' OR '.join(searched)})", *[_pattern(wanted.search)] * 3)
        if position := wanted.older:
            # The first condition follows from the second one. An index helps with the first one alone.
            conditions = conditions.and_(
                "d.[created_at] <= ? AND (d.[created_at] < ? OR d.[transfer_id] < ?)",
                position.created_at, position.created_at, position.transfer_id,
            )  # fmt: skip
        rows = self.deliveries(conditions, PAGE_SIZE + 1)
        return rows[:PAGE_SIZE], len(rows) > PAGE_SIZE

    def outcomes(self, conditions: _Conditions) -> list[Row]:
        """Count deliveries by status."""
        return self._fetch(
            DELIVERIES,
            f"SELECT [status], COUNT(*) AS [delivery_count] FROM (SELECT {self._status} AS [status]"  # noqa: S608
            f" FROM {self._source} WHERE {conditions.sql}) counted GROUP BY [status]",
            conditions.parameters,
        )

    def recipients(self, deliveries: Sequence[Row]) -> Recipients:
        """Return the recipients of deliveries, and of some that have the id of one and the account of another."""
        if not deliveries:
            return Recipients()
        keys = [sorted({row[name] for row in deliveries}) for name in ("account", "transfer_id")]
        where = f"WHERE [account] IN ({_marks(keys[0])}) AND [transfer_id] IN ({_marks(keys[1])})"
        parameters = [*keys[0], *keys[1]]
        return Recipients(
            recorded=self._fetch(
                DELIVERY_RECIPIENTS,
                f"SELECT [account], [transfer_id], [recipients] FROM {{delivery_recipients}} {where}",  # noqa: S608
                parameters,
            ),
            listed=self._fetch(
                RECIPIENTS,
                "SELECT [account], [transfer_id], [email], [name], [picked_up_at] FROM {recipients}"  # noqa: S608
                f" {where} ORDER BY [account], [transfer_id], [position] LIMIT {MAX_ROWS * len(deliveries)}",
                parameters,
            ),
        )

    def feeds(self) -> list[Row]:
        """Return the cursor of each account's event feed, with its last poll, its last loaded page and its rejected
        lines. What is not known is not in the row.
        """
        query = "SELECT [account], COUNT(*) AS [rejected_count] FROM {rejected_lines} GROUP BY [account]"
        rejected = {row["account"]: row for row in self._fetch(REJECTED_LINES, query)}
        query = f"SELECT [account], [cursor], [updated_at] FROM {{feed_cursor}} ORDER BY [account] LIMIT {MAX_ROWS}"  # noqa: S608
        return [
            row
            | rejected.get(row["account"], {})
            | self._last_poll(row["account"], "[polled_at], [status], [note]")
            | self._last_poll(row["account"], "[polled_at] AS [loaded_at], [has_more]", "AND [cursor_to] IS NOT NULL")
            for row in self._fetch(FEED_CURSOR, query)
        ]

    def _last_poll(self, account: str, columns: str, condition: str = "") -> Row:
        query = (
            f"SELECT {columns} FROM {{feed_polls}} WHERE [account] = ? AND [action] = 'poll' {condition}"  # noqa: S608
            " ORDER BY [polled_at] DESC LIMIT 1"
        )
        rows = self._fetch(FEED_POLLS, query, [account])
        return rows[0] if rows else {}


def _pattern(search: str) -> str:
    """Return the LIKE pattern of texts that contain ``search``, character by character, in lower case."""
    return "%" + re.sub(r"[!%_]", lambda match: _ESCAPE + match[0], search.lower()) + "%"
