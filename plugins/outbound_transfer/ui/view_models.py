"""Converts rows to what the templates show. Values are not trusted: all text is cleaned here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from outbound_transfer.client.settings import DEFAULT_CALLS_PER_MINUTE
from outbound_transfer.client.web_links import transfer_url
from outbound_transfer.files.progress import format_bytes
from outbound_transfer.protocol.models import CANCELED, COMPLETE, DRAFT, EXPIRED
from outbound_transfer.protocol.outcomes import IN_DOUBT, REHEARSED
from outbound_transfer.protocol.wording import clean
from outbound_transfer.ui.filters import DELETED, LEDGER_TERMINAL_STATUSES
from outbound_transfer.ui.formatting import DASH, format_duration, parse_timestamp
from outbound_transfer.ui.queries import Recipients, Row
from outbound_transfer.warehouse.deliveries import DISCARDED, FAILED

#: Seconds after which a feed that is not read is shown as behind. The service recommends a poll every 90 seconds.
MAX_FEED_LAG: Final = 600

#: Outcomes in the chart, each with its label and statuses. Any other status is in flight.
OUTCOMES: Final = {
    "complete": ("Complete", (COMPLETE,)),
    "in-flight": ("In flight", ()),
    "in-doubt": ("In doubt", (IN_DOUBT,)),
    "expired": ("Expired", (EXPIRED,)),
    "canceled": ("Canceled or deleted", (CANCELED, DISCARDED, REHEARSED, DELETED)),
    "draft": ("Not sent", (DRAFT,)),
    "failed": ("Failed", (FAILED,)),
}


def outcome_for(status: str) -> str:
    """Return the key of :data:`OUTCOMES` for a status."""
    return next((name for name, (_, statuses) in OUTCOMES.items() if status in statuses), "in-flight")


@dataclass(frozen=True)
class FileView:
    """A file as recorded in the ledger."""

    name: str
    size: str
    sha256: str


@dataclass(frozen=True)
class RecipientView:
    """A recipient.

    :ivar name: "" if there is none but the address.
    :ivar picked_up_at: None until the recipient picks up.
    """

    email: str
    name: str
    picked_up_at: datetime | None


@dataclass(frozen=True)
class DeliveryView:
    """A delivery.

    :ivar transfer_id: "" if there is no draft.
    :ivar recipients: empty if nothing but their number is known.
    :ivar run_path: path of the DAG run's page in Airflow.
    :ivar task_path: path of the task instance's page in Airflow.
    :ivar web_url: the transfer in the service's web application.
    """

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
    files: tuple[FileView, ...]
    size: str
    recipient_count: int
    picked_up_count: int
    created_at: datetime | None
    sent_at: datetime | None
    expires_at: datetime | None
    finished_at: datetime | None
    run_path: str
    task_path: str
    web_url: str | None
    recipients: tuple[RecipientView, ...] = ()

    @property
    def outcome(self) -> str:
        return outcome_for(self.status)

    @property
    def missing_recipients(self) -> tuple[RecipientView, ...]:
        """Those who have not picked up."""
        return tuple(each for each in self.recipients if each.picked_up_at is None)

    @property
    def is_open(self) -> bool:
        return self.status not in LEDGER_TERMINAL_STATUSES

    def age(self, now: datetime) -> str:
        """Return the time since the send, or since the creation of a draft."""
        since = self.sent_at or self.created_at
        return format_duration((now - since).total_seconds()) if since else DASH

    def expiry(self, now: datetime) -> str:
        """Return the time that recipients have left."""
        if not self.is_open or self.expires_at is None or self.status == DRAFT:
            return DASH
        left = (self.expires_at - now).total_seconds()
        return format_duration(left) if left > 0 else "past"

    def expires_within_a_day(self, now: datetime) -> bool:
        """Return whether the transfer is outstanding and expires in less than a day."""
        if not self.is_open or self.expires_at is None or self.status == DRAFT:
            return False
        return (self.expires_at - now).total_seconds() < 86_400


def delivery_from_row(
    row: Row, web_urls: Mapping[str, str], recipients: Recipients | None = None, max_length: int = 200
) -> DeliveryView:
    """Return a delivery as the templates show it.

    :param web_urls: URL of the web application by connection id.
    :param recipients: recipients of any deliveries; those of this one are shown.
    :param max_length: maximum length of the subject.
    """
    dag_id, run_id, task_id = (quote(str(row[name]), safe="") for name in ("dag_id", "run_id", "task_id"))
    run_path = f"dags/{dag_id}/runs/{run_id}"
    map_index, has_draft = to_int(row["map_index"]), row["status"] != FAILED
    return DeliveryView(
        transfer_id=clean(row["transfer_id"]) if has_draft else "",
        conn_id=clean(row["conn_id"]),
        dag_id=clean(row["dag_id"], 250),
        task_id=clean(row["task_id"], 250),
        run_id=clean(row["run_id"], 250),
        map_index=map_index,
        try_number=to_int(row["try_number"]),
        subject=clean(row["subject"], max_length),
        status=clean(row["status"], 40),
        error=clean(row["error"] or "", 500),
        files=parse_files(row["files"]),
        size=format_bytes(to_int(row["size_bytes"])),
        recipient_count=to_int(row["recipient_count"]),
        picked_up_count=to_int(row["picked_up_count"]),
        created_at=parse_timestamp(row["created_at"]),
        sent_at=parse_timestamp(row["sent_at"]),
        expires_at=parse_timestamp(row["expires_at"]),
        finished_at=parse_timestamp(row["finished_at"]),
        run_path=run_path,
        task_path=f"{run_path}/tasks/{task_id}" + (f"/mapped/{map_index}" if map_index >= 0 else ""),
        web_url=(has_draft and transfer_url(web_urls.get(str(row["conn_id"]), ""), row["transfer_id"])) or None,
        recipients=recipients_of(row, recipients) if recipients else (),
    )


def recipients_of(delivery: Row, recipients: Recipients) -> tuple[RecipientView, ...]:
    """Return a delivery's recipients as the templates show them: those of the ledger, with the newer pickups of the
    listing; or those of the listing.
    """
    listed = [_recipient(row) for row in recipients.listed if _is_of(delivery, row)]
    recorded = [
        _recipient(each)
        for row in recipients.recorded
        if _is_of(delivery, row)
        for each in parse_list(row["recipients"])
    ]
    pickups = {(at, each.email): each.picked_up_at for at, each in enumerate(listed)}
    return tuple(
        replace(each, picked_up_at=each.picked_up_at or pickups.get((at, each.email)))
        for at, each in enumerate(recorded or listed)
    )


def _is_of(delivery: Row, row: Row) -> bool:
    return all(row[name] == delivery[name] for name in ("account", "transfer_id"))


def _recipient(row: Row) -> RecipientView:
    email, name = row.get("email"), row.get("name")
    picked_up_at = parse_timestamp(row.get("picked_up_at"))
    return RecipientView(clean(email), clean(name) if name and name != email else "", picked_up_at)


def to_int(value: Any) -> int:
    """Convert a column's value to a number. 0 if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def parse_files(value: Any) -> tuple[FileView, ...]:
    """Parse the column ``files``."""
    return tuple(
        FileView(
            clean(each.get("name", "")), format_bytes(to_int(each.get("size"))), clean(each.get("sha256") or "", 64)
        )
        for each in parse_list(value)
    )


