"""Statuses, rows of deliveries, times and texts as tables have them. SQLAlchemy is not imported."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL

#: Statuses that no longer change (service-api.md, R18).
TERMINAL_STATUSES: Final = (COMPLETE, EXPIRED, CANCELED)

#: Status of a transfer that the service has no longer. It knows neither this one nor those below.
DELETED: Final = "deleted"

#: Status of a draft that a rehearsal discarded; that a person is asked to approve; whose send has an unknown outcome.
REHEARSED: Final = "rehearsed"
WAITS_FOR_APPROVAL: Final = "waits for approval"
IN_DOUBT: Final = "in doubt"

#: Statuses of a delivery without a draft: its last attempt failed; it runs, was skipped, or discarded its draft.
FAILED: Final = "failed"
NO_DRAFT: Final = "no draft"

#: What is stored in the place of a text with an erased address.
ERASED: Final = "(erased)"

#: What the column ``phase`` says of a draft that is handed on, while a person is asked to approve it.
ASKED: Final = "asked"


#: How a date and time begins: a day of a month or of a week, then an hour. Newer Pythons read 24 as an hour, too.
_DATE_AND_HOUR: Final = re.compile(r"\d{4}-?(\d\d-?\d\d|W\d\d-?\d)[Tt ]([01]\d|2[0-3])", re.ASCII)

#: A leap second, which RFC 3339 allows: it is taken for the second after it.
_LEAP_SECOND: Final = re.compile(r"(:\d\d):60(?!\d)")


def status_rank(status: str) -> int:
    """Return how late a status is: the rank of a transfer's status never decreases (service-api.md, R18)."""
    if status in (*TERMINAL_STATUSES, DELETED):
        return 3
    # A transfer with an unknown status (service-api.md, R5) was sent.
    return {DRAFT: 0, PARTIAL: 2}.get(status, 1)


class Stored(NamedTuple):
    """A row as a delivery keeps it; ``dag_id`` is "" if the page does not show it."""

    is_keyed: bool
    account: str
    transfer_id: str
    phase: str
    twin: str
    run_started: str
    memory: str
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 0
    is_rehearsal: bool = False
    security: str = ""


class Kept(NamedTuple):
    """A copy of a row's page columns under another key, with this memory; ``error``: "" for that of the row."""

    key: str
    row: Stored
    error: str = ""


class Shown(NamedTuple):
    """A transfer as the service shows it, for the page.

    :ivar recipients: ``email``, ``name`` and ``picked_up_at`` (ISO 8601, or None) of each.
    """

    status: str
    subject: str
    recipient_count: int
    picked_up_count: int
    sent_at: datetime | None
    expires_at: datetime | None
    recipients: list[dict[str, Any]]


def utc_now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def format_timestamp(timestamp: datetime) -> str:
    """Return e.g. ``2026-01-31T23:59:59.123456Z``: the length is fixed, so that the text sorts by time."""
    return timestamp.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def read_event_time(timestamp: str | None) -> datetime | None:
    """Return a timestamp of the service in UTC; None if it is not an ISO 8601 date and time.

    None also in the year 1 or 9999: in the time zone of a reader's session, it may be in no valid year.
    """
    # The format is not documented (service-api.md, Unspecified).
    if not timestamp or len(timestamp) > 100 or not _DATE_AND_HOUR.match(timestamp):
        return None
    plain, leaps = timestamp.upper(), 0
    if ":60" in plain:
        plain, leaps = _LEAP_SECOND.subn(r"\1:59", plain, count=1)
    try:
        found = datetime.fromisoformat(plain)
        if leaps:
            found += timedelta(seconds=1)
        if found.tzinfo is not UTC:  # each event has a time
            found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # OverflowError: in UTC it is in no year
        return None
    return None if found.year in (1, 9999) else found


def storable_text(text: str) -> str:
    """Return ``text`` without the characters that some database cannot store: NUL and unpaired surrogates."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
