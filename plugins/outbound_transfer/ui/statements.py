"""The page's SQL statements. Each is bounded by a time window, a key or a limit.

A statement is built once for each schema and number of values, as building takes longer than running some of them.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Integer, and_, bindparam, case, false, func, literal_column, or_, select
from sqlalchemy.sql.base import ColumnCollection
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.selectable import FromClause

from outbound_transfer.protocol.models import DRAFT
from outbound_transfer.protocol.outcomes import IN_DOUBT
from outbound_transfer.ui.filters import IN_FLIGHT, LEDGER_TERMINAL_STATUSES, WITH_ERROR
from outbound_transfer.ui.rows import (
    AllowanceRow,
    CallRow,
    CursorRow,
    DagRow,
    DeliveryRow,
    LeaseRow,
    LedgerRecipientsRow,
    OutcomeRow,
    PickupRow,
    PollRow,
    RecipientRow,
    RejectedRow,
)
from outbound_transfer.ui.sql import Query, Schema
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

#: The pickup times of this many of the latest deliveries are plotted.
PICKUP_SAMPLE: Final = 1_000

#: Maximum number of feeds, of deliveries of one task instance, and of recipients of one delivery.
MAX_ROWS: Final = 250

#: Number of transfers whose recipients are read at once.
BATCH_SIZE: Final = 25

#: Escapes the wildcards of a search.
ESCAPE: Final = "!"

#: More rows than a table can have. Without a limit, PostgreSQL's planner merges the subselect into the outer query,
#: takes each timestamp for a group of its own, and sorts them all.
_NO_LIMIT: Final = 2**62

_cached: Final = lru_cache(maxsize=128)


def _parameter(name: str) -> BindParameter[Any]:
    return bindparam(name, None)  # a value is given with each run


class _Deliveries:
    """The deliveries, joined with the listed transfers if there are any.

    The ledger has what a delivery's own tasks saw; the transfers' table what the listing says. The newer one counts.
    Nothing follows a terminal status, so only deliveries that may still change are joined.

    :ivar table: the table of deliveries alone.
    """

    def __init__(self, schema: Schema) -> None:
        self.table: FromClause = schema.table(DELIVERIES, "d")
        self.joined = self.table
        d = self.c = self.table.c
        self.status: ColumnElement[Any] = d.status
        self.picked_up_count: ColumnElement[Any] = d.picked_up_count
        if TRANSFERS in schema:
            listed = schema.table(TRANSFERS, "t")
            t = listed.c
            self.status = case(
                (or_(d.status.in_(LEDGER_TERMINAL_STATUSES), t.status.is_(None)), d.status),
                (or_(t.status.in_(LEDGER_TERMINAL_STATUSES), t.seen_at >= d.updated_at), t.status),
                else_=d.status,
            )
            self.picked_up_count = case(
                (t.picked_up_count > d.picked_up_count, t.picked_up_count), else_=d.picked_up_count
            )
            may_change = d.status.not_in(LEDGER_TERMINAL_STATUSES)
            self.joined = self.table.outerjoin(
                listed, and_(t.account == d.account, t.transfer_id == d.transfer_id, may_change)
            )

    def in_window(self, dag_count: int) -> list[ColumnElement[bool]]:
        """Return the conditions of all deliveries that are counted and listed.

        Parameters: ``since`` and ``dag_0``, ``dag_1``, … .
        """
        dags = [_parameter(f"dag_{number}") for number in range(dag_count)]
        return [self.c.created_at >= _parameter("since"), self.c.dag_id.in_(dags) if dags else false()]

    def fetch(self, schema: Schema, conditions: list[ColumnElement[bool]], *, newest_first: bool) -> Query[DeliveryRow]:
        """Return a query for deliveries. Parameter: ``limit``."""
        newer = {"status": self.status, "picked_up_count": self.picked_up_count}
        columns = (newer.get(name, self.c[name]).label(name) for name in DeliveryRow._fields)
        order = [each.desc() if newest_first else each.asc() for each in (self.c.created_at, self.c.transfer_id)]
        statement = select(*columns).select_from(self.joined).where(*conditions).order_by(*order)
        return schema.prepare(statement.limit(_parameter("limit")), DeliveryRow)


@_cached
def dags(schema: Schema) -> Query[DagRow]:
    """DAGs that have deliveries. Parameter: ``since``."""
    d = _Deliveries(schema).c
    return schema.prepare(select(d.dag_id).where(d.created_at >= _parameter("since")).distinct(), DagRow)


@_cached
def page(schema: Schema, dag_count: int, status: str, is_search: bool, position: str) -> Query[DeliveryRow]:
    """One page of deliveries.

    Parameters: those of :meth:`_Deliveries.in_window`, ``limit``, and ``pattern``, ``created_at`` and ``transfer_id``.

    :param status: a key of :data:`~outbound_transfer.ui.filters.CHOICES`.
    :param is_search: whether transfer id, subject or DAG id must be like ``pattern``.
    :param position: ``older`` or ``newer`` than ``created_at`` and ``transfer_id``; or "".
    """
    deliveries = _Deliveries(schema)
    d = deliveries.c
    conditions = deliveries.in_window(dag_count)
    if status == WITH_ERROR:
        conditions.append(d.error.is_not(None))
    elif status == IN_FLIGHT:
        conditions.append(deliveries.status.not_in((DRAFT, IN_DOUBT, *LEDGER_TERMINAL_STATUSES)))
    elif status:
        conditions.append(deliveries.status == status)
    if is_search:
        pattern = _parameter("pattern")
        searched = (d.transfer_id, d.subject, d.dag_id)
        conditions.append(or_(*(func.lower(each).like(pattern, escape=ESCAPE) for each in searched)))
    if position:
        within, beyond = (operator.ge, operator.gt) if position == "newer" else (operator.le, operator.lt)
        created_at, transfer_id = _parameter("created_at"), _parameter("transfer_id")
        # The first condition follows from the second one. An index helps with the first one alone.
        conditions.append(within(d.created_at, created_at))
        conditions.append(or_(beyond(d.created_at, created_at), beyond(d.transfer_id, transfer_id)))
    return deliveries.fetch(schema, conditions, newest_first=position != "newer")


@_cached
def task_deliveries(schema: Schema) -> Query[DeliveryRow]:
    """The deliveries of one task instance.

    Parameters: ``run_id``, ``dag_id``, ``task_id``, ``map_index`` and ``limit``.
    """
    deliveries = _Deliveries(schema)
    names = ("run_id", "dag_id", "task_id", "map_index")
    conditions = [deliveries.c[name] == _parameter(name) for name in names]
    return deliveries.fetch(schema, conditions, newest_first=True)


@_cached
def outcomes(schema: Schema, bar_count: int, dag_count: int) -> Query[OutcomeRow]:
    """Deliveries by bar of the chart and status.

    Parameters: those of :meth:`_Deliveries.in_window`, and ``start_1``, ``start_2``, …: where each bar but the first
    starts.
    """
    deliveries = _Deliveries(schema)
    counted = (
        select(_bar(deliveries.c.created_at, 0, bar_count).label("bar"), deliveries.status.label("status"))
        .select_from(deliveries.joined)
        .where(*deliveries.in_window(dag_count))
        .limit(_NO_LIMIT)
        .subquery("counted")
    )
    statement = select(counted.c.bar, counted.c.status, func.count().label("delivery_count"))
    return schema.prepare(statement.group_by(counted.c.bar, counted.c.status), OutcomeRow)


def _bar(timestamp: ColumnElement[Any], first: int, last: int) -> ColumnElement[Any]:
    """Find the bar of a timestamp by binary search: databases share no functions for dates."""
    if last - first == 1:
        return literal_column(str(first), Integer)
    middle = (first + last) // 2
    return case(
        (timestamp < _parameter(f"start_{middle}"), _bar(timestamp, first, middle)), else_=_bar(timestamp, middle, last)
    )


@_cached
def pickups(schema: Schema, dag_count: int) -> Query[PickupRow]:
    """The pickups of the latest deliveries. Parameters: those of :meth:`_Deliveries.in_window`."""
    deliveries, recipients = _Deliveries(schema), schema.table(RECIPIENTS, "r")
    d, r = deliveries.c, recipients.c
    latest = (
        select(d.account, d.transfer_id, d.sent_at)
        .where(*deliveries.in_window(dag_count), d.sent_at.is_not(None))
        .order_by(d.created_at.desc())
        .limit(PICKUP_SAMPLE)
        .subquery("s")
    )
    is_same = and_(r.account == latest.c.account, r.transfer_id == latest.c.transfer_id)
    statement = select(latest.c.sent_at, r.picked_up_at).select_from(latest.join(recipients, is_same))
    return schema.prepare(statement.where(r.picked_up_at.is_not(None)), PickupRow)


@_cached
def delivery(schema: Schema) -> Query[DeliveryRow]:
    """One delivery. Parameters: ``account``, ``transfer_id`` and ``limit``."""
    deliveries = _Deliveries(schema)
    conditions = [deliveries.c[name] == _parameter(name) for name in ("account", "transfer_id")]
    return deliveries.fetch(schema, conditions, newest_first=True)


@_cached
def ledger_recipients(schema: Schema) -> Query[LedgerRecipientsRow]:
    """The recipients of some transfers, as the ledger has them. Parameters: those of :func:`_of_transfers`."""
    r = schema.table(DELIVERY_RECIPIENTS, "r").c
    statement = select(*(r[name] for name in LedgerRecipientsRow._fields))
    return schema.prepare(statement.where(*_of_transfers(r)), LedgerRecipientsRow)


@_cached
def recipients(schema: Schema) -> Query[RecipientRow]:
    """The recipients of some transfers, each in its order. Parameters: those of :func:`_of_transfers`."""
    r = schema.table(RECIPIENTS, "r").c
    statement = (
        select(*(r[name] for name in RecipientRow._fields))
        .where(*_of_transfers(r))
        .order_by(r.account, r.transfer_id, r.position)
        .limit(MAX_ROWS * BATCH_SIZE)
    )
    return schema.prepare(statement, RecipientRow)


def _of_transfers(columns: ColumnCollection[Any, Any]) -> list[ColumnElement[bool]]:
    """Return the conditions of :data:`BATCH_SIZE` transfers, and of some that have the id of one and the account of
    another.

    Parameters: ``account_0``, ``account_1``, … and ``transfer_id_0``, ``transfer_id_1``, … .
    """
    return [
        columns[name].in_([_parameter(f"{name}_{number}") for number in range(BATCH_SIZE)])
        for name in ("account", "transfer_id")
    ]


@_cached
def cursors(schema: Schema) -> Query[CursorRow]:
    """The cursor of each account's event feed."""
    c = schema.table(FEED_CURSOR, "c").c
    statement = select(*(c[name] for name in CursorRow._fields)).order_by(c.account).limit(MAX_ROWS)
    return schema.prepare(statement, CursorRow)


