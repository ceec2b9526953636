"""What page, metrics and commands read and write of the table of deliveries. No delivery depends on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from outbound_transfer.client.models import DRAFT
from outbound_transfer.client.new_transfer import normalize_address
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.rows import DELETED, ERASED, IN_DOUBT, TERMINAL_STATUSES, Shown, status_rank

#: Age of the deliveries that count as in doubt: newer than the first, unchanged for the second.
_RECENT: Final = timedelta(days=30)
_STAYS: Final = timedelta(minutes=15)


def is_made(rows: Deliveries) -> bool:
    """Return whether the table is there. Nothing is created: neither the table, nor the file of SQLite."""
    if not rows.database.is_there():
        return False
    with rows.database.begin(reads_only=True) as tx:
        return sa.inspect(tx).has_table(rows.table.name, rows.table.schema)


def show(rows: Deliveries, account: str, conn_id: str, transfers: Mapping[str, Shown | None]) -> None:
    """Store the status of transfers, by id, in the rows that exist; None if a transfer was deleted.

    A listing page may be stored after a later read, so a status never moves back.
    """

    def work(tx: sa.Connection) -> None:
        columns = rows.table.c
        shown = [columns[name] for name in ("delivery", "transfer_id", "phase", "error", *Shown._fields)]
        is_shown = (columns.account == account) & columns.transfer_id.in_(list(transfers))
        # Locked, so that no erasure or other update runs in between.
        query = sa.select(*shown).where(is_shown).order_by(columns.delivery).with_for_update()
        for row in tx.execute(query).all():
            if changes := _changes(row, transfers[row.transfer_id]):
                is_row = (columns.delivery == row.delivery) & (columns.transfer_id == row.transfer_id)
                tx.execute(sa.update(rows.table).where(is_row).values(conn_id=conn_id, **changes))

    rows.run(work, patience=0.0)


def show_error(rows: Deliveries, key: str, error: str) -> None:
    """Store an attempt's error, as one line, unless the row is the copy of a forgotten delivery."""

    def work(tx: sa.Connection) -> None:
        columns = rows.table.c
        is_current = (columns.phase != "empty") | (columns.transfer_id == "")
        tx.execute(sa.update(rows.table).where(columns.delivery == key, is_current).values(error=error))

    rows.run(work, patience=0.0)


def count_in_doubt(rows: Deliveries, conn_id: str) -> int:
    """Return how many recent deliveries of a connection stay in doubt: longer than a task takes to find out."""

    def count(tx: sa.Connection) -> int | None:
        columns, now = rows.table.c, datetime.now(UTC)
        is_in_doubt = (columns.conn_id == conn_id) & (columns.shown_status == IN_DOUBT)
        stays = (columns.created_at > now - _RECENT) & (columns.updated_at < now - _STAYS)
        return tx.scalar(sa.select(sa.func.count()).where(is_in_doubt, stays))

    return rows.run(count, patience=0.0) or 0


def newest(rows: Deliveries) -> datetime | None:
    """Return when a task wrote a delivery last; None if none has."""
    query = sa.select(sa.func.max(rows.table.c.updated_at)).where(rows.table.c.dag_id != "")
    return rows.run(lambda tx: tx.execute(query).scalar(), patience=0.0)


def delete(rows: Deliveries, key: str) -> None:
    """Delete a row."""
    rows.run(lambda tx: tx.execute(sa.delete(rows.table).where(rows.table.c.delivery == key)))


def clean(rows: Deliveries, older_than: datetime) -> int:
    """Delete the rows of task instances that were last written before ``older_than``; return how many.

    Rows of delivery keys stay, and those of drafts that may still be filled, sent or deleted.
    """
    columns = rows.table.c
    is_old = ~columns.is_keyed & (columns.updated_at < older_than) & columns.phase.in_(["empty", "sending"])
    return rows.run(lambda tx: tx.execute(sa.delete(rows.table).where(is_old)).rowcount)


def _changes(row: Any, now: Shown | None) -> dict[str, Any]:
    """Return the columns that change. Erased values and known pickups are kept."""
    if now is None:
        return {"status": DELETED} if row.status not in TERMINAL_STATUSES else {}
    if status_rank(now.status) < status_rank(row.status or DRAFT):
        return {}
    recipients = json.loads(row.recipients)
    picked_up = {normalize_address(each["email"]): each["picked_up_at"] for each in recipients}
    if ERASED not in picked_up:  # erased recipients cannot be matched
        recipients = [
            {**each, "picked_up_at": each["picked_up_at"] or picked_up.get(normalize_address(each["email"]))}
            for each in now.recipients
        ]
    shown = now._asdict() | {"recipients": json.dumps(recipients, ensure_ascii=False)}
    shown["picked_up_count"] = max(now.picked_up_count, row.picked_up_count)
    shown["subject"] = ERASED if row.subject == ERASED else now.subject
    shown["error"] = row.error if row.phase == "empty" else ""  # says who forgot the delivery
    return {name: value for name, value in shown.items() if value != getattr(row, name)}
