"""From rows to what the templates show: pure. What comes from outside is made plain text here; nothing is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from outbound_transfer.links import transfer_url
from outbound_transfer.protocol.models import CANCELED, COMPLETE, DRAFT, EXPIRED
from outbound_transfer.ui.filters import FINAL, REMOVED
from outbound_transfer.ui.text import NONE, moment, shown, size, span

#: Calls that one key has a minute (service.md, Limits).
CALLS_A_MINUTE: Final = 60

#: Seconds after which a feed that nobody reads is worth a look: the service recommends a poll every 90.
LATE: Final = 600

#: Outcomes as the plot groups them, with the statuses of each; any other status is in flight.
OUTCOMES: Final = {
    "complete": ("Complete", (COMPLETE,)),
    "in-flight": ("In flight", ()),
    "expired": ("Expired", (EXPIRED,)),
    "canceled": ("Canceled or removed", (CANCELED, REMOVED)),
    "draft": ("Not sent", (DRAFT,)),
}


def outcome_of(status: str) -> str:
    """A key of :data:`OUTCOMES`."""
    return next((name for name, (_, statuses) in OUTCOMES.items() if status in statuses), "in-flight")


@dataclass(frozen=True)
class File:
    """A file as the ledger has it."""

    name: str
    size: str
    sha256: str


@dataclass(frozen=True)
class Recipient:
    """A recipient, and when they picked up; None until then."""

    email: str
    name: str
    picked_up_at: datetime | None


@dataclass(frozen=True)
class Delivery:
    """A delivery. ``run`` and ``task`` lead to Airflow's own pages, ``web`` to the service's web application."""

    transfer_id: str
    conn_id: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int
    subject: str
    status: str
    error: str
    files: tuple[File, ...]
    bytes: str
    recipients: int
    collected: int
    created_at: datetime | None
    sent_at: datetime | None
    expires_at: datetime | None
    ended_at: datetime | None
    run: str
    task: str
    web: str | None
    people: tuple[Recipient, ...] = ()

    @property
    def outcome(self) -> str:
        return outcome_of(self.status)

    @property
    def is_open(self) -> bool:
        return self.status not in FINAL

    def age(self, now: datetime) -> str:
        """Since the send; of a draft, since it was made."""
        since = self.sent_at or self.created_at
        return span((now - since).total_seconds()) if since else NONE

    def expiry(self, now: datetime) -> str:
        """How long recipients still have."""
        if not self.is_open or self.expires_at is None or self.status == DRAFT:
            return NONE
        left = (self.expires_at - now).total_seconds()
        return span(left) if left > 0 else "past"

    def is_urgent(self, now: datetime) -> bool:
        """Whether it is sent, not all have it, and less than a day is left."""
        if not self.is_open or self.expires_at is None or self.status == DRAFT:
            return False
        return (self.expires_at - now).total_seconds() < 86_400


def delivery(
    row: Sequence[Any], web: Mapping[str, str], people: Iterable[Sequence[Any]] = (), most: int = 200
) -> Delivery:
    """A delivery of a row of :mod:`.queries`.

    :param web: the web application of each connection's account.
    :param most: characters of its subject.
    """
    _, transfer_id, conn_id, dag_id, task_id, run_id, map_index, try_number, *rest = row
    subject, status, error, files, count, recipients, collected, *times = rest
    created_at, sent_at, expires_at, ended_at = map(moment, times)
    run = f"dags/{quote(str(dag_id), safe='')}/runs/{quote(str(run_id), safe='')}"
    index = whole(map_index)
    return Delivery(
        transfer_id=shown(transfer_id),
        conn_id=shown(conn_id),
        dag_id=shown(dag_id, 250),
        task_id=shown(task_id, 250),
        run_id=shown(run_id, 250),
        map_index=index,
        try_number=whole(try_number),
        subject=shown(subject, most),
        status=shown(status, 40),
        error=shown(error or "", 500),
        files=files_of(files),
        bytes=size(whole(count)),
        recipients=whole(recipients),
        collected=whole(collected),
        created_at=created_at,
        sent_at=sent_at,
        expires_at=expires_at,
        ended_at=ended_at,
        run=run,
        task=f"{run}/tasks/{quote(str(task_id), safe='')}" + (f"/mapped/{index}" if index >= 0 else ""),
        web=transfer_url(web.get(str(conn_id), ""), transfer_id) or None,
        people=tuple(
            Recipient(shown(email), shown(name), moment(at)) for of, email, name, at in people if of == transfer_id
        ),
    )


def whole(value: Any) -> int:
    """A number of a column; 0 where it is none."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def files_of(value: Any) -> tuple[File, ...]:
    """The column ``files``: JSON, which some drivers have read already."""
    try:
        read = json.loads(value) if isinstance(value, (str, bytes)) else value
    except ValueError:
        return ()
    return tuple(
        File(shown(each.get("name", "")), size(whole(each.get("size"))), shown(each.get("sha256") or "", 64))
        for each in (read if isinstance(read, list) else ())
        if isinstance(each, dict)
    )


@dataclass(frozen=True)
class Feed:
    """A feed at a glance. ``lag``: seconds since everything that the feed had was in the warehouse; None: unknown."""

    name: str
    cursor: int
    polled_at: datetime | None
    status: str
    note: str
    has_more: bool
    lag: float | None
    rejected: int

    @property
    def is_late(self) -> bool:
        return self.has_more or self.lag is None or self.lag > LATE


def feed(row: Sequence[Any], now: datetime) -> Feed:
    """A feed of a row of :mod:`.queries`."""
    name, cursor, updated_at, polled_at, status, note, _, landed_at, _, _, has_more, rejected = row
    # A page after which the feed had no more was all there was; the rows before the log of polls have no such mark.
    caught_up = moment(landed_at) if has_more in (0, False) else None
    since = caught_up or moment(landed_at) or moment(updated_at)
    return Feed(
        name=shown(name),
        cursor=whole(cursor),
        polled_at=moment(polled_at),
        status="no answer" if status is None else str(whole(status)),
        note=shown(note or "", 500),
        has_more=bool(has_more),
        lag=(now - since).total_seconds() if since else None,
        rejected=whole(rejected),
    )


@dataclass(frozen=True)
class Key:
    """The calls of one connection in the last hour; ``minutes``: calls of each, oldest first."""

    conn_id: str
    calls: int
    limited: int
    failed: int
    minutes: tuple[int, ...]

    @property
    def busiest(self) -> int:
        return max(self.minutes)


def keys(rows: Iterable[Sequence[Any]], now: datetime) -> list[Key]:
    """The connections, in the order of the rows."""
    found: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        found.setdefault(str(row[0]), []).append(row)
    return [_key(conn_id, of_one, now) for conn_id, of_one in found.items()]


def _key(conn_id: str, rows: list[Sequence[Any]], now: datetime) -> Key:
    minutes = [0] * 60
    for _, minute, calls, *_ in rows:
        begun = moment(minute)
        ago = int((now.replace(second=0, microsecond=0) - begun).total_seconds() // 60) if begun else -1
        if 0 <= ago < 60:
            minutes[59 - ago] += whole(calls)
    calls, limited, failed = (sum(whole(row[at]) for row in rows) for at in (2, 3, 4))
    return Key(shown(conn_id), calls, limited, failed, tuple(minutes))


def totals(outcomes: Iterable[Sequence[Any]]) -> dict[str, int]:
    """Deliveries by outcome."""
    counted = dict.fromkeys(OUTCOMES, 0)
    for _, status, count in outcomes:
        counted[outcome_of(str(status))] += whole(count)
    return counted
