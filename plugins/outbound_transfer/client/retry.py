"""How often and how long: the one retry policy, over tenacity. Whether at all is decided in protocol/repeats."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tenacity import RetryCallState, retry_if_exception, wait_random_exponential

from outbound_transfer.protocol.errors import ServiceError
from outbound_transfer.protocol.exchange import Call, Operation
from outbound_transfer.protocol.repeats import Decision, decide

log = logging.getLogger(__name__)

#: Never repeat at once: "Retry-After: 0", nonsense or an unlucky draw of the jitter must not make a hot loop.
SHORTEST_WAIT: Final = 0.5

#: Nor must it when it is said again and again: the shortest wait is doubled each time, up to this.
LONGEST_SHORT_WAIT: Final = 4.0

#: The service's window is not ours to the millisecond; also spreads out the tasks that wait for one window.
POLITENESS: Final = 0.25


@dataclass(frozen=True)
class Wait:
    """A wait between two tries, about to begin.

    :ivar seconds: how long it will take.
    :ivar waited: seconds that this call has spent before it, those before an earlier deferral included.
    """

    call: Call[Any]
    error: BaseException
    seconds: float
    waited: float

    @property
    def is_asked_for(self) -> bool:
        """Whether the service asked for it, or its limits do; otherwise it is a backoff of our own.

        Only what is asked for may be spent elsewhere: how often a call has failed is counted in one process.
        """
        told = isinstance(self.error, ServiceError) and self.error.retry_after is not None
        return told or decide(self.call, self.error) in (Decision.WAIT_AS_TOLD, Decision.WAIT_FOR_SLOT)


#: Told of every wait before it begins; may raise to wait elsewhere (a deferral).
OnWait: TypeAlias = Callable[[Wait], None]


def log_wait(wait: Wait) -> None:
    """Say why nothing happens for a while."""
    what = wait.call.operation.value
    log.warning("Waiting %.1f s to repeat %s: %s", wait.seconds, what, str(wait.error).removeprefix(f"{what}: "))


@dataclass(frozen=True)
class RetryPolicy:
    """Bounds of one call's repeats.

    :ivar attempts: tries that may fail unclearly (5xx, broken connections, timeouts) before the call is given up.
    :ivar longest_backoff: seconds at most between two such tries; each wait is drawn from below it (full jitter).
    :ivar patience: seconds in all that a call may take with its waits, rate limits included, a slot's aside.
    :ivar limit_patience: seconds in all that a send may wait for a slot (409 transfer_limit_reached).
    :ivar slot_interval: seconds between two tries for a slot.
    """

    attempts: int = 8
    longest_backoff: float = 60.0
    patience: float = 3_600.0
    limit_patience: float = 3_600.0
    slot_interval: float = 60.0

    def options(
        self, call: Call[Any], clock: Callable[[], float], on_wait: OnWait = log_wait, waited: float = 0.0
    ) -> dict[str, Any]:
        """The arguments of ``tenacity.Retrying`` and ``AsyncRetrying`` for one call.

        :param clock: monotonic seconds.
        :param waited: seconds that this very call has waited in an earlier process.
        """
        budget = _Budget(self, call, clock, on_wait, waited)
        return {
            "retry": retry_if_exception(lambda error: decide(call, error) is not Decision.FAIL),
            "wait": budget.wait,
            "stop": budget.is_spent,
            "before_sleep": budget.announce,
            "reraise": True,
        }


#: For a look at a transfer: few tries, as the next look is one too.
LOOKS: Final = RetryPolicy(attempts=3, longest_backoff=10.0, patience=300.0)


class _Budget:
    """One call's bookkeeping: failures counted, time spent."""

    def __init__(
        self, policy: RetryPolicy, call: Call[Any], clock: Callable[[], float], on_wait: OnWait, waited: float
    ) -> None:
        self.policy, self.call, self.clock, self.on_wait = policy, call, clock, on_wait
        self.started = clock() - waited
        self.failures = 0
        self.backoff = wait_random_exponential(multiplier=1, max=policy.longest_backoff)

    def _decision(self, state: RetryCallState) -> Decision:
        return decide(self.call, _error(state))

    def wait(self, state: RetryCallState) -> float:
        error, decision = _error(state), self._decision(state)
        asked = error.retry_after if isinstance(error, ServiceError) else None
        if decision is Decision.WAIT_FOR_SLOT:
            return max(self.policy.slot_interval, asked or 0.0) + self._jitter(state)
        if asked is not None:
            shortest = min(SHORTEST_WAIT * 2.0 ** min(state.attempt_number - 1, 10), LONGEST_SHORT_WAIT)
            return max(asked, shortest) + self._jitter(state)
        return max(self.backoff(state), SHORTEST_WAIT)

    def is_spent(self, state: RetryCallState) -> bool:
        decision = self._decision(state)
        if decision is Decision.WAIT_FOR_SLOT:
            self.failures = 0  # the service is well, it is the account that is full
        self.failures += decision is Decision.BACK_OFF
        too_long = self._waited() + state.upcoming_sleep > self._patience(decision)
        return self.failures >= self.policy.attempts or too_long

    def _patience(self, decision: Decision) -> float:
        if decision is Decision.WAIT_FOR_SLOT:
            return self.policy.limit_patience
        # A send that has waited for a slot until now is as patient with a passing failure as any other call.
        for_slot = self.policy.limit_patience if self.call.operation is Operation.SEND else 0.0
        return self.policy.patience + for_slot

    def announce(self, state: RetryCallState) -> None:
        self.on_wait(Wait(self.call, _error(state), state.upcoming_sleep, self._waited()))

    def _waited(self) -> float:
        return self.clock() - self.started

    @staticmethod
    def _jitter(state: RetryCallState) -> float:
        return wait_random_exponential(multiplier=POLITENESS, max=POLITENESS)(state)


def _error(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "tenacity asks only after a failure"
    return error
