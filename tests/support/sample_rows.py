"""Rows of a warehouse as deliveries, listing and ingestion would leave them; the same for the same seed."""

from __future__ import annotations

import hashlib
import json
import math
import random
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import Entry, Memory
from outbound_transfer.files.attached import Held
from outbound_transfer.store import tables
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.rows import format_timestamp
from outbound_transfer.store.tables import Tables

ACCOUNT = "account.example.com"
CONN_ID = "outbound_transfer_default"
SUBJECTS = ("Quarterly report", "Payroll export", "Contract, signed", "Price list", "Inventory of the warehouse north")
PEOPLE = ("ann", "bob", "carla", "dmitri", "eve")
AT_ONCE = 5_000


def make_tables(warehouse: Tables) -> None:
    warehouse.create((*tables.LISTING, *tables.FEED))


def delivery(transfer_id: str, now: datetime, *, files: Any = None, **values: Any) -> dict[str, Any]:
    """A row of a delivery: pending, made an hour ago, unless the values say otherwise; ``files``: names and sizes."""
    begun = values.get("created_at", now - timedelta(hours=1))
    sent = begun + timedelta(seconds=20)
    status = values.pop("status", "pending")
    phase = {"draft": "handed_on", "failed": "empty", "no draft": "empty", "rehearsed": "empty"}.get(status, "sending")
    held = {name: Held(name, size, "A" * 43, "") for name, size in (files or {"report.pdf": 1_234_567}).items()}
    entries = {"": Entry(1, False, held)}
    memory = Memory(phase=Phase(phase), transfer_id=transfer_id, account=ACCOUNT, identity="x$y", entries=entries)
    return {
        "delivery": hashlib.sha256(transfer_id.encode()).hexdigest(), "version": 1, "is_keyed": False, "phase": phase,
        "transfer_id": "" if phase == "empty" else transfer_id, "is_rehearsal": status == "rehearsed",
        "account": ACCOUNT, "conn_id": CONN_ID, "dag_id": "deliver_files", "task_id": "deliver",
        "run_id": f"manual__{now:%Y-%m-%d}T00:00:00+00:00", "map_index": -1, "try_number": 1,
        "security": "", "twin": "", "run_started": "", "memory": msgspec.json.encode(memory).decode(),
        "status": "draft" if status == "in doubt" else status if phase == "sending" else "",
        "error": "it failed" if status == "failed" else "", "subject": "Quarterly report",
        "recipient_count": 2, "picked_up_count": 0, "recipients": "[]", "day": f"{begun:%Y-%m-%d}",
        "created_at": begun, "updated_at": sent, "sent_at": sent if phase == "sending" else None,
        "expires_at": sent + timedelta(days=14),
    } | values  # fmt: skip


def add(rows: Deliveries, made: Sequence[dict[str, Any]]) -> None:
    rows.read("")
    with rows.database.begin() as tx:
        tx.execute(sa.insert(rows.table), made)


def insert(warehouse: Tables, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows, whose values are in the order of the columns."""
    names = table.columns.keys()
    with warehouse.database.begin() as tx:
        tx.execute(sa.insert(warehouse.named(table)), [dict(zip(names, row, strict=True)) for row in rows])


def fill(
    rows: Deliveries, count: int, now: datetime, *, days: float = 30, dags: Sequence[str] = ("deliver_files",),
    runs: Sequence[str] = (), seed: int = 7,
) -> None:  # fmt: skip
    made = list(deliveries(random.Random(seed), count, now, days, dags, runs))
    for at in range(0, count, AT_ONCE):
        add(rows, made[at : at + AT_ONCE])


def deliveries(
    chance: random.Random, count: int, now: datetime, days: float, dags: Sequence[str], runs: Sequence[str]
) -> Iterator[dict[str, Any]]:
    for number in range(count):
        # Fewer at weekends, as everywhere.
        created = now - timedelta(days=days * chance.random())
        if created.weekday() >= 5 and chance.random() < 0.6:
            created -= timedelta(days=2) if created - timedelta(days=2) > now - timedelta(days=days) else timedelta()
        yield _delivery(chance, f"t{number:07d}{chance.getrandbits(48):012x}", created, now, chance.choice(dags), runs)


def _delivery(
    chance: random.Random, transfer_id: str, created: datetime, now: datetime, dag_id: str, runs: Sequence[str]
) -> dict[str, Any]:
    people = chance.sample(PEOPLE, chance.choice((1, 1, 2, 3)))
    sent = created + timedelta(seconds=chance.randint(4, 90))
    expires = sent + timedelta(days=7)
    picked = [sent + timedelta(hours=math.exp(chance.gauss(1.2, 1.5))) for _ in people]
    picked_by = [at if at < min(now, expires) and chance.random() < 0.97 else None for at in picked]
    collected = sum(at is not None for at in picked_by)
    draft = chance.random() < 0.004
    files = chance.randint(1, 4)
    return delivery(
        transfer_id, now,
        dag_id=dag_id, run_id=chance.choice(runs) if runs else f"scheduled__{created:%Y-%m-%dT%H}:00:00+00:00",
        subject=f"{chance.choice(SUBJECTS)} {created:%Y-%m-%d}", recipient_count=len(people),
        map_index=chance.choice((-1, 0, 1, 2)),
        files={f"part-{at}.csv": 10**at for at in range(3, 3 + files)},
        created_at=created, sent_at=None if draft else sent,
        expires_at=created + timedelta(days=30) if draft else expires,
        status="draft" if draft else _status(chance, collected, len(people), expires < now),
        picked_up_count=collected,
        recipients="[]" if draft else json.dumps([
            {"email": f"{name}@example.com", "name": name, "picked_up_at": when and format_timestamp(when)}
            for name, when in zip(people, picked_by, strict=True)
        ]),
        error="TransferLimitReached: the account has as many outstanding transfers as it may have" if draft else "",
        updated_at=sent,
    )  # fmt: skip


def _status(chance: random.Random, collected: int, recipients: int, is_over: bool) -> str:
    if collected == recipients:
        return "complete"
    if chance.random() < 0.01:
        return "canceled"
    return "expired" if is_over else "partial" if collected else "pending"


def add_feed(warehouse: Tables, now: datetime) -> None:
    insert(warehouse, tables.FEED_CURSOR, [(ACCOUNT, 48_213, now - timedelta(seconds=40))])
    polls = [
        (uuid.uuid4().hex, ACCOUNT, now - timedelta(seconds=40 + 90 * number), "poll", 200, 12, 12, 0,
         48_201 - 12 * number, 48_213 - 12 * number, 0, None)
        for number in range(100)
    ]  # fmt: skip
    insert(warehouse, tables.FEED_POLLS, polls)
    insert(warehouse, tables.REJECTED_LINES, [(ACCOUNT, "0" * 64, 40_000, 3, b"{", "no JSON", now - timedelta(days=1))])


def reject_lines(warehouse: Tables, count: int, now: datetime) -> None:
    rows = [(ACCOUNT, f"{number:064x}", 1, number, b"{", "no JSON", now) for number in range(1, count)]
    insert(warehouse, tables.REJECTED_LINES, rows)
