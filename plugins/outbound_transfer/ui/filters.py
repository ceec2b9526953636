"""Filters of the page, parsed from query parameters. Invalid parameters are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL, PENDING
from outbound_transfer.client.outcomes import DELETED, FAILED, IN_DOUBT, NO_DRAFT, REHEARSED
from outbound_transfer.client.wording import clean

#: Lengths of the time window, in days.
WINDOWS: Final = (7, 30, 90, 365)
DEFAULT_DAYS: Final = 30

IN_FLIGHT: Final = "in-flight"
WITH_ERROR: Final = "error"

#: Final statuses, and those of deliveries without a draft.
FINISHED_STATUSES: Final = (COMPLETE, EXPIRED, CANCELED, DELETED, REHEARSED, FAILED, NO_DRAFT)

#: Labels of the status filter.
CHOICES: Final = {
    "": "Any status",
    IN_FLIGHT: "In flight",
    WITH_ERROR: "With an error",
    FAILED: "Failed before a draft",
    DRAFT: "Not sent (draft)",
    IN_DOUBT: "In doubt",
    PENDING: "Pending",
    PARTIAL: "Partial",
    COMPLETE: "Complete",
    EXPIRED: "Expired",
    CANCELED: "Canceled",
    NO_DRAFT: "No draft",
    REHEARSED: "Rehearsed",
    DELETED: "Deleted",
}

#: Seconds between automatic reloads.
REFRESH_SECONDS: Final = 60

_MAX_SEARCH_LENGTH: Final = 200
_POSITION: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?)Z~([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True)
class Position:
    """A position in the list of deliveries: ``created_at`` and ``delivery`` of the row before it."""

    created_at: datetime
    delivery: str

    def __str__(self) -> str:
        return f"{self.created_at.replace(tzinfo=None).isoformat()}Z~{self.delivery}"


@dataclass(frozen=True)
class Filter:
    """The filter of the page.

    :ivar days: length of the time window.
    :ivar status: a key of :data:`CHOICES`.
    :ivar search: part of a transfer id, subject or DAG id.
    :ivar older: show only deliveries older than this position.
    :ivar refresh: whether the page reloads automatically.
    """

    days: int = DEFAULT_DAYS
    status: str = ""
    search: str = ""
    older: Position | None = None
    refresh: bool = False

    def query(self, **changes: object) -> str:
        """Return the query string of this filter with ``changes``. Paging restarts unless they set a position."""
        other = replace(self, **({"older": None} | changes))  # type: ignore[arg-type]
        chosen = {
            "days": other.days if other.days != DEFAULT_DAYS else "",
            "status": other.status,
            "search": other.search,
            "older": other.older or "",
            "refresh": REFRESH_SECONDS if other.refresh else "",
        }
        return "?" + urlencode({name: value for name, value in chosen.items() if value != ""})


def parse_filter(params: Mapping[str, str]) -> Filter:
    """Parse the filter of a request."""
    days = params.get("days", "")
    status = params.get("status", "")
    return Filter(
        days=int(days) if days in map(str, WINDOWS) else DEFAULT_DAYS,
        status=status if status in CHOICES else "",
        search=clean(params.get("search", ""), _MAX_SEARCH_LENGTH).strip(),
        older=_parse_position(params.get("older", "")),
        refresh=bool(params.get("refresh")),
    )


def _parse_position(text: str) -> Position | None:
    if (match := _POSITION.fullmatch(text)) is None:
        return None
    try:
        return Position(datetime.fromisoformat(match[1]).replace(tzinfo=UTC), match[2])
    except ValueError:
        return None


def window_start(days: int, now: datetime) -> datetime:
    """Return when the time window starts: at a midnight in UTC. Its last day is today."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=days - 1)
