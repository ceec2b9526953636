"""The Retry-After header (service-api.md, R50; RFC 9110 §10.2.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

#: Seconds; longer than any timeout, so that absurd numbers stay out of the arithmetic.
MAX_DELAY: Final = 10.0**9


def parse_retry_after(value: str | None, *, date: str | None = None) -> float | None:
    """Return the seconds that the service asks to wait.

    :param value: the header: a whole number of seconds, or an HTTP date.
    :param date: the ``Date`` header of the same response. An HTTP date counts from it, so that a wrong local clock does
        not matter; without it, an HTTP date is ignored.
    :return: 0 to :data:`MAX_DELAY`; None if the header is missing or invalid.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return float(min(int(value.strip().lstrip("0")[:12] or 0), MAX_DELAY))
    deadline, now = parse_http_date(value), parse_http_date(date)
    if deadline is None or now is None:
        return None
    return min(max((deadline - now).total_seconds(), 0.0), MAX_DELAY)


def parse_http_date(value: str | None) -> datetime | None:
    """Parse a header such as ``Date``; None if it is missing or invalid."""
    try:
        timestamp = parsedate_to_datetime(value or "")
    except (TypeError, ValueError, OverflowError):
        return None
    # HTTP dates are in UTC (RFC 9110 §5.6.7); the library returns "-0000" without a time zone.
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
