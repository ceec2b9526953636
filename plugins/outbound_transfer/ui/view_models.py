"""Converts rows to what the templates show. Values are not trusted: all text is cleaned here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from outbound_transfer.protocol.health import is_behind
from outbound_transfer.protocol.models import CANCELED, COMPLETE, DRAFT, EXPIRED
from outbound_transfer.protocol.outcomes import IN_DOUBT, REHEARSED
from outbound_transfer.protocol.web_links import transfer_url
from outbound_transfer.protocol.wording import DASH, clean, format_bytes, format_duration
from outbound_transfer.ui.filters import DELETED, LEDGER_TERMINAL_STATUSES
from outbound_transfer.ui.queries import Recipients, Row
from outbound_transfer.warehouse.deliveries import DISCARDED, FAILED
from outbound_transfer.warehouse.timestamps import parse_timestamp

#: Outcomes, each with its label and statuses. Any other status is in flight.
OUTCOMES: Final = {
    "complete": ("Complete", (COMPLETE,)),
    "in-flight": ("In flight", ()),
    "in-doubt": ("In doubt", (IN_DOUBT,)),
    "expired": ("Expired", (EXPIRED,)),
    "canceled": ("Canceled or deleted", (CANCELED, DISCARDED, REHEARSED, DELETED)),
    "draft": ("Not sent", (DRAFT,)),
    "failed": ("Failed", (FAILED,)),
}

_TIMES: Final = ("created_at", "sent_at", "expires_at", "finished_at")

#: What a template shows of one thing, by the names that it uses. Times are datetimes in UTC, or None.
Shown: TypeAlias = dict[str, Any]


def outcome_for(status: str) -> str:
    """Return the key of :data:`OUTCOMES` for a status."""
    return next((name for name, (_, statuses) in OUTCOMES.items() if status in statuses), "in-flight")


def show_delivery(
    row: Row,
    now: datetime,
    web_urls: Mapping[str, str],
    recipients: Recipients | None = None,
    max_subject_length: int = 200,
) -> Shown:
    """Return a delivery. Its ``transfer_id`` is "" if there is no draft; ``recipients`` is empty if only their number
    is known.

    :param web_urls: URL of the web application by connection id.
    :param recipients: recipients of any deliveries; those of this one are shown.
    """
    has_draft, map_index, status = row["status"] != FAILED, to_int(row["map_index"]), clean(row["status"], 40)
    dag_id, run_id, task_id = (quote(str(row[name]), safe="") for name in ("dag_id", "run_id", "task_id"))
    run_path = f"dags/{dag_id}/runs/{run_id}"
    times = {name: parse_timestamp(row[name]) for name in _TIMES}
    since = times["sent_at"] or times["created_at"]
    left = None if status in (DRAFT, *LEDGER_TERMINAL_STATUSES) else _seconds_between(now, times["expires_at"])
    return times | {
        "transfer_id": clean(row["transfer_id"]) if has_draft else "",
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
        "files": show_files(row["files"]),
        "size": format_bytes(to_int(row["size_bytes"])),
        "recipient_count": to_int(row["recipient_count"]),
        "picked_up_count": to_int(row["picked_up_count"]),
        "recipients": show_recipients(row, recipients) if recipients else [],
        "since": since,
        "age": format_duration((now - since).total_seconds()) if since else DASH,
        "time_left": DASH if left is None else format_duration(left) if left > 0 else "past",
        "is_urgent": left is not None and left < 86_400,
        "run_path": run_path,
        "task_path": f"{run_path}/tasks/{task_id}" + (f"/mapped/{map_index}" if map_index >= 0 else ""),
        "web_url": (has_draft and transfer_url(web_urls.get(str(row["conn_id"]), ""), row["transfer_id"])) or None,
    }


def _seconds_between(earlier: datetime, later: datetime | None) -> float | None:
    return (later - earlier).total_seconds() if later else None


def show_recipients(delivery: Row, recipients: Recipients) -> list[Shown]:
    """Return a delivery's recipients: those of the ledger, with the newer pickups of the listing; or those of the
    listing.
    """
    listed = [_show_recipient(row) for row in recipients.listed if _is_of(delivery, row)]
    recorded = [
        _show_recipient(each)
        for row in recipients.recorded
        if _is_of(delivery, row)
        for each in parse_list(row["recipients"])
    ]
    pickups = {(at, each["email"]): each["picked_up_at"] for at, each in enumerate(listed)}
    return [
        each | {"picked_up_at": each["picked_up_at"] or pickups.get((at, each["email"]))}
        for at, each in enumerate(recorded or listed)
    ]


def _is_of(delivery: Row, row: Row) -> bool:
    return all(row[name] == delivery[name] for name in ("account", "transfer_id"))


def _show_recipient(row: Row) -> Shown:
    email, name = row.get("email"), row.get("name")
    return {
        "email": clean(email),
        "name": clean(name) if name and name != email else "",
        "picked_up_at": parse_timestamp(row.get("picked_up_at")),
    }


def to_int(value: Any) -> int:
    """Convert a column's value to a number. 0 if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def show_files(value: Any) -> list[Shown]:
    """Return the files of the column ``files``."""
    return [
        {
            "name": clean(each.get("name", "")),
            "size": format_bytes(to_int(each.get("size"))),
            "sha256": clean(each.get("sha256") or "", 64),
        }
        for each in parse_list(value)
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
    loaded_at, has_more, status = parse_timestamp(row.get("loaded_at")), row.get("has_more"), row.get("status")
    # Rows from before polls were logged have no page.
    since = loaded_at or parse_timestamp(row["updated_at"])
    lag = (now - since).total_seconds() if since else None
    return {
        "name": clean(row["account"]),
        "cursor": to_int(row["cursor"]),
        "polled_at": parse_timestamp(row.get("polled_at")),
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
