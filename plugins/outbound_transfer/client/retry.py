"""One retry loop for every call, over tenacity: what to repeat, how long to wait, and when to stop."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying

from outbound_transfer.client.errors import CallError, NotConnected, RateLimited

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds. A wait that the service asks for and that is longer is left to the task's retries.
MAX_RETRY_AFTER: Final = 600.0

#: Seconds before any repeat, so that "Retry-After: 0" is no busy loop.
MIN_DELAY: Final = 0.5

#: Seconds between two attempts after 429 without a usable Retry-After: the service's window is a minute.
RATE_LIMIT_DELAY: Final = 10.0


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of the retries of one call (service-api.md, R50).

    :ivar max_attempts: attempts that may fail with a transient error (5xx, broken connection, timeout) before the call
        does. Waits for the rate limit (429) or for a slot (409 transfer_limit_reached) do not count.
    :ivar max_first_attempts: the same for connections while this client has not reached the service: a wrong address
        fails within seconds.
    :ivar max_backoff: maximum seconds between two such attempts; each delay is a random part of it.
    :ivar timeout: seconds that a call may wait in all, without its waits for a slot.
    :ivar slot_timeout: seconds that a send may wait in all for a slot; 0 to leave the wait to the caller.
    :ivar slot_interval: seconds between two attempts to get a slot.
    """

    max_attempts: int = 8
    max_first_attempts: int = 3
    max_backoff: float = 60.0
    timeout: float = 3_600.0
    slot_timeout: float = 3_600.0
    slot_interval: float = 60.0


#: Of the calls of a poll: the next one is near.
POLL_RETRY_POLICY: Final = RetryPolicy(max_attempts=3, max_backoff=10.0, timeout=600.0)

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
    :param max_in_doubt: attempts that may end in doubt, each of which may leave a duplicate.
    :raises CallError: of the last attempt. A loop around this one does not repeat it.
    """
    failures, doubts, waited, waited_for_slot = 0, 0, 0.0, 0.0

    def is_over(state: RetryCallState) -> bool:
        nonlocal failures, doubts, waited, waited_for_slot
        error, seconds, max_failures = _error_of(state), state.upcoming_sleep, policy.max_attempts
        doubts += error.in_doubt
        if error.waits_for_slot:
            waited_for_slot += seconds
        else:
            waited += seconds
            failures += not isinstance(error, RateLimited)
        if isinstance(error, NotConnected) and not was_reached():
            max_failures = min(policy.max_first_attempts, max_failures)
        error.is_exhausted = (
            failures >= max_failures
            or doubts == max_in_doubt
            or waited > policy.timeout
            or waited_for_slot > policy.slot_timeout
            or (seconds > MAX_RETRY_AFTER and not error.waits_for_slot)
        )
        return error.is_exhausted

    retrying = Retrying(
        retry=_may_be_repeated,
        wait=lambda state: _delay(_error_of(state), failures, policy),
        stop=is_over,
        sleep=sleep,
        before_sleep=lambda state: on_retry(operation, _error_of(state), state.upcoming_sleep),
        reraise=True,
    )
    return retrying(lambda: attempt(doubts > 0))


def _delay(error: CallError, failures: int, policy: RetryPolicy) -> float:
    """Return the seconds before the next attempt: what the service asks for and at most a second, or a backoff."""
    asked: float | None = getattr(error, "retry_after", None)
    if error.waits_for_slot:
        asked = max(policy.slot_interval, asked or 0.0)
    elif isinstance(error, RateLimited) and asked is None:
        asked = RATE_LIMIT_DELAY
    if asked is None:
        return random.uniform(MIN_DELAY, min(policy.max_backoff, 2.0 ** (failures + 1)))  # noqa: S311
    return max(asked, MIN_DELAY) + random.random()  # noqa: S311


def _may_be_repeated(state: RetryCallState) -> bool:
    error = state.outcome and state.outcome.exception()
    return isinstance(error, CallError) and error.is_transient and not error.is_exhausted


def _error_of(state: RetryCallState) -> CallError:
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, CallError), "tenacity calls this only after an error that may be repeated"
    return error


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
    if deadline is None or now is None:
        return None
    return max((deadline - now).total_seconds(), 0.0)


def parse_http_date(value: str | None) -> datetime | None:
    """Parse a header such as ``Date``; None if it is missing or invalid."""
    try:
        timestamp = parsedate_to_datetime(value or "")
    except (TypeError, ValueError, OverflowError):
        return None
    # HTTP dates are in UTC (RFC 9110 §5.6.7); the library returns "-0000" without a time zone.
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
