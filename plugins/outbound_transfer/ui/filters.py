"""Filters of the page, parsed from query parameters. Invalid parameters are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from outbound_transfer.protocol.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL, PENDING
from outbound_transfer.protocol.outcomes import IN_DOUBT, REHEARSED
from outbound_transfer.protocol.wording import clean
from outbound_transfer.warehouse.deliveries import DISCARDED, FAILED

#: Lengths of the time window, in days.
WINDOWS: Final = (7, 30, 90, 365)
DEFAULT_DAYS: Final = 30

IN_FLIGHT: Final = "in-flight"
WITH_ERROR: Final = "error"
DELETED: Final = "deleted"

#: Terminal statuses of the ledger: those of the service, of a discarded draft, of a deleted transfer, and of a
#: task without a draft.
LEDGER_TERMINAL_STATUSES: Final = (COMPLETE, EXPIRED, CANCELED, DISCARDED, REHEARSED, DELETED, FAILED)

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
    DISCARDED: "Discarded",
    REHEARSED: "Rehearsed",
    DELETED: "Deleted",
}

#: Seconds between automatic reloads.
REFRESH_SECONDS: Final = 60

_MAX_SEARCH_LENGTH: Final = 200
_POSITION: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)~(.{1,400})", re.DOTALL | re.ASCII)


@dataclass(frozen=True)
class Position:
    """A position in the list of deliveries: ``created_at`` and ``transfer_id`` of the row before it."""

    created_at: str
    transfer_id: str

    def __str__(self) -> str:
        return f"{self.created_at}~{self.transfer_id}"


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
    match = _POSITION.fullmatch(text)
    if match is None or "\0" in text:
        return None
    try:
        datetime.fromisoformat(match[1][:-1])
    except ValueError:
        return None
    return Position(match[1], match[2])


def window_start(days: int, now: datetime) -> datetime:
    """Return when the time window starts: at a midnight in UTC. Its last day is today."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=days - 1)
