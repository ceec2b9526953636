"""What the page reads from the warehouse."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Table

from outbound_transfer.protocol.models import COMPLETE
from outbound_transfer.ui import statements
from outbound_transfer.ui.cache import ResultCache
from outbound_transfer.ui.filters import Filter, Position, bar_starts
from outbound_transfer.ui.formatting import parse_timestamp
from outbound_transfer.ui.rows import (
    AllowanceRow,
    CallRow,
    CursorRow,
    DeliveryRow,
    FeedRow,
    LeaseRow,
    LedgerRecipientsRow,
    OutcomeRow,
    PickupRow,
    PollRow,
    RecipientRow,
)
from outbound_transfer.ui.sql import Schema
from outbound_transfer.ui.statements import BATCH_SIZE, ESCAPE, MAX_ROWS
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.tables import (
    CALLS,
    DELIVERIES,
    DELIVERY_RECIPIENTS,
    FEED_CURSOR,
    FEED_POLLS,
    KEY_ALLOWANCE,
    POLL_LEASES,
    RECIPIENTS,
    REJECTED_LINES,
    TRANSFERS,
)
from outbound_transfer.warehouse.timestamps import format_timestamp

PAGE_SIZE: Final = 25


class TaskKey(NamedTuple):
    """A task instance. ``map_index`` is -1 if the task is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


class AwaitedTransfer(NamedTuple):
    """A transfer that a task waits for."""

    account: str
    transfer_id: str


_TABLES: Final = (
    DELIVERIES,
    DELIVERY_RECIPIENTS,
    CALLS,
    KEY_ALLOWANCE,
    POLL_LEASES,
    TRANSFERS,
    RECIPIENTS,
    FEED_CURSOR,
    FEED_POLLS,
    REJECTED_LINES,
)


@dataclass(frozen=True)
class Recipients:
    """The recipients of some deliveries.

    :ivar recorded: from the ledger.
    :ivar listed: from the listing.
    """

    recorded: list[LedgerRecipientsRow] = field(default_factory=list)
    listed: list[RecipientRow] = field(default_factory=list)


@dataclass(frozen=True)
class Overview:
    """The rows of the page of all deliveries.

    :ivar tables: the tables that exist.
    :ivar recipients: those of deliveries that not all have picked up.
    :ivar outcomes: counts of all deliveries in the window.
    :ivar deliveries: one page of them, newest first.
    :ivar has_newer: whether there are newer deliveries than these.
    :ivar has_older: whether there are older ones.
    """

    tables: frozenset[Table]
    outcomes: list[OutcomeRow] = field(default_factory=list)
    deliveries: list[DeliveryRow] = field(default_factory=list)
    recipients: Recipients = field(default_factory=Recipients)
    has_newer: bool = False
    has_older: bool = False
    pickups: list[PickupRow] = field(default_factory=list)
    feeds: list[FeedRow] = field(default_factory=list)
    calls: list[CallRow] = field(default_factory=list)
    allowances: list[AllowanceRow] = field(default_factory=list)
    leases: list[LeaseRow] = field(default_factory=list)


@dataclass(frozen=True)
class TaskDeliveries:
    """The rows of the view of one task instance.

    :ivar tables: the tables that exist.
    :ivar awaited: id of the transfer that the task waits for, and has not made; "" if it waits for none.
    """

    tables: frozenset[Table]
    deliveries: list[DeliveryRow] = field(default_factory=list)
    recipients: Recipients = field(default_factory=Recipients)
    awaited: str = ""


