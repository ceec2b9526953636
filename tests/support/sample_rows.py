"""Rows of a warehouse as deliveries, listing and ingestion would leave them; the same for the same seed."""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.schema import FEED, LEDGER, LISTING, ensure_schema
from outbound_transfer.warehouse.tables import (
    DELIVERIES,
    FEED_CURSOR,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    TRANSFERS,
    Table,
)
from outbound_transfer.warehouse.timestamps import format_timestamp

ACCOUNT = "account.example.com"
CONN_ID = "outbound_transfer_default"
SUBJECTS = ("Quarterly report", "Payroll export", "Contract, signed", "Price list", "Inventory of the warehouse north")
PEOPLE = ("ann", "bob", "carla", "dmitri", "eve")
AT_ONCE = 5_000


def make_tables(warehouse: Warehouse, now: datetime, *, ledger: bool = True) -> None:
    for part in (LEDGER, LISTING, FEED) if ledger else (LISTING, FEED):
        ensure_schema(warehouse, part, now)


def delivery(transfer_id: str, now: datetime, **values: Any) -> tuple[Any, ...]:
    """A row of the ledger: pending, made an hour ago, unless the values say otherwise; times are datetimes."""
    sent = values.get("created_at", now - timedelta(hours=1)) + timedelta(seconds=20)
    row: dict[str, Any] = {
        "account": ACCOUNT,
        "transfer_id": transfer_id,
        "conn_id": CONN_ID,
        "dag_id": "deliver_files",
        "task_id": "deliver",
        "run_id": f"manual__{now:%Y-%m-%d}T00:00:00+00:00",
        "map_index": -1,
        "try_number": 1,
        "subject": "Quarterly report",
        "status": "pending",
        "error": None,
        "files": json.dumps([{"name": "report.pdf", "size": 1_234_567, "sha256": "ab" * 32}]),
        "size_bytes": 1_234_567,
        "recipient_count": 2,
        "picked_up_count": 0,
        "created_at": now - timedelta(hours=1),
        "sent_at": sent,
        "expires_at": sent + timedelta(days=14),
        "finished_at": None,
        "updated_at": sent,
    } | values
    return tuple(format_timestamp(value) if isinstance(value, datetime) else value for value in row.values())


def transfer(transfer_id: str, status: str, seen_at: datetime, collected: int = 0) -> tuple[Any, ...]:
    """A row of the listing."""
    seen = format_timestamp(seen_at)
    return (ACCOUNT, transfer_id, CONN_ID, status, "Quarterly report", seen, seen, 2, collected, seen, seen)


def insert(warehouse: Warehouse, table: Table, rows: Sequence[Sequence[Any]]) -> None:
    with warehouse.transaction() as cursor:
        warehouse.insert(cursor, table, rows)


def fill(
    warehouse: Warehouse, count: int, now: datetime, *, days: float = 30, dags: Sequence[str] = ("deliver_files",),
    runs: Sequence[str] = (), seed: int = 7, ledger: bool = True,
) -> None:  # fmt: skip
    """Tables with ``count`` deliveries of the last ``days``, with transfers, recipients and a feed."""
    make_tables(warehouse, now, ledger=ledger)
    chance = random.Random(seed)
    made = _deliveries(chance, count, now, days, dags, runs)
    for _ in range(0, count, AT_ONCE):
        rows = [row for row, _ in zip(made, range(AT_ONCE), strict=False)]
        if ledger:
            insert(warehouse, DELIVERIES, [row[0] for row in rows])
        insert(warehouse, TRANSFERS, [row[1] for row in rows if row[1]])
        insert(warehouse, RECIPIENTS, [each for row in rows for each in row[2]])
    if warehouse.dialect.name == "postgresql":
        with warehouse.transaction() as cursor:
            cursor.execute("ANALYZE")  # as its own daemon would within a minute
    _feed(warehouse, now)


