"""Converts rows to what the templates show. Values are not trusted: all text is cleaned here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from outbound_transfer.delivery.row import Memory
from outbound_transfer.links.web import transfer_url
from outbound_transfer.store.health import is_behind
from outbound_transfer.store.values import read_event_time
from outbound_transfer.ui.filters import CLOSED, OUTCOME_OF, UNKNOWN
from outbound_transfer.ui.queries import Row
from outbound_transfer.wording import clean, format_bytes, format_duration

#: Shown instead of a missing value.
DASH: Final = "\N{EN DASH}"

#: What a template shows of one thing, by the names that it uses. Times are datetimes in UTC, or None.
Shown: TypeAlias = dict[str, Any]


def show_delivery(
    row: Row, now: datetime, find_web_url: Callable[[str], str], *, shows_recipients: bool, max_subject: int = 200
) -> Shown:
    """Return a delivery. Its ``transfer_id`` is "" if there is no draft; ``recipients`` is empty if only their number
    is known.

    :param find_web_url: returns the URL of the web application of a connection.
    """
    texts = {name: clean(row[name], 250) for name in ("transfer_id", "conn_id", "dag_id", "task_id", "run_id")}
    paths = {name: quote(row[name], safe="") for name in ("dag_id", "run_id", "task_id")}
    run_path = "dags/{dag_id}/runs/{run_id}".format(**paths)
    mapped = f"/mapped/{row['map_index']}" if row["map_index"] >= 0 else ""
    files, outcome = files_of(row["memory"]), OUTCOME_OF.get(row["shown_status"], UNKNOWN)
    status = clean(row["shown_status"], 40)
    return {
        **texts,
        **{name: row[name] for name in ("map_index", "try_number", "created_at", "sent_at", "expires_at")},
        "subject": clean(row["subject"], max_subject),
        "status": f"unknown status: {status}" if outcome == UNKNOWN else status,
        "outcome": outcome,
        "error": clean(row["error"], 500),
        "files": files,
        "size": format_bytes(sum(each["bytes"] for each in files)),
        "picked_up": f"{row['picked_up_count']} of {row['recipient_count']}" if row["sent_at"] else DASH,
        "recipients": _show_recipients(row["recipients"] if shows_recipients else ""),
        "age": format_duration((now - row["created_at"]).total_seconds()),
        **_show_time_left(row, now),
        "run_path": run_path,
        "task_path": f"{run_path}/tasks/{paths['task_id']}{mapped}",
        "web_url": transfer_url(find_web_url(row["conn_id"]), row["transfer_id"]),
    }


def _show_time_left(row: Row, now: datetime) -> Shown:
    if row["shown_status"] in CLOSED or not row["expires_at"]:
        return {"time_left": DASH, "is_urgent": False}
    left = (row["expires_at"] - now).total_seconds()
    return {"time_left": format_duration(_round_up(left)) if left > 0 else "past", "is_urgent": left < 86_400}


def _round_up(seconds: float) -> float:
    """Return whole days, hours or minutes: the smallest unit that :func:`format_duration` shows of them."""
    unit = 86_400 if seconds >= 864_000 else 3_600 if seconds >= 36_000 else 60
    return -(-seconds // unit) * unit


def _show_recipients(text: str) -> list[Shown]:
    """Return the recipients of a JSON list of objects; what is anything else is left out."""
    try:
        read = json.loads(text)
    except ValueError:
        return []
    return [
        {
            "email": clean(each.get("email")),
            "name": clean(each["name"]) if each.get("name") not in (None, each.get("email")) else "",
            "picked_up_at": read_event_time(each.get("picked_up_at")),
        }
        for each in (read if isinstance(read, list) else ())
        if isinstance(each, dict)
    ]


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


def show_feed(row: Row, now: datetime) -> Shown:
    """Return the state of an account's event feed. Its ``lag`` is the number of seconds since the warehouse had
    everything that the feed had.
    """
    poll, page = row["poll"], row["page"]
    has_more = bool(page.get("has_more"))
    # Rows from before polls were logged have no page.
    lag = (now - page.get("polled_at", row["updated_at"])).total_seconds()
    return {
        "name": clean(row["account"]),
        "cursor": row["cursor"],
        "polled_at": poll.get("polled_at"),
        "status": poll.get("status") or "no response",
        "note": clean(poll.get("note") or "", 500),
        "has_more": has_more,
        "lag": lag,
        "is_late": is_behind(lag, has_more=has_more),
        "rejected": row["rejected"],
    }


def totals(counts: Iterable[Row], since: datetime) -> Counter[str]:
    """Count deliveries by outcome, from a day on."""
    counted: Counter[str] = Counter()
    for row in counts:
        if str(row["day"]) >= f"{since:%Y-%m-%d}":
            counted[OUTCOME_OF.get(row["status"], UNKNOWN)] += row["count"]
    return counted