def overview(
    warehouse: Warehouse,
    wanted: Filter,
    readable: Collection[str],
    now: datetime,
    cache: ResultCache,
    *,
    shows_recipients: bool = True,
) -> Overview:
    """Read everything that the page shows, over one connection.

    :param readable: ids of the DAGs whose deliveries the user may see.
    :param cache: caches the counts behind the charts, which are expensive and change slowly.
    """
    with warehouse.read() as tx:
        queries = _Queries(warehouse, tx)
        tables = queries.tables
        shared = Overview(
            tables,
            feeds=queries.feeds(),
            calls=queries.calls(now),
            allowances=queries.allowances(),
            leases=queries.leases(),
        )
        if DELIVERIES not in tables:
            return shared
        starts = bar_starts(wanted.days, now)
        dags = queries.dags(starts[0], readable)
        rows, has_newer, has_older = queries.page(wanted, starts[0], dags)
        outcomes, pickups = cache.get_or_compute(
            (tables, warehouse.qualified(DELIVERIES), *starts, *dags),
            lambda: (queries.outcomes(starts, dags), queries.pickups(starts[0], dags)),
        )
        unfinished = [row for row in rows if row.status != COMPLETE]
        return replace(
            shared,
            outcomes=outcomes,
            deliveries=rows,
            recipients=queries.recipients(unfinished) if shows_recipients else Recipients(),
            has_newer=has_newer,
            has_older=has_older,
            pickups=pickups,
        )


def task_deliveries(
    warehouse: Warehouse,
    task: TaskKey,
    readable: Collection[str] = (),
    find_awaited: Callable[[TaskKey], AwaitedTransfer | None] = lambda _: None,
    *,
    shows_recipients: bool = True,
) -> TaskDeliveries:
    """Read the deliveries of one task instance, or that of the transfer that it waits for.

    :param readable: ids of the DAGs whose deliveries the user may see.
    :param find_awaited: finds out which transfer a task that has no deliveries waits for.
    """
    with warehouse.read() as tx:
        queries = _Queries(warehouse, tx)
        if DELIVERIES not in queries.tables:
            return TaskDeliveries(queries.tables)
        rows, awaited = queries.task_deliveries(task), None
        if not rows and (awaited := find_awaited(task)):
            rows = [row for row in queries.delivery(awaited) if row.dag_id in readable]
        recipients = queries.recipients(rows) if shows_recipients else Recipients()
        return TaskDeliveries(queries.tables, rows, recipients, awaited.transfer_id if awaited else "")


def row_position(row: DeliveryRow) -> Position | None:
    """Return where a row stands in the list, for paging. None if it has no creation time."""
    created = parse_timestamp(row.created_at)
    return Position(format_timestamp(created), str(row.transfer_id)) if created else None


