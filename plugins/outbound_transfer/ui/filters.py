"""Filters of the page, parsed from query parameters. Invalid parameters are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL, PENDING
from outbound_transfer.store.rows import DELETED, FAILED, IN_DOUBT, NO_DRAFT, REHEARSED, WAITS_FOR_APPROVAL
from outbound_transfer.wording import clean

#: Lengths of the time window, in days.
WINDOWS: Final = (7, 30, 90, 365)
DEFAULT_DAYS: Final = 30

UNKNOWN: Final = "unknown"

#: Labels of outcomes.
OUTCOMES: Final = {
    "complete": "Complete",
    "in-flight": "In flight",
    "in-doubt": "In doubt",
    "expired": "Expired",
    "canceled-or-unmade": "Canceled or not created",
    "draft": "Not sent",
    "failed": "Failed",
    UNKNOWN: "Unknown status",
}

#: The outcome of each status; that of any other is unknown.
OUTCOME_OF: Final = {
    COMPLETE: "complete",
    **dict.fromkeys((PENDING, PARTIAL), "in-flight"),
    IN_DOUBT: "in-doubt",
    EXPIRED: "expired",
    **dict.fromkeys((CANCELED, DELETED, REHEARSED, NO_DRAFT), "canceled-or-unmade"),
    **dict.fromkeys((DRAFT, WAITS_FOR_APPROVAL), "draft"),
    FAILED: "failed",
}

#: Statuses of transfers that nobody can pick up, or needs to.
CLOSED: Final = [status for status in OUTCOME_OF if status not in (PENDING, PARTIAL, IN_DOUBT)]

WITH_ERROR: Final = "error"

#: Labels of the status filter: outcomes, and single statuses.
_SINGLE: Final = (WAITS_FOR_APPROVAL, PENDING, PARTIAL, CANCELED, DELETED, REHEARSED, NO_DRAFT)
CHOICES: Final = {
    "": "Any status",
    WITH_ERROR: "With an error",
    **OUTCOMES,
    **{status: status.capitalize() for status in _SINGLE},
}

#: Columns that the list can be sorted by. A leading "-" reverses the order.
SORTS: Final = ("age", "status", "subject", "picked-up", "expires", "dag")
NEWEST_FIRST: Final = "age"

#: Seconds between automatic reloads.
REFRESH_SECONDS: Final = 60


@dataclass(frozen=True)
class Filter:
    """The filter of the page.

    :ivar days: length of the time window.
    :ivar status: a key of :data:`CHOICES`.
    :ivar search: part of a transfer id, subject or Dag id.
    :ivar sort: one of :data:`SORTS`, perhaps reversed.
    :ivar page: page number of the list, from 1.
    :ivar refresh: whether the page reloads automatically.
    """

    days: int = DEFAULT_DAYS
    status: str = ""
    search: str = ""
    sort: str = NEWEST_FIRST
    page: int = 1
    refresh: bool = False

    def query(self, **changes: object) -> str:
        """Return the query string of this filter with ``changes``. Paging restarts unless they set a page."""
        other = replace(self, **({"page": 1} | changes))  # type: ignore[arg-type]
        default = asdict(Filter())
        return "?" + urlencode({name: value for name, value in asdict(other).items() if value != default[name]})

    def sorted_by(self, column: str) -> str:
        """Return the query string of the list sorted by a column; reversed if it already is."""
        return self.query(sort=f"-{column}" if self.sort == column else column)


def parse_filter(params: Mapping[str, str]) -> Filter:
    """Parse the filter of a request."""
    days, status, sort = (params.get(name, "") for name in ("days", "status", "sort"))
    return Filter(
        days=int(days) if days in map(str, WINDOWS) else DEFAULT_DAYS,
        status=status if status in CHOICES else "",
        search=clean(params.get("search", ""), 200).strip(),
        sort=sort if sort.removeprefix("-") in SORTS else NEWEST_FIRST,
        page=min(max(parse_number(params.get("page", ""), 1), 1), 9_999),
        refresh=bool(params.get("refresh")),
    )


def parse_number(text: str, default: int) -> int:
    """Parse a whole number of at most nine digits."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else default


def window_start(days: int, now: datetime) -> datetime:
    """Return when the time window starts: at a midnight in UTC. Its last day is today."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=days - 1)
