"""One retry loop for every call, over tenacity: what to repeat, how long to wait, and when to stop."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from outbound_transfer.client.errors import CallError, NotConnected, RateLimited

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds. A wait that the service asks for and that is longer is left to the task's retries.
MAX_RETRY_AFTER: Final = 600.0

#: Seconds before any repeat, so that "Retry-After: 0" is no busy loop.
MIN_DELAY: Final = 0.5

#: Seconds between two attempts after 429 without a usable Retry-After: the service's window is a minute.
RATE_LIMIT_DELAY: Final = 10.0

#: Maximum seconds between two attempts after a failure; each delay is a random part of a backoff up to it.
MAX_BACKOFF: Final = 60.0

#: Seconds between two attempts to get a slot.
SLOT_INTERVAL: Final = 60.0

#: Attempts to connect while the client has not reached the service: a wrong address fails within seconds.
MAX_FIRST_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of the retries of one call (service-api.md, R50).

    :ivar max_attempts: attempts that may fail with a transient error (5xx, broken connection, timeout) before the call
        does. Waits for the rate limit (429) or for a slot (409 transfer_limit_reached) do not count.
    :ivar timeout: seconds that a call may wait in all, without its waits for a slot.
    :ivar slot_timeout: seconds that a send may wait in all for a slot; 0 to leave the wait to the caller.
    """

    max_attempts: int = 8
    timeout: float = 3_600.0
    slot_timeout: float = 3_600.0


#: Called before each wait with the operation, the error of the attempt, and the seconds.
RetryHook = Callable[[str, CallError, float], None]


def log_retry(operation: str, error: CallError, seconds: float) -> None:
    """Log a wait and its cause."""
    log.warning("Waiting %.1f s to repeat %s: %s", seconds, operation, str(error).removeprefix(f"{operation}: "))


def retry(
    operation: str,
    attempt: Callable[[bool], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None],
    on_retry: RetryHook = log_retry,
    was_reached: Callable[[], bool] = lambda: True,
    max_in_doubt: int | None = None,
) -> T:
    """Repeat an attempt while its error is transient, within the policy.

    :param attempt: called with whether an attempt before it ended in doubt.
    :param was_reached: whether a connection to the service was ever established.
    :param max_in_doubt: attempts that may end in doubt, each of which may leave a duplicate.
    :raises CallError: of the last attempt. A loop around this one does not repeat it.
    """
    failures = doubts = 0
    waited = {True: 0.0, False: 0.0}  # for a slot, and otherwise

    def is_over(state: RetryCallState) -> bool:
        nonlocal failures, doubts
        error, max_failures = _error_of(state), policy.max_attempts
        if isinstance(error, NotConnected) and not was_reached():
            max_failures = min(MAX_FIRST_ATTEMPTS, max_failures)
        doubts += error.in_doubt
        failures += not (error.waits_for_slot or isinstance(error, RateLimited))
        waited[error.waits_for_slot] += state.upcoming_sleep
        limits = (
            failures >= max_failures,
            doubts == max_in_doubt,
            state.upcoming_sleep > MAX_RETRY_AFTER,
            waited[False] > policy.timeout,
            waited[True] > policy.slot_timeout,
        )
        error.is_exhausted = any(limits)
        return error.is_exhausted

    retrying = Retrying(
        retry=retry_if_exception(_may_be_repeated),
        wait=lambda state: _delay(_error_of(state), failures),
        stop=is_over,
        sleep=sleep,
        before_sleep=lambda state: on_retry(operation, _error_of(state), state.upcoming_sleep),
        reraise=True,
    )
    return retrying(lambda: attempt(doubts > 0))


def _may_be_repeated(error: BaseException) -> bool:
    return isinstance(error, CallError) and error.is_transient and not error.is_exhausted


def _error_of(state: RetryCallState) -> CallError:
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, CallError), "tenacity calls this only after an error that may be repeated"
    return error


def _delay(error: CallError, failures: int) -> float:
    """Return the seconds before the next attempt: what the service asks for and at most a second, or a backoff."""
    asked = error.retry_after
    if error.waits_for_slot:
        asked = max(SLOT_INTERVAL, asked or 0.0)
    elif isinstance(error, RateLimited) and asked is None:
        asked = RATE_LIMIT_DELAY
    if asked is None:
        return random.uniform(MIN_DELAY, min(MAX_BACKOFF, 2.0 ** (failures + 1)))  # noqa: S311
    return max(asked, MIN_DELAY) + random.random()  # noqa: S311


def parse_retry_after(value: str | None, *, date: str | None = None) -> float | None:
    """Return the seconds that the service asks to wait (service-api.md, R50; RFC 9110 §10.2.3).

    :param value: the header: a whole number of seconds, or an HTTP date.
    :param date: the ``Date`` header of the same response. An HTTP date counts from it, so that a wrong local clock does
        not matter; without it, an HTTP date is ignored.
    :return: 0 or more; None if the header is missing or invalid.
    """
    number = (value or "").strip()
    if number.isascii() and number.isdecimal():
        return float(number)  # infinite if absurd, which is past any timeout
    deadline, now = parse_http_date(value), parse_http_date(date)
    return max((deadline - now).total_seconds(), 0.0) if deadline and now else None


def parse_http_date(value: str | None) -> datetime | None:
    """Parse a header such as ``Date``; None if it is missing or invalid."""
    try:
        timestamp = parsedate_to_datetime(value or "")
    except (TypeError, ValueError, OverflowError):
        return None
    # HTTP dates are in UTC (RFC 9110 §5.6.7); the library returns "-0000" without a time zone.
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