@_cached
def last_poll(schema: Schema, is_loaded: bool) -> Query[PollRow]:
    """The last poll of an account's event feed. Parameter: ``account``.

    :param is_loaded: only polls whose page was loaded count.
    """
    p = schema.table(FEED_POLLS, "p").c
    statement = (
        select(*(p[name] for name in PollRow._fields))
        .where(
            p.account == _parameter("account"), p.action == "poll", *([p.cursor_to.is_not(None)] if is_loaded else [])
        )
        .order_by(p.polled_at.desc())
        .limit(1)
    )
    return schema.prepare(statement, PollRow)


@_cached
def rejected(schema: Schema) -> Query[RejectedRow]:
    """The number of rejected lines of each account."""
    account = schema.table(REJECTED_LINES, "l").c.account
    statement = select(account, func.count().label("rejected_count")).group_by(account)
    return schema.prepare(statement, RejectedRow)


@_cached
def allowances(schema: Schema) -> Query[AllowanceRow]:
    """The allowance of each key; that of a connection's present key last."""
    c = schema.table(KEY_ALLOWANCE, "a").c
    statement = select(*(c[name] for name in AllowanceRow._fields)).order_by(c.updated_at)
    return schema.prepare(statement, AllowanceRow)


@_cached
def leases(schema: Schema) -> Query[LeaseRow]:
    """The holder of the lease of each key; that of a connection's present key last."""
    c = schema.table(POLL_LEASES, "l").c
    statement = select(*(c[name] for name in LeaseRow._fields)).order_by(c.updated_at)
    return schema.prepare(statement, LeaseRow)


@_cached
def calls(schema: Schema) -> Query[CallRow]:
    """Calls by connection and minute. Parameter: ``since``."""
    c = schema.table(CALLS, "c").c
    is_failure = or_(c.status >= 500, c.status == 0)
    statement = (
        select(
            c.conn_id,
            c.minute_at,
            func.sum(c.call_count).label("made"),
            func.sum(case((c.status == 429, c.call_count), else_=0)).label("limited"),
            func.sum(case((is_failure, c.call_count), else_=0)).label("failed"),
        )
        .where(c.minute_at > _parameter("since"))
        .group_by(c.conn_id, c.minute_at)
        .order_by(c.conn_id, c.minute_at)
    )
    return schema.prepare(statement, CallRow)