def _deliveries(
    chance: random.Random, count: int, now: datetime, days: float, dags: Sequence[str], runs: Sequence[str]
) -> Iterator[tuple[Any, Any, list[Any]]]:
    for number in range(count):
        # Fewer at weekends, as everywhere.
        created = now - timedelta(days=days * chance.random())
        if created.weekday() >= 5 and chance.random() < 0.6:
            created -= timedelta(days=2) if created - timedelta(days=2) > now - timedelta(days=days) else timedelta()
        yield _delivery(chance, f"t{number:07d}{chance.getrandbits(48):012x}", created, now, chance.choice(dags), runs)


def _delivery(
    chance: random.Random, transfer_id: str, created: datetime, now: datetime, dag_id: str, runs: Sequence[str]
) -> tuple[Any, Any, list[Any]]:
    people = chance.sample(PEOPLE, chance.choice((1, 1, 2, 3)))
    sent = created + timedelta(seconds=chance.randint(4, 90))
    expires = sent + timedelta(days=7)
    picked = [sent + timedelta(hours=math.exp(chance.gauss(1.2, 1.5))) for _ in people]
    picked_by = [at if at < min(now, expires) and chance.random() < 0.97 else None for at in picked]
    collected = sum(at is not None for at in picked_by)
    draft = chance.random() < 0.004
    status = _status(chance, collected, len(people), expires < now)
    files = chance.randint(1, 4)
    row = delivery(
        transfer_id, now,
        dag_id=dag_id, run_id=chance.choice(runs) if runs else f"scheduled__{created:%Y-%m-%dT%H}:00:00+00:00",
        subject=f"{chance.choice(SUBJECTS)} {created:%Y-%m-%d}", recipient_count=len(people),
        map_index=chance.choice((-1, 0, 1, 2)),
        files=json.dumps(
            [{"name": f"part-{at}.csv", "size": 10**at, "sha256": f"{at:064x}"} for at in range(3, 3 + files)]
        ),
        size_bytes=sum(10**at for at in range(3, 3 + files)),
        created_at=created, sent_at=None if draft else sent,
        expires_at=created + timedelta(days=30) if draft else expires,
        # Half of the endings are known from the listing alone.
        status="draft" if draft else status if chance.random() < 0.5 else "pending",
        picked_up_count=0,
        error="TransferLimitReached: the account has as many outstanding transfers as it may have" if draft else None,
        updated_at=sent,
    )  # fmt: skip
    if draft:
        return row, None, []
    seen = format_timestamp(now - timedelta(minutes=1))
    listed = (
        ACCOUNT,
        transfer_id,
        CONN_ID,
        status,
        "Report",
        format_timestamp(sent),
        format_timestamp(expires),
        len(people),
        collected,
        seen,
        seen,
    )
    return row, listed, [
        (ACCOUNT, transfer_id, at, f"{name}@example.com", name, format_timestamp(when) if when else None)
        for at, (name, when) in enumerate(zip(people, picked_by, strict=True), 1)
    ]  # fmt: skip


def _status(chance: random.Random, collected: int, recipients: int, is_over: bool) -> str:
    if collected == recipients:
        return "complete"
    if chance.random() < 0.01:
        return "canceled"
    return "expired" if is_over else "partial" if collected else "pending"


def _feed(warehouse: Warehouse, now: datetime) -> None:
    insert(warehouse, FEED_CURSOR, [(ACCOUNT, 48_213, format_timestamp(now - timedelta(seconds=40)))])
    polls = [
        (uuid.uuid4().hex, ACCOUNT, format_timestamp(now - timedelta(seconds=40 + 90 * number)), "poll", 200, 12, 12, 0,
         48_201 - 12 * number, 48_213 - 12 * number, 0, None)
        for number in range(100)
    ]  # fmt: skip
    insert(warehouse, FEED_POLLS, polls)
    insert(
        warehouse,
        REJECTED_LINES,
        [(ACCOUNT, "0" * 64, 40_000, 3, b"{", "no JSON", format_timestamp(now - timedelta(days=1)))],
    )
