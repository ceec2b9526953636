"""One retry loop for every call, over tenacity: what to repeat, how long to wait, and when to stop."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from outbound_transfer.client.errors import CallError, NotConnected, RateLimited, ServiceError

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
RetryHook = Callable[[str, CallError, float], object]


def log_retry(operation: str, error: CallError, seconds: float) -> None:
    """Log a wait and its cause."""
    log.warning("Waiting %.1f s to repeat %s: %s", seconds, operation, str(error).removeprefix(f"{operation}: "))


def retry(
    operation: str,
    attempt: Callable[[], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None],
    on_retry: RetryHook = log_retry,
    was_reached: Callable[[], bool] = lambda: True,
    max_in_doubt: int | None = None,
) -> T:
    """Repeat an attempt while its error is transient, within the policy.

    :param max_in_doubt: attempts that may end in doubt, each of which may leave a duplicate.
    :raises CallError: of the last attempt. A loop around this one does not repeat it.
    """
    failures, doubts, waited, waited_for_slot = 0, 0, 0.0, 0.0

    def delay(state: RetryCallState) -> float:
        error = _error_of(state)
        retry_after = error.retry_after if isinstance(error, ServiceError) else None
        if error.waits_for_slot:
            return max(policy.slot_interval, retry_after or 0.0) + random.random()  # noqa: S311
        if isinstance(error, RateLimited) and retry_after is None:
            retry_after = RATE_LIMIT_DELAY
        if retry_after is not None:
            return max(retry_after, MIN_DELAY) + random.random()  # noqa: S311
        return random.uniform(MIN_DELAY, min(policy.max_backoff, 2.0 ** (failures + 1)))  # noqa: S311

    def is_over(state: RetryCallState) -> bool:
        nonlocal failures, doubts, waited, waited_for_slot
        error = _error_of(state)
        waits_for_slot = error.waits_for_slot
        failures += not (waits_for_slot or isinstance(error, RateLimited))
        doubts += error.in_doubt
        if waits_for_slot:
            waited_for_slot += state.upcoming_sleep
        else:
            waited += state.upcoming_sleep
        is_first = isinstance(error, NotConnected) and not was_reached()
        error.is_exhausted = (
            failures >= (min(policy.max_first_attempts, policy.max_attempts) if is_first else policy.max_attempts)
            or doubts == max_in_doubt
            or waited > policy.timeout
            or waited_for_slot > policy.slot_timeout
            or (not waits_for_slot and state.upcoming_sleep > MAX_RETRY_AFTER)
        )
        return error.is_exhausted

    def before_sleep(state: RetryCallState) -> None:
        on_retry(operation, _error_of(state), state.upcoming_sleep)

    retrying = Retrying(
        retry=retry_if_exception(_may_be_repeated),
        wait=delay,
        stop=is_over,
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
    return retrying(attempt)


def _may_be_repeated(error: BaseException) -> bool:
    return isinstance(error, CallError) and error.is_transient and not error.is_exhausted


def _error_of(state: RetryCallState) -> CallError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, CallError), "tenacity calls this only after an error that may be repeated"
    return error
