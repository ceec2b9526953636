"""Converts rows for the templates. Values are not trusted: all text is cleaned here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from outbound_transfer.delivery.row import Memory
from outbound_transfer.links.transfer import transfer_url
from outbound_transfer.store.health import is_behind
from outbound_transfer.store.rows import read_event_time
from outbound_transfer.ui.filters import CLOSED, OUTCOME_OF, UNKNOWN
from outbound_transfer.ui.queries import DAYS, Row
from outbound_transfer.wording import clean, format_bytes, format_duration

#: Shown instead of a missing value.
DASH: Final = "\N{EN DASH}"

#: The height of the chart's highest bar, and the parts of a bar from the bottom up: their labels by outcome.
HEIGHT: Final = 100
PARTS: Final = {"complete": "picked up", "in-flight": "waiting", "in-doubt": "in doubt", "expired": "overdue"}

#: The values that a template shows of one object, by the names that it uses. Times are datetimes in UTC, or None.
Shown: TypeAlias = dict[str, Any]


def show_delivery(
    row: Row, now: datetime, find_web_url: Callable[[str], str], *, shows_recipients: bool, max_subject: int = 200
) -> Shown:
    """Return a delivery. Its ``transfer_id`` is "" if there is no draft; ``recipients`` is empty if only their number
    is known.

    :param find_web_url: returns the URL of a connection's web application.
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
    """Return the recipients of a JSON list of objects; anything else is left out."""
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
    """Return the files in a delivery's memory; none if another version of this package wrote it."""
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


def format_timestamp(timestamp: datetime | None) -> str:
    """Return for example ``2026-01-31 23:59:59 UTC``, or a dash for None."""
    return timestamp.strftime("%Y-%m-%d %H:%M:%S UTC") if timestamp else DASH


def totals(counts: Iterable[Row], since: datetime) -> Counter[str]:
    """Count deliveries by outcome, from a day on."""
    counted: Counter[str] = Counter()
    for row in counts:
        if str(row["day"]) >= f"{since:%Y-%m-%d}":
            counted[OUTCOME_OF.get(row["status"], UNKNOWN)] += row["count"]
    return counted


def draw(counts: Iterable[Row], now: datetime) -> Shown:
    """Return the chart: a bar for each of the last days in UTC, with its text and parts, and a text for all of them.

    :param counts: the ``count`` of deliveries that began on a ``day`` and have a ``status``.
    """
    days = [f"{now - timedelta(days=back):%Y-%m-%d}" for back in reversed(range(DAYS))]
    numbers: Counter[tuple[str, str | None]] = Counter()
    for row in counts:
        numbers[str(row["day"]), OUTCOME_OF.get(row["status"])] += row["count"]
    by_day = {day: [numbers[day, part] for part in PARTS] for day in days}
    most = max(map(sum, by_day.values()))
    return {
        "bars": [{"text": f"{day}: {_count(parts)}", "parts": _stack(parts, most)} for day, parts in by_day.items()],
        "first": days[0],
        "last": days[-1],
        "most": most,
        "text": _count([sum(each) for each in zip(*by_day.values(), strict=True)]),
        "legend": PARTS,
    }


def _count(numbers: list[int]) -> str:
    parts = (f"{number:,} {label}" for number, label in zip(numbers, PARTS.values(), strict=True))
    return f"{sum(numbers):,} sent: {', '.join(parts)}"


def _stack(numbers: list[int], most: int) -> list[tuple[str, float, float]]:
    """Return the outcome, the top and the height of each part."""
    parts, top = [], float(HEIGHT)
    for number, outcome in zip(numbers, PARTS, strict=True):
        height = HEIGHT * number / max(most, 1)
        top -= height
        parts.append((outcome, round(top, 2), round(height, 2)))
    return parts
