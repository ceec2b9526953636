"""Limits the request rate of a poll, so that the key's rate limit remains for deliveries."""

from __future__ import annotations

from math import inf
from typing import Final

#: Most requests per minute, of the 60 that the service allows a key (service-api.md, R53).
MAX_RATE: Final = 24.0

#: Fewest requests per minute, however many are refused: a wait must end at some time.
MIN_RATE: Final = 4.0

#: Requests per minute by which each minute without a refusal raises the rate.
RATE_INCREASE: Final = 1.0

_MINUTE: Final = 60.0


class RateLimiter:
    """Paces requests (GCRA), and gives way to everybody else who uses the key.

    A refusal (429) halves the rate, each minute without one raises it. After an idle time, the requests of one minute
    are sent without delay, so at most ``2 * MAX_RATE`` in any minute.

    :ivar rate: requests per minute.
    """

    def __init__(self) -> None:
        self.rate = MAX_RATE
        self._reserved_until = -inf
        self._rate_set_at = -inf

    def reserve(self, now: float) -> float:
        """Reserve one request.

        :param now: monotonic seconds.
        :return: seconds to wait before the request is sent.
        """
        self._raise_rate(now)
        self._reserved_until = max(self._reserved_until, now) + _MINUTE / self.rate
        return max(self._reserved_until - now - _MINUTE, 0.0)

    def record_refusal(self, now: float) -> None:
        """Slow down: the service has refused a request because of the rate limit.

        :param now: monotonic seconds.
        """
        self._raise_rate(now)
        self.rate, self._rate_set_at = max(self.rate / 2, MIN_RATE), now
        self._reserved_until = max(self._reserved_until, now + _MINUTE)  # no requests without delay for now

    def _raise_rate(self, now: float) -> None:
        minutes = (now - self._rate_set_at) // _MINUTE
        if minutes > 0 and self.rate < MAX_RATE:
            self.rate = min(self.rate + RATE_INCREASE * minutes, MAX_RATE)
            self._rate_set_at += minutes * _MINUTE
