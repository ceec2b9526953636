"""How fast a poll may ask, so that the key's allowance is left to those who send."""

from __future__ import annotations

from typing import Final

#: Requests a minute in the long run, of the 60 that a key has (service.md, Limits).
A_MINUTE: Final = 24

#: Requests that may be made at once: a look at a thousand transfers, and at those that have ended since the last.
BURST: Final = 24


class Allowance:
    """Paces requests: :data:`BURST` at once, then :data:`A_MINUTE` a minute, so never more than 48 in any minute."""

    def __init__(self) -> None:
        self._spent_until = float("-inf")

    def take(self, now: float) -> float:
        """Take one request's worth; the seconds to wait before it is made.

        :param now: seconds.
        """
        cost = 60 / A_MINUTE
        self._spent_until = max(self._spent_until, now) + cost
        return max(self._spent_until - now - BURST * cost, 0.0)
