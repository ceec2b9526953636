"""Converts rows to what the templates show. Values are not trusted: all text is cleaned here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED
from outbound_transfer.client.outcomes import DELETED, FAILED, IN_DOUBT, NO_DRAFT, REHEARSED
from outbound_transfer.client.web_links import transfer_url
from outbound_transfer.client.wording import DASH, clean, format_bytes, format_duration
from outbound_transfer.delivery.row import Memory
from outbound_transfer.store.health import is_behind
from outbound_transfer.store.values import read_event_time
from outbound_transfer.ui.filters import FINISHED_STATUSES
from outbound_transfer.ui.queries import Row

#: Outcomes, each with its label and statuses. Any other status is in flight.
OUTCOMES: Final = {
    "complete": ("Complete", (COMPLETE,)),
    "in-flight": ("In flight", ()),
    "in-doubt": ("In doubt", (IN_DOUBT,)),
    "expired": ("Expired", (EXPIRED,)),
    "canceled": ("Canceled, deleted or not made", (CANCELED, NO_DRAFT, REHEARSED, DELETED)),
    "draft": ("Not sent", (DRAFT,)),
    "failed": ("Failed", (FAILED,)),
}

#: What a template shows of one thing, by the names that it uses. Times are datetimes in UTC, or None.
Shown: TypeAlias = dict[str, Any]


def outcome_for(status: str) -> str:
    """Return the key of :data:`OUTCOMES` for a status."""
    return next((name for name, (_, statuses) in OUTCOMES.items() if status in statuses), "in-flight")


def show_delivery(
    row: Row,
    now: datetime,
    web_urls: Mapping[str, str],
    *,
    shows_recipients: bool,
    max_subject_length: int = 200,
) -> Shown:
    """Return a delivery. Its ``transfer_id`` is "" if there is no draft; ``recipients`` is empty if only their number
    is known.

    :param web_urls: URL of the web application by connection id.
    """
    map_index, status = to_int(row["map_index"]), clean(row["status"], 40)
    dag_id, run_id, task_id = (quote(str(row[name]), safe="") for name in ("dag_id", "run_id", "task_id"))
    run_path = f"dags/{dag_id}/runs/{run_id}"
    files = files_of(row["memory"])
    since = row["sent_at"] or row["created_at"]
    left = None if status in (DRAFT, *FINISHED_STATUSES) else _seconds_between(now, row["expires_at"])
    return {
        **{name: row[name] for name in ("created_at", "sent_at", "expires_at")},
        "transfer_id": clean(row["transfer_id"]),
        "conn_id": clean(row["conn_id"]),
        "dag_id": clean(row["dag_id"], 250),
        "task_id": clean(row["task_id"], 250),
        "run_id": clean(row["run_id"], 250),
        "map_index": map_index,
        "try_number": to_int(row["try_number"]),
        "subject": clean(row["subject"], max_subject_length),
        "status": status,
        "outcome": outcome_for(status),
        "error": clean(row["error"] or "", 500),
        "files": files,
        "size": format_bytes(sum(each["bytes"] for each in files)),
        "recipient_count": to_int(row["recipient_count"]),
        "picked_up_count": to_int(row["picked_up_count"]),
        "recipients": [_show_recipient(each) for each in parse_list(row["recipients"])] if shows_recipients else [],
        "since": since,
        "age": format_duration((now - since).total_seconds()) if since else DASH,
        "time_left": DASH if left is None else format_duration(left) if left > 0 else "past",
        "is_urgent": left is not None and left < 86_400,
        "run_path": run_path,
        "task_path": f"{run_path}/tasks/{task_id}" + (f"/mapped/{map_index}" if map_index >= 0 else ""),
        "web_url": transfer_url(web_urls.get(str(row["conn_id"]), ""), row["transfer_id"]) or None,
    }


def _seconds_between(earlier: datetime, later: datetime | None) -> float | None:
    return (later - earlier).total_seconds() if later else None


def _show_recipient(row: Row) -> Shown:
    email, name = row.get("email"), row.get("name")
    return {
        "email": clean(email),
        "name": clean(name) if name and name != email else "",
        "picked_up_at": read_event_time(row.get("picked_up_at")),
    }


def to_int(value: Any) -> int:
    """Convert a column's value to a number. 0 if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def files_of(memory: str) -> list[Shown]:
    """Return the files that a delivery's memory has; none if another version of this package has written it."""
    try:
        held = msgspec.json.decode(memory, type=Memory).held
    except msgspec.MsgspecError:
        return []
    return [
        {"name": clean(name), "size": format_bytes(each.size), "sha256": each.sha256, "bytes": each.size}
        for name, each in sorted(held.items())
    ]


def parse_list(value: Any) -> list[dict[str, Any]]:
    """Parse a column that has a JSON list of objects, which some drivers decode. Anything else is left out."""
    try:
        read = json.loads(value) if isinstance(value, (str, bytes)) else value
    except ValueError:
        return []
    return [each for each in (read if isinstance(read, list) else ()) if isinstance(each, dict)]


def show_feed(row: Row, now: datetime) -> Shown:
    """Return the state of an account's event feed. Its ``lag`` is the number of seconds since the warehouse had
    everything that the feed had; None if unknown.
    """
    loaded_at, has_more, status = row.get("loaded_at"), row.get("has_more"), row.get("status")
    # Rows from before polls were logged have no page.
    since = loaded_at or row["updated_at"]
    lag = (now - since).total_seconds() if since else None
    return {
        "name": clean(row["account"]),
        "cursor": to_int(row["cursor"]),
        "polled_at": row.get("polled_at"),
        "status": "no response" if status is None else str(to_int(status)),
        "note": clean(row.get("note") or "", 500),
        "has_more": bool(has_more),
        "lag": lag,
        "is_late": is_behind(lag, has_more=bool(has_more)),
        "rejected": to_int(row.get("rejected_count")),
    }


def totals(rows: Iterable[Row]) -> dict[str, int]:
    """Count deliveries by outcome."""
    counted = dict.fromkeys(OUTCOMES, 0)
    for row in rows:
        counted[outcome_for(str(row["status"]))] += to_int(row["delivery_count"])
    return counted