class _Queries:
    """Queries over one DB-API cursor.

    :ivar tables: the tables that exist.
    """

    def __init__(self, warehouse: Warehouse, tx: Any) -> None:
        self._warehouse, self._tx = warehouse, tx
        self.tables = frozenset(table for table in _TABLES if self._exists(table))
        self._schema = Schema.of(warehouse, self.tables)

    def _exists(self, table: Table) -> bool:
        if self._warehouse.dialect.exists is not None:
            return self._warehouse.table_exists(self._tx, table)
        with self._warehouse.read() as tx:  # a failed check may make a cursor unusable
            return self._warehouse.table_exists(tx, table)

    def dags(self, since: datetime, readable: Collection[str]) -> list[str]:
        """Return the ids of readable DAGs that have deliveries: far fewer than Airflow may have DAGs."""
        rows = statements.dags(self._schema).fetch(self._tx, since=format_timestamp(since))
        return sorted({row.dag_id for row in rows}.intersection(readable))

    def outcomes(self, starts: Sequence[datetime], dags: list[str]) -> list[OutcomeRow]:
        """Count deliveries by bar of the chart and status."""
        query = statements.outcomes(self._schema, len(starts), len(dags))
        edges = {f"start_{number}": format_timestamp(start) for number, start in enumerate(starts)}
        return query.fetch(self._tx, **_window(starts[0], dags), **edges)

    def page(self, wanted: Filter, since: datetime, dags: list[str]) -> tuple[list[DeliveryRow], bool, bool]:
        """Return a page of deliveries, newest first, and whether there are newer and older ones."""
        position = wanted.newer or wanted.older
        direction = "newer" if wanted.newer else "older" if wanted.older else ""
        query = statements.page(self._schema, len(dags), wanted.status, bool(wanted.search), direction)
        rows = query.fetch(
            self._tx,
            **_window(since, dags),
            pattern=_pattern(wanted.search),
            created_at=position and position.created_at,
            transfer_id=position and position.transfer_id,
            limit=PAGE_SIZE + 1,
        )
        has_more, rows = len(rows) > PAGE_SIZE, rows[:PAGE_SIZE]
        if wanted.newer:
            return rows[::-1], has_more, bool(rows)
        return rows, wanted.older is not None, has_more

    def task_deliveries(self, task: TaskKey) -> list[DeliveryRow]:
        """Return the deliveries of one task instance, newest first."""
        return statements.task_deliveries(self._schema).fetch(self._tx, **task._asdict(), limit=MAX_ROWS)

    def delivery(self, awaited: AwaitedTransfer) -> list[DeliveryRow]:
        """Return one delivery; none if the ledger does not have it."""
        return statements.delivery(self._schema).fetch(self._tx, **awaited._asdict(), limit=1)

    def recipients(self, deliveries: Sequence[DeliveryRow]) -> Recipients:
        """Return the recipients of deliveries. Empty where they are not recorded."""
        found = Recipients()
        for start in range(0, len(deliveries), BATCH_SIZE):
            batch = deliveries[start : start + BATCH_SIZE]
            values = {
                f"{name}_{number}": getattr(batch[min(number, len(batch) - 1)], name)
                for name in ("account", "transfer_id")
                for number in range(BATCH_SIZE)
            }
            if DELIVERY_RECIPIENTS in self.tables:
                found.recorded.extend(statements.ledger_recipients(self._schema).fetch(self._tx, **values))
            if RECIPIENTS in self.tables:
                found.listed.extend(statements.recipients(self._schema).fetch(self._tx, **values))
        return found

    def pickups(self, since: datetime, dags: list[str]) -> list[PickupRow]:
        """Return the pickups of the latest deliveries. Empty if recipients are not recorded."""
        if RECIPIENTS not in self.tables:
            return []
        return statements.pickups(self._schema, len(dags)).fetch(self._tx, **_window(since, dags))

    def feeds(self) -> list[FeedRow]:
        """Return the state of each account's event feed."""
        if FEED_CURSOR not in self.tables:
            return []
        rejected = self._rejected()
        cursors = statements.cursors(self._schema).fetch(self._tx)
        return [self._feed(row, rejected.get(row.account, 0)) for row in cursors]

    def _feed(self, row: CursorRow, rejected_count: int) -> FeedRow:
        poll, page = self._last_poll(row.account, is_loaded=False), self._last_poll(row.account, is_loaded=True)
        return FeedRow(
            account=row.account,
            cursor=row.cursor,
            updated_at=row.updated_at,
            polled_at=poll.polled_at,
            status=poll.status,
            note=poll.note,
            loaded_at=page.polled_at,
            has_more=page.has_more,
            rejected_count=rejected_count,
        )

    def _last_poll(self, account: str, *, is_loaded: bool) -> PollRow:
        if FEED_POLLS not in self.tables:
            return PollRow()
        rows = statements.last_poll(self._schema, is_loaded).fetch(self._tx, account=account)
        return rows[0] if rows else PollRow()

    def _rejected(self) -> dict[str, int]:
        if REJECTED_LINES not in self.tables:
            return {}
        rows = statements.rejected(self._schema).fetch(self._tx)
        return {row.account: row.rejected_count for row in rows}

    def calls(self, now: datetime) -> list[CallRow]:
        """Count the calls of the last hour by connection and minute."""
        if CALLS not in self.tables:
            return []
        return statements.calls(self._schema).fetch(self._tx, since=format_timestamp(now - timedelta(hours=1)))

    def allowances(self) -> list[AllowanceRow]:
        return statements.allowances(self._schema).fetch(self._tx) if KEY_ALLOWANCE in self.tables else []

    def leases(self) -> list[LeaseRow]:
        return statements.leases(self._schema).fetch(self._tx) if POLL_LEASES in self.tables else []


def _pattern(search: str) -> str:
    """Return the LIKE pattern of texts that contain ``search``, character by character, in lower case."""
    return "%" + re.sub(r"[!%_]", lambda match: ESCAPE + match[0], search.lower()) + "%"


def _window(since: datetime, dags: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a window of time and of DAGs."""
    return {"since": format_timestamp(since)} | {f"dag_{number}": dag_id for number, dag_id in enumerate(dags)}
