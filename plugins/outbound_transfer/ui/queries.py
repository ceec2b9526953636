"""The page's queries to the deliveries database. Each statement is bounded by a time window, a key or a limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import sqlalchemy as sa

from outbound_transfer.store.shown_deliveries import is_made
from outbound_transfer.store.tables import FEED_CURSOR, FEED_POLLS, REJECTED_LINES, with_names
from outbound_transfer.ui.filters import CLOSED, OUTCOME_OF, UNKNOWN, WITH_ERROR, Filter, window_start

if TYPE_CHECKING:
    from outbound_transfer.store.deliveries import Deliveries

PAGE_SIZE: Final = 25

#: Days in the chart.
DAYS: Final = 30

#: Maximum number of feeds, and of deliveries of one task instance.
MAX_ROWS: Final = 250

#: Rejected lines of an account are counted up to this number.
MAX_REJECTED: Final = 1_000

#: A row by its columns' names.
Row: TypeAlias = Mapping[str, Any]


def overview(
    found: Deliveries, wanted: Filter, readable: Collection[str], now: datetime
) -> dict[str, list[dict[str, Any]]]:
    """Read everything that the page shows, over one connection; nothing if there is no table.

    :param readable: ids of the Dags whose deliveries the user may see.
    :return: ``deliveries``, a page of the list and one more; ``counts`` of deliveries by Dag, day and status, for the
        window and the chart; and ``feeds``, with each account's cursor, last poll and last loaded page.
    """
    if not is_made(found):
        return {}
    columns = found.table.c
    with found.database.begin() as tx:
        feeds = _feeds(tx, found)  # first: after other reads, MariaDB fails where another session makes these tables
        counted = _rows(tx, _counts(found, window_start(max(wanted.days, DAYS), now)))
        counts = [row for row in counted if row["dag_id"] in readable]
        # Dags with deliveries are far fewer than all that Airflow may have.
        dags = sorted({row["dag_id"] for row in counts})
        in_window = (columns.created_at >= window_start(wanted.days, now)) & columns.dag_id.in_(dags)
        shown = _list(found, wanted.sort).where(in_window, *_filters(found, wanted))
        shown = shown.offset((wanted.page - 1) * PAGE_SIZE).limit(PAGE_SIZE + 1)
        return {"deliveries": _rows(tx, shown), "counts": counts, "feeds": feeds}


def task_deliveries(found: Deliveries, task: Row) -> list[dict[str, Any]]:
    """Read the deliveries of one task instance.

    :param task: ``dag_id``, ``run_id``, ``task_id`` and ``map_index``, which is -1 if the task is not mapped.
    """
    if not is_made(found):
        return []
    with found.database.begin() as tx:
        return _rows(tx, _list(found).filter_by(**task).limit(MAX_ROWS))


def _list(found: Deliveries, sort: str = "age") -> sa.Select[Any]:
    """Return the query for deliveries, sorted by a column."""
    table, status = found.table.c, found.table.c.shown_status
    expires = sa.case((status.not_in(CLOSED), table.expires_at))
    order: dict[str, list[sa.ColumnElement[Any]]] = {
        "age": [table.created_at],
        "status": [status],
        "subject": [table.subject],
        "picked-up": [table.sent_at.is_(None), table.picked_up_count],
        "expires": [expires.is_(None), expires],
        "dag": [table.dag_id, table.task_id],
    }
    name, is_descending = sort.removeprefix("-"), sort.startswith("-")
    if name == "age":  # the youngest are those that began last
        is_descending = not is_descending
    by = [each.desc() if is_descending else each.asc() for each in (*order[name], table.delivery)]
    return sa.select(found.table).order_by(*by)


def _counts(found: Deliveries, since: datetime) -> sa.Select[Any]:
    """Return the query that counts deliveries by Dag, status, and the UTC day on which they began."""
    columns = found.table.c
    names = [columns.day, columns.dag_id, columns.shown_status]  # in the order of their index
    query = sa.select(*names[:2], columns.shown_status.label("status"), sa.func.count().label("count"))
    return query.where(columns.day >= f"{since:%Y-%m-%d}", columns.dag_id != "").group_by(*names)


def _filters(found: Deliveries, wanted: Filter) -> list[sa.ColumnElement[bool]]:
    columns, status, filters = found.table.c, found.table.c.shown_status, []
    if wanted.status == WITH_ERROR:
        filters.append(columns.error != "")
    elif wanted.status == UNKNOWN:
        filters.append(status.not_in(list(OUTCOME_OF)))
    elif wanted.status:
        filters.append(status.in_([each for each, outcome in OUTCOME_OF.items() if wanted.status in (each, outcome)]))
    if wanted.search:
        searched = (columns.transfer_id, columns.subject, columns.dag_id)
        filters.append(sa.or_(*(each.icontains(wanted.search, autoescape=True) for each in searched)))
    return filters


def _feeds(tx: sa.Connection, found: Deliveries) -> list[dict[str, Any]]:
    """Return each account's event feed: its cursor, its last ``poll``, its last loaded ``page`` and the number of its
    rejected lines.
    """
    names = (found.table.name.removesuffix("deliveries"), found.table.schema)
    cursors, polls, rejected = (with_names(each, *names).c for each in (FEED_CURSOR, FEED_POLLS, REJECTED_LINES))
    if not sa.inspect(tx).has_table(polls.account.table.name, polls.account.table.schema):
        return []
    query = sa.select(cursors.account, cursors.cursor, cursors.updated_at).order_by(cursors.account)
    feeds = _rows(tx, query.limit(MAX_ROWS))
    for feed in feeds:
        poll = sa.select(polls.polled_at, polls.status, polls.note, polls.has_more).order_by(polls.polled_at.desc())
        poll = poll.where(polls.account == feed["account"], polls.action == "poll").limit(1)
        lines = sa.select(rejected.account).where(rejected.account == feed["account"]).limit(MAX_REJECTED).subquery()
        feed["poll"] = tx.execute(poll).mappings().first() or {}
        feed["page"] = tx.execute(poll.where(polls.cursor_to.is_not(None))).mappings().first() or {}
        feed["rejected"] = tx.scalar(sa.select(sa.func.count()).select_from(lines))
    return feeds


def _rows(tx: sa.Connection, query: sa.Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute(query).mappings()]
