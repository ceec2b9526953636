"""The retry policy over tenacity: how often and for how long. :mod:`..protocol.retry_rules` decides whether at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tenacity import RetryCallState, retry_if_exception, wait_random, wait_random_exponential

from outbound_transfer.protocol.errors import NotConnected, ServiceError
from outbound_transfer.protocol.messages import Call, Operation
from outbound_transfer.protocol.retry_rules import RetryDecision, decide_retry

log = logging.getLogger(__name__)

#: Seconds before any retry, so that "Retry-After: 0" or a small random backoff cannot cause a busy loop.
MIN_RETRY_DELAY: Final = 0.5

#: The minimum delay doubles with each attempt up to this many seconds, in case "Retry-After: 0" is repeated.
MAX_RETRY_DELAY_FLOOR: Final = 4.0

#: Seconds of random extra delay: clocks differ, and tasks that wait for the same rate limit window spread out.
RETRY_AFTER_JITTER: Final = 1.0

#: Random extra delay of a call that is refused again, as a part of the time that it has waited. The longer calls wait,
#: the more of them there are, and the wider apart they must be to succeed.
WAITED_JITTER: Final = 0.25


@dataclass(frozen=True)
class RetryDetails:
    """A retry that is about to wait.

    :ivar caused_by: the error of the last attempt.
    :ivar wait_for: seconds until the next attempt.
    :ivar repeats: number of calls that another process of the task would make again before this one.
    """

    call: Call[Any]
    caused_by: BaseException
    wait_for: float
    repeats: int = 0

    @property
    def is_server_directed(self) -> bool:
        """Whether the service's response or its limits set the delay; otherwise it is a backoff of our own.

        Only a server-directed delay may be spent deferred, because failures are counted within one process.
        """
        has_retry_after = isinstance(self.caused_by, ServiceError) and self.caused_by.retry_after is not None
        return has_retry_after or decide_retry(self.call, self.caused_by) in (
            RetryDecision.WAIT_RETRY_AFTER,
            RetryDecision.WAIT_FOR_SLOT,
        )


#: Called before each retry delay; may raise :class:`~.deferral.DeferRequested` to wait elsewhere.
RetryHook: TypeAlias = Callable[[RetryDetails], None]


def log_retry(retry: RetryDetails) -> None:
    """Log the delay and its cause."""
    operation = retry.call.operation.value
    cause = str(retry.caused_by).removeprefix(f"{operation}: ")
    log.warning("Waiting %.1f s to repeat %s: %s", retry.wait_for, operation, cause)


@dataclass(frozen=True)
class RetryPolicy:
    """Limits for the retries of one call (service-api.md, R50).

    :ivar max_attempts: attempts that may fail with a transient error (5xx, broken connection, timeout) before the call
        fails. Rate limits and waits for a slot do not count.
    :ivar max_first_attempts: attempts to connect to a service that this client has not reached yet: a wrong address
        fails within seconds. An outage that begins before a task does is left to the task's retries.
    :ivar max_backoff: maximum seconds between two such attempts; each delay is a random part of it (full jitter).
    :ivar timeout: seconds that a call may take in all, including rate limits, excluding the wait for a slot.
    :ivar slot_timeout: seconds that a send may wait in all for a slot (409 transfer_limit_reached).
    :ivar slot_poll_interval: seconds between two attempts to get a slot.
    :ivar max_jitter: maximum seconds of random extra delay of a call that is refused repeatedly because of the rate.
    """

    max_attempts: int = 8
    max_first_attempts: int = 3
    max_backoff: float = 60.0
    timeout: float = 3_600.0
    slot_timeout: float = 3_600.0
    slot_poll_interval: float = 60.0
    max_jitter: float = 300.0


#: For the calls of a poll: few attempts, because the next poll repeats them anyway. A poll paces its calls itself.
POLL_RETRY_POLICY: Final = RetryPolicy(max_attempts=3, max_backoff=10.0, timeout=300.0, max_jitter=RETRY_AFTER_JITTER)


class CallRetries:
    """Decides about the retries of one call, and counts its failures and the time that it has taken.

    :param clock: returns monotonic seconds.
    :param on_retry: called before each delay.
    :param was_reached: returns whether the service was reached before.
    :ivar began: when its first attempt began, by the clock, perhaps in an earlier process; None if none has.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        call: Call[Any],
        *,
        clock: Callable[[], float],
        on_retry: RetryHook,
        began: float | None,
        was_reached: Callable[[], bool],
    ) -> None:
        self.policy, self.call, self.clock, self.on_retry = policy, call, clock, on_retry
        self.began, self.was_reached = began, was_reached
        self.failures = 0
        self.backoff = wait_random_exponential(multiplier=1, max=policy.max_backoff)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of ``tenacity.Retrying`` and ``AsyncRetrying``."""
        return {
            "retry": retry_if_exception(lambda error: decide_retry(self.call, error) is not RetryDecision.FAIL),
            "wait": self.wait,
            "stop": self.should_stop,
            "before_sleep": self.before_sleep,
            "reraise": True,
        }

    @property
    def waited(self) -> float:
        """Seconds since its first attempt began."""
        return 0.0 if self.began is None else self.clock() - self.began

    def begin(self) -> None:
        """Note that an attempt begins: what came before the first does not count."""
        self.began = self.clock() if self.began is None else self.began

    def _decision(self, state: RetryCallState) -> RetryDecision:
        return decide_retry(self.call, _error(state))

    def wait(self, state: RetryCallState) -> float:
        error, decision = _error(state), self._decision(state)
        retry_after = error.retry_after if isinstance(error, ServiceError) else None
        if decision is RetryDecision.WAIT_FOR_SLOT:
            return max(self.policy.slot_poll_interval, retry_after or 0.0) + self._jitter(state, RETRY_AFTER_JITTER)
        if retry_after is not None:
            floor = min(MIN_RETRY_DELAY * 2.0 ** min(state.attempt_number - 1, 10), MAX_RETRY_DELAY_FLOOR)
            delay = max(retry_after, floor)
            return delay + self._jitter(state, self._max_jitter(delay, decision))
        return max(self.backoff(state), MIN_RETRY_DELAY)

    def should_stop(self, state: RetryCallState) -> bool:
        decision = self._decision(state)
        if decision is RetryDecision.WAIT_FOR_SLOT:
            self.failures = 0  # the service works; the account has no free slot
        self.failures += decision is RetryDecision.BACK_OFF
        exceeds_timeout = self.waited + state.upcoming_sleep > self._timeout(decision)
        return self.failures >= self._max_attempts(_error(state)) or exceeds_timeout

    def _max_attempts(self, error: BaseException) -> int:
        if isinstance(error, NotConnected) and not self.was_reached():
            return min(self.policy.max_first_attempts, self.policy.max_attempts)
        return self.policy.max_attempts

    def _timeout(self, decision: RetryDecision) -> float:
        if decision is RetryDecision.WAIT_FOR_SLOT:
            return self.policy.slot_timeout
        # The time that a send spent waiting for a slot must not shorten its timeout for other failures.
        for_slot = self.policy.slot_timeout if self.call.operation is Operation.SEND else 0.0
        return self.policy.timeout + for_slot

    def before_sleep(self, state: RetryCallState) -> None:
        self.on_retry(RetryDetails(self.call, _error(state), state.upcoming_sleep))

    def _max_jitter(self, delay: float, decision: RetryDecision) -> float:
        """Return the maximum random delay after ``delay``. It never makes the call exceed its timeout."""
        waited = self.waited
        left = self._timeout(decision) - waited - delay
        return max(RETRY_AFTER_JITTER, min(waited * WAITED_JITTER, self.policy.max_jitter, left))

    @staticmethod
    def _jitter(state: RetryCallState, max_jitter: float) -> float:
        return wait_random(0.0, max_jitter)(state)


def _error(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "tenacity calls this only after a failure"
    return error
