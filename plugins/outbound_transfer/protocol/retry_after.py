"""The Retry-After header (service.md, Endpoints / Client retry guidance; RFC 9110 §10.2.3)."""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Final

#: A wait so long that every deadline is nearer; also keeps hostile numbers out of the arithmetic.
FOREVER: Final = 10.0**9


def seconds_to_wait(value: str | None, *, date: str | None = None) -> float | None:
    """The seconds that the service asks to wait; None where it does not say, or says nonsense.

    :param value: a whole number of seconds or an HTTP date.
    :param date: the answer's own ``Date`` header. An HTTP date is counted from it, so that a client whose clock is
        wrong waits right; without it, an HTTP date says nothing.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return float(min(int(value.strip().lstrip("0")[:12] or 0), FOREVER))
    until, now = _moment(value), _moment(date)
    if until is None or now is None:
        return None
    return min(max((until - now).total_seconds(), 0.0), FOREVER)


def _moment(value: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value or "")
    except (TypeError, ValueError, OverflowError):
        return None
    # RFC 9110 §5.6.7: HTTP dates are in UTC, "-0000" included, which the library leaves naive.
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
