"""The checks before a request, which are made again after a wait among them: it ages what was asked before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from outbound_transfer.client.deferral import MAX_BLOCKING_WAIT
from outbound_transfer.protocol.errors import ChecksOutdated

#: A key whose calls are all used up may let each round wait.
MAX_ROUNDS: Final = 10


class Checks(threading.local):
    """The checks that a thread makes, and how old their first response has become by waiting.

    The time in which the service responds, within reason, does not count, as another round would take as long. What
    lies between does: a retry delay, a failed attempt, a reserved time, an Airflow that does not respond.

    :param clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls, self._attempt_began, self._fresh_until = 0, 0.0, 0.0

    def begin_attempt(self) -> None:
        self._attempt_began = self._clock()

    def record_response(self) -> None:
        """Record that the last attempt has succeeded."""
        now = self._clock()
        if self._calls:
            self._fresh_until += min(now - self._attempt_began, MAX_BLOCKING_WAIT)
        else:
            self._fresh_until = now + MAX_BLOCKING_WAIT
        self._calls += 1

    def run(self, check: Callable[[], object], reserve: Callable[[int], object]) -> None:
        """Make the checks until they are fresh.

        :param check: asks whatever may have changed since it was called last.
        :param reserve: reserves so many calls at once, so that the next round does not wait between them.
        :raises ChecksOutdated: they never are.
        """
        for _ in range(MAX_ROUNDS):
            self._calls = 0
            check()
            if not self._calls or self._clock() <= self._fresh_until:
                return
            reserve(self._calls)
        raise ChecksOutdated(
            "What must hold for the send could not be asked without a wait in between: the service or Airflow responds "
            f"too late, or others use up the key's calls. Nothing is sent; {MAX_ROUNDS} times were tried"
        )