def parse_list(value: Any) -> list[dict[str, Any]]:
    """Parse a column that has a JSON list of objects, which some drivers decode. Anything else is left out."""
    try:
        read = json.loads(value) if isinstance(value, (str, bytes)) else value
    except ValueError:
        return []
    return [each for each in (read if isinstance(read, list) else ()) if isinstance(each, dict)]


@dataclass(frozen=True)
class FeedView:
    """The state of one account's event feed.

    :ivar lag: seconds since the warehouse had everything that the feed had; None if unknown.
    """

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
        return self.has_more or self.lag is None or self.lag > MAX_FEED_LAG


def feed_from_row(row: Row, now: datetime) -> FeedView:
    """Return the state of a feed as the templates show it."""
    loaded_at, has_more, status = parse_timestamp(row.get("loaded_at")), row.get("has_more"), row.get("status")
    # After a page with has_more = False, everything that the feed had was loaded. Rows from before polls were logged
    # have no such page.
    caught_up_at = loaded_at if has_more in (0, False) else None
    since = caught_up_at or loaded_at or parse_timestamp(row["updated_at"])
    return FeedView(
        name=clean(row["account"]),
        cursor=to_int(row["cursor"]),
        polled_at=parse_timestamp(row.get("polled_at")),
        status="no response" if status is None else str(to_int(status)),
        note=clean(row.get("note") or "", 500),
        has_more=bool(has_more),
        lag=(now - since).total_seconds() if since else None,
        rejected=to_int(row.get("rejected_count")),
    )


