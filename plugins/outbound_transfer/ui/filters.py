"""What a request asks to see: pure. Anything that makes no sense is read as if it were not there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final
from urllib.parse import urlencode

from outbound_transfer.protocol.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL, PENDING
from outbound_transfer.ui.text import shown

#: The windows of time that can be chosen: days, and how many of them make a bar of the plot.
WINDOWS: Final = {7: 1, 30: 1, 90: 3, 365: 7}
WINDOW: Final = 30

IN_FLIGHT: Final = "in-flight"
FAILED: Final = "failed"
REMOVED: Final = "removed"

#: Statuses that nothing changes any more.
FINAL: Final = (COMPLETE, EXPIRED, CANCELED, REMOVED)

#: What can be filtered by, with its words.
CHOICES: Final = {
    "": "Any status",
    IN_FLIGHT: "In flight",
    FAILED: "With an error",
    DRAFT: "Not sent (draft)",
    PENDING: "Pending",
    PARTIAL: "Partial",
    COMPLETE: "Complete",
    EXPIRED: "Expired",
    CANCELED: "Canceled",
    REMOVED: "Removed",
}

#: Seconds between reloads, where they are asked for.
REFRESH: Final = 60

_SEARCH_LENGTH: Final = 200
_POSITION: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)~(.{1,400})", re.DOTALL | re.ASCII)


@dataclass(frozen=True)
class Position:
    """Between two rows of the list, newest first: ``created_at`` and ``transfer_id`` of the row that it is beside."""

    created_at: str
    transfer_id: str

    def __str__(self) -> str:
        return f"{self.created_at}~{self.transfer_id}"


@dataclass(frozen=True)
class Filter:
    """What to show.

    :ivar days: how far back.
    :ivar status: a key of :data:`CHOICES`.
    :ivar search: part of a transfer's id, of a subject or of a DAG's id.
    :ivar older: only rows after this one; ``newer``: only rows before that one.
    """

    days: int = WINDOW
    status: str = ""
    search: str = ""
    older: Position | None = None
    newer: Position | None = None
    refresh: bool = False

    def query(self, **changes: object) -> str:
        """The query string of this filter, or of one that differs from it. Paging begins anew unless it is changed."""
        other = replace(self, **({"older": None, "newer": None} | changes))  # type: ignore[arg-type]
        chosen = {
            "days": other.days if other.days != WINDOW else "",
            "status": other.status,
            "search": other.search,
            "older": other.older or "",
            "newer": other.newer or "",
            "refresh": REFRESH if other.refresh else "",
        }
        return "?" + urlencode({name: value for name, value in chosen.items() if value != ""})


def filter_of(params: Mapping[str, str]) -> Filter:
    """The filter of a request's parameters."""
    days = params.get("days", "")
    status = params.get("status", "")
    older = _position(params.get("older", ""))
    return Filter(
        days=int(days) if days in map(str, WINDOWS) else WINDOW,
        status=status if status in CHOICES else "",
        search=shown(params.get("search", ""), _SEARCH_LENGTH).strip(),
        older=older,
        newer=None if older else _position(params.get("newer", "")),
        refresh=bool(params.get("refresh")),
    )


def _position(text: str) -> Position | None:
    match = _POSITION.fullmatch(text)
    if match is None or "\0" in text:
        return None
    try:
        datetime.fromisoformat(match[1][:-1])
    except ValueError:
        return None
    return Position(match[1], match[2])


def bounds(days: int, now: datetime) -> list[datetime]:
    """Where the bars of the plot begin, oldest first: midnights, UTC. The last bar is of today."""
    step = timedelta(days=WINDOWS[days])
    midnight = now.astimezone(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    newest = midnight - step + timedelta(days=1)
    return [newest - number * step for number in range(-(-days // step.days) - 1, -1, -1)]
