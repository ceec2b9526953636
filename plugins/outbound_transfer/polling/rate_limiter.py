"""Limits the request rate of a poll, so that most of the key's rate limit remains for deliveries."""

from __future__ import annotations

from typing import Final

#: Sustained requests per minute, of the 60 that the service allows a key (service-api.md, R53).
REQUESTS_PER_MINUTE: Final = 24

#: Requests without delay after an idle time: enough to poll a thousand transfers and those that finished since.
BURST: Final = 24


class RateLimiter:
    """Paces requests (GCRA): :data:`BURST`, then :data:`REQUESTS_PER_MINUTE`, so at most 48 in any minute."""

    def __init__(self) -> None:
        self._reserved_until = float("-inf")

    def reserve(self, now: float) -> float:
        """Reserve one request.

        :param now: monotonic seconds.
        :return: seconds to wait before the request is sent.
        """
        cost = 60 / REQUESTS_PER_MINUTE
        self._reserved_until = max(self._reserved_until, now) + cost
        return max(self._reserved_until - now - BURST * cost, 0.0)