@dataclass(frozen=True)
class ConnectionCalls:
    """The calls of one connection in the last hour.

    :ivar minutes: calls of each minute, oldest first.
    :ivar limit: calls that the service grants the key within a minute.
    :ivar reserved_ahead: seconds until the last reserved call; None if the key's allowance is not shared.
    :ivar polled_by: the host of the triggerer that polls for all; "" if none does.
    """

    conn_id: str
    calls: int
    limited: int
    failed: int
    minutes: tuple[int, ...]
    limit: int = DEFAULT_CALLS_PER_MINUTE
    reserved_ahead: float | None = None
    polled_by: str = ""

    @property
    def busiest(self) -> int:
        return max(self.minutes)


def calls_by_connection(
    rows: Iterable[Row], allowances: Iterable[Row], leases: Iterable[Row], now: datetime
) -> list[ConnectionCalls]:
    """Return the calls of each connection.

    :param rows: ordered by connection.
    :param allowances: the last of a connection counts, as of ``leases``.
    """
    grouped = groupby(rows, key=lambda row: str(row["conn_id"]))
    by_conn_id = {str(row["conn_id"]): row for row in allowances}
    holders = {str(row["conn_id"]): row["holder"] for row in leases}
    return [
        _connection_calls(conn_id, list(own), by_conn_id.get(conn_id), holders.get(conn_id), now)
        for conn_id, own in grouped
    ]


def _connection_calls(
    conn_id: str, rows: list[Row], allowance: Row | None, holder: str | None, now: datetime
) -> ConnectionCalls:
    reserved_until = parse_timestamp(allowance["reserved_until"]) if allowance else None
    minutes = [0] * 60
    this_minute = now.replace(second=0, microsecond=0)
    for row in rows:
        started = parse_timestamp(row["minute_at"])
        ago = int((this_minute - started).total_seconds() // 60) if started else -1
        if 0 <= ago < 60:
            minutes[59 - ago] += to_int(row["made"])
    return ConnectionCalls(
        conn_id=clean(conn_id),
        calls=sum(to_int(row["made"]) for row in rows),
        limited=sum(to_int(row["limited"]) for row in rows),
        failed=sum(to_int(row["failed"]) for row in rows),
        minutes=tuple(minutes),
        limit=(to_int(allowance["calls_per_minute"]) if allowance else 0) or DEFAULT_CALLS_PER_MINUTE,
        reserved_ahead=max((reserved_until - now).total_seconds(), 0.0) if reserved_until else None,
        polled_by=clean((holder or "").partition(":")[0]),
    )


def totals(rows: Iterable[Row]) -> dict[str, int]:
    """Count deliveries by outcome."""
    counted = dict.fromkeys(OUTCOMES, 0)
    for row in rows:
        counted[outcome_for(str(row["status"]))] += to_int(row["delivery_count"])
    return counted
