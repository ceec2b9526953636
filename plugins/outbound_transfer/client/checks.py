"""The checks before a request, which are made again after a wait among them: it ages what was asked before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from outbound_transfer.protocol.errors import ChecksOutdated

#: Seconds that may pass among the checks. Less, and a slow Airflow would never let a delivery be sent.
MAX_AGE: Final = 10.0

#: How often the checks are made at most: where others use up the key's calls, they may wait each time.
MAX_REPEATS: Final = 10


class Checks(threading.local):
    """The checks that a thread makes, and how old their first response has become by waiting.

    The time in which the service responds, within reason, does not count, as the next ones would take as long. What
    lies between does: a retry delay, a failed attempt, a reserved time, an Airflow that does not respond.

    :param clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls, self._attempt_began, self._fresh_until = 0, 0.0, 0.0

    def record_request(self) -> None:
        self._attempt_began = self._clock()

    def record_response(self) -> None:
        """Record that the last attempt has succeeded."""
        now = self._clock()
        if self._calls:
            self._fresh_until += min(now - self._attempt_began, MAX_AGE)
        else:
            self._fresh_until = now + MAX_AGE
        self._calls += 1

    def run(self, check: Callable[[], object], reserve: Callable[[int], object]) -> None:
        """Make the checks until they are fresh.

        :param check: asks whatever may have changed since it was called last.
        :param reserve: reserves so many calls at once, so that they do not wait in between.
        :raises ChecksOutdated: they never are.
        """
        for _ in range(MAX_REPEATS):
            self._calls, self._fresh_until = 0, self._clock() + MAX_AGE
            check()
            if self._clock() <= self._fresh_until:
                return
            reserve(self._calls)
        raise ChecksOutdated(
            "What must hold for the send could not be asked without a wait in between: the service or Airflow responds "
            f"too late, or others use up the key's calls. Nothing is sent; {MAX_REPEATS} times were tried"
        )
