"""What the page reads from the deliveries' database. Each statement is bounded by a time window, a key or a limit.

The rows of a feed have values as the database drivers return them; :mod:`.view_models` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa

from outbound_transfer.client.models import DRAFT
from outbound_transfer.client.outcomes import IN_DOUBT
from outbound_transfer.store.tables import FEED_CURSOR, FEED_POLLS, REJECTED_LINES, with_names
from outbound_transfer.ui.filters import FINISHED_STATUSES, IN_FLIGHT, WITH_ERROR, Filter, Position, window_start

if TYPE_CHECKING:
    from outbound_transfer.store.deliveries import Deliveries

PAGE_SIZE: Final = 25

#: Maximum number of feeds, and of deliveries of one task instance.
MAX_ROWS: Final = 250

#: Escapes the wildcards of a search.
_ESCAPE: Final = "!"

#: A row by its columns' names.
Row: TypeAlias = Mapping[str, Any]


class TaskKey(NamedTuple):
    """A task instance. ``map_index`` is -1 if the task is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclass(frozen=True)
class Overview:
    """The rows of the page of all deliveries.

    :ivar has_table: whether there is a table of deliveries.
    :ivar outcomes: counts of all deliveries in the window, by status.
    :ivar deliveries: one page of them, newest first.
    :ivar has_older: whether there are older ones.
    :ivar feeds: of each account's event feed, the cursor, the last poll and the last loaded page.
    """

    has_table: bool
    outcomes: list[Row] = field(default_factory=list)
    deliveries: list[Row] = field(default_factory=list)
    has_older: bool = False
    feeds: list[Row] = field(default_factory=list)


def overview(found: Deliveries, wanted: Filter, readable: Collection[str], now: datetime) -> Overview:
    """Read everything that the page shows, over one connection.

    :param readable: ids of the DAGs whose deliveries the user may see.
    """
    if not found.is_made():
        return Overview(has_table=False)
    columns = found.table.c
    window = (columns.created_at >= window_start(wanted.days, now)) & (columns.dag_id != "")
    with found.database.begin() as tx:
        # Those with deliveries are far fewer than Airflow may have.
        dags = set(tx.execute(sa.select(columns.dag_id).distinct().where(window)).scalars()).intersection(readable)
        window &= columns.dag_id.in_(sorted(dags))
        status = found.shown_status.label("status")
        counts = sa.select(status, sa.func.count().label("delivery_count")).where(window).group_by(status)
        rows = _rows(tx, _deliveries(found).where(window, *_filters(found, wanted)).limit(PAGE_SIZE + 1))
        return Overview(
            has_table=True,
            outcomes=_rows(tx, counts),
            deliveries=rows[:PAGE_SIZE],
            has_older=len(rows) > PAGE_SIZE,
            feeds=_feeds(tx, found),
        )


def task_deliveries(found: Deliveries, task: TaskKey) -> list[Row]:
    """Read the deliveries of one task instance."""
    if not found.is_made():
        return []
    of_task = (found.table.c[name] == value for name, value in task._asdict().items())
    with found.database.begin() as tx:
        return _rows(tx, _deliveries(found).where(*of_task).limit(MAX_ROWS))


def row_position(row: Row) -> Position:
    """Return where a delivery stands in the list, for paging."""
    return Position(row["created_at"], row["delivery"])


def _deliveries(found: Deliveries) -> sa.Select[Any]:
    """Return the query of deliveries, newest first."""
    columns = [found.shown_status.label("status"), *(each for each in found.table.c if each.name != "status")]
    return sa.select(*columns).order_by(found.table.c.created_at.desc(), found.table.c.delivery.desc())


def _filters(found: Deliveries, wanted: Filter) -> list[sa.ColumnElement[bool]]:
    columns, status, filters = found.table.c, found.shown_status, []
    if wanted.status == WITH_ERROR:
        filters.append(columns.error != "")
    elif wanted.status == IN_FLIGHT:
        filters.append(status.not_in([DRAFT, IN_DOUBT, *FINISHED_STATUSES]))
    elif wanted.status:
        filters.append(status == wanted.status)
    if wanted.search:
        pattern = "%" + re.sub(r"[!%_]", lambda match: _ESCAPE + match[0], wanted.search) + "%"
        searched = (columns.transfer_id, columns.subject, columns.dag_id)
        filters.append(
            sa.or_(
                *(sa.func.lower(each).like(pattern.lower(), escape=_ESCAPE) for each in searched),
                *(each.like(pattern, escape=_ESCAPE) for each in searched),  # SQLite lowers ASCII alone
            )
        )
    if position := wanted.older:
        is_older = (columns.created_at < position.created_at) | (columns.delivery < position.delivery)
        filters.append((columns.created_at <= position.created_at) & is_older)
    return filters


def _feeds(tx: sa.Connection, found: Deliveries) -> list[Row]:
    """Return the cursor of each account's event feed, with its last poll, its last loaded page and its rejected lines.

    What is not known is not in the row.
    """
    prefix, schema = found.table.name.removesuffix("deliveries"), found.table.schema
    cursors, polls, rejected = (with_names(each, prefix, schema) for each in (FEED_CURSOR, FEED_POLLS, REJECTED_LINES))
    there = sa.inspect(tx)
    if not all(there.has_table(each.name, each.schema) for each in (cursors, polls, rejected)):
        return []

    def last_poll(account: str, *columns: sa.ColumnElement[Any], loaded: bool = False) -> Row:
        of_account = sa.select(*columns).where(polls.c.account == account, polls.c.action == "poll")
        query = of_account.where(polls.c.cursor_to.is_not(None)) if loaded else of_account
        return next(iter(_rows(tx, query.order_by(polls.c.polled_at.desc()).limit(1))), {})

    query = sa.select(rejected.c.account, sa.func.count().label("rejected_count")).group_by(rejected.c.account)
    counts = {row["account"]: row for row in _rows(tx, query)}
    cursor = sa.select(cursors.c.account, cursors.c.cursor, cursors.c.updated_at).order_by(cursors.c.account)
    return [
        {
            **row,
            **counts.get(row["account"], {}),
            **last_poll(row["account"], polls.c.polled_at, polls.c.status, polls.c.note),
            **last_poll(row["account"], polls.c.polled_at.label("loaded_at"), polls.c.has_more, loaded=True),
        }
        for row in _rows(tx, cursor.limit(MAX_ROWS))
    ]


def _rows(tx: sa.Connection, query: sa.Select[Any]) -> list[Row]:
    return [dict(row) for row in tx.execute(query).mappings()]
