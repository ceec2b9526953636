"""When the calls of one key are made, so that the service refuses none of them (service-api.md, R53)."""

from __future__ import annotations

from bisect import bisect_right, insort
from math import floor
from typing import Final

import msgspec

#: Seconds in which a key has a number of calls: any such period, not the minutes of a clock (service-api.md, R53).
WINDOW: Final = 60.0

#: Calls of a key within that time, unless its connection says more.
DEFAULT_CALLS_PER_MINUTE: Final = 60

#: Seconds by which a call may reach the service earlier or later than scheduled.
MARGIN: Final = 0.5

#: Maximum number of calls in a window that are set aside for polls, so that waits finish while deliveries use the key.
MAX_POLL_CALLS: Final = 4

#: Seconds after the last call of a poll for which calls are set aside for the next one.
POLL_TIMEOUT: Final = 120.0

#: Maximum number of seconds that a poll waits for a call.
MAX_POLL_DELAY: Final = WINDOW + MARGIN

#: Polls leave a third of a key's calls to deliveries, which may start at any time.
DELIVERY_PART: Final = 3

#: Maximum number of seconds for which calls are reserved ahead. A later time comes from a clock that was wrong.
MAX_AHEAD: Final = 86_400.0


class CallSchedule(msgspec.Struct):
    """The calls of one key, made and to be made. All times are seconds since the epoch by one clock.

    Deliveries come first, in the order in which they reserve. A poll gets what they leave, and at least
    :data:`MAX_POLL_CALLS` in a window.

    :ivar calls: when calls of the last window were made, or will be; sorted.
    :ivar poll_calls: the same for the calls that are set aside for polls.
    :ivar polled_at: when a poll last reserved a call.
    :ivar refused_at: when the service last refused a call.
    :ivar not_before: the service accepts no call before.
    :ivar changed_at: when a call was last reserved or refused.
    """

    calls: list[float] = []
    poll_calls: list[float] = []
    polled_at: float = 0.0
    refused_at: float = 0.0
    not_before: float = 0.0
    changed_at: float = 0.0

    @property
    def reserved_until(self) -> float:
        """When the last scheduled call is made; 0 if there is none."""
        return max(self.calls[-1:] + self.poll_calls[-1:], default=0.0)

    def reserve(self, now: float, allowance: int, *, is_poll: bool) -> float:
        """Reserve one call.

        :param allowance: calls in a window that the service grants the key.
        :param is_poll: whether the call is one of a poll, for which a delivery does not wait.
        :return: when the call is to be made.
        """
        self._forget(now)
        set_aside = min(MAX_POLL_CALLS, max(allowance // 8, 1)) if is_poll or now < self.polled_at + POLL_TIMEOUT else 0
        calls, limit_of_calls = self.calls, max(allowance - set_aside, 1)
        if is_poll:
            self.polled_at = now
            if len(self.calls) + min(len(self.poll_calls), set_aside) >= allowance - allowance // DELIVERY_PART:
                calls, limit_of_calls = self.poll_calls, set_aside
        at = max(now, self.not_before, *calls[-1:])
        if len(calls) >= limit_of_calls:
            at = max(at, calls[-limit_of_calls] + WINDOW + MARGIN)
        if is_poll and at > now + MAX_POLL_DELAY:  # not reserved: it may be refused, and the next poll is near
            return now + MAX_POLL_DELAY
        insort(calls, floor(at * 1_000) / 1_000)
        return at

    def record_refusal(self, now: float, retry_after: float) -> None:
        """Record that the service has refused a call because of the rate limit: another program uses the key, too.

        :param retry_after: seconds for which the service accepts no call; not believed beyond one window.
        """
        self._forget(now)
        self.refused_at = now
        self.not_before = max(self.not_before, now + min(retry_after, WINDOW))

    def _forget(self, now: float) -> None:
        """Drop the calls of earlier windows; all if the clock was set back: nobody waits for what it showed before."""
        latest = max(self.reserved_until, self.not_before, self.polled_at)
        if now < self.changed_at - WINDOW or latest > now + MAX_AHEAD:
            self.calls, self.poll_calls = [], []
            self.polled_at = self.refused_at = self.not_before = 0.0
        self.changed_at = now
        start = now - WINDOW - MARGIN
        self.calls = self.calls[bisect_right(self.calls, start) :]
        self.poll_calls = self.poll_calls[bisect_right(self.poll_calls, start) :]
