"""Values as databases take them: timestamps of the service in one format that sorts by time, and texts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

#: How a date and time begins: a day of a month or of a week, then an hour. Newer Pythons read 24 as an hour, too.
_DATE_AND_HOUR: Final = re.compile(r"\d{4}-?(\d\d-?\d\d|W\d\d-?\d)[Tt ]([01]\d|2[0-3])", re.ASCII)

#: A leap second, which RFC 3339 allows: it is taken for the second after it.
_LEAP_SECOND: Final = re.compile(r"(:\d\d):60(?!\d)")


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
