"""Backoff for transfers that cannot be read, so that they do not slow down the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from typing import Final

#: Seconds from a failed read of a transfer to the next one, doubled each time.
MIN_READ_BACKOFF: Final = 30.0
MAX_READ_BACKOFF: Final = 900.0

#: The maximum for a transfer that the key does not see. A transfer that was deleted costs a few reads a day.
MAX_MISSING_BACKOFF: Final = 6 * 3_600.0


class ReadBackoff:
    """Counts failed reads in a row by transfer. Only failures while other transfers could be read count.

    :param max_delay: maximum seconds between two reads.
    :ivar failures: number of failures and time of the last one, in monotonic seconds, by transfer id.
    """

    def __init__(self, max_delay: float = MAX_READ_BACKOFF) -> None:
        self._max_delay = max_delay
        self.failures: dict[str, tuple[int, float]] = {}

    def record_failure(self, transfer_ids: Iterable[str], now: float) -> None:
        """Count a failed read of each transfer."""
        for one in transfer_ids:
            self.failures[one] = self.failures.get(one, (0, now))[0] + 1, now

    def deprioritize(self, transfer_ids: Iterable[str], now: float) -> None:
        """Read these transfers last next time, without counting a failure: no other transfer could be read either."""
        for one in transfer_ids:
            self.failures[one] = self.failures.get(one, (0, now))[0], now

    def forget(self, transfer_ids: Iterable[str]) -> None:
        """Remove transfers that could be read."""
        for one in transfer_ids:
            self.failures.pop(one, None)

    def retain(self, transfer_ids: Collection[str]) -> None:
        """Remove all transfers but these, which are waited for."""
        self.forget([one for one in self.failures if one not in transfer_ids])

    def is_backed_off(self, transfer_id: str, now: float) -> bool:
        """Return whether the transfer is not to be read yet."""
        count, at = self.failures.get(transfer_id, (0, 0.0))
        return count > 0 and now < at + min(MIN_READ_BACKOFF * 2.0 ** min(count - 1, 10), self._max_delay)

    def last_failure_at(self, transfer_id: str) -> float:
        """Return when the last read of the transfer failed, in monotonic seconds; -inf if it did not fail."""
        return self.failures.get(transfer_id, (0, -inf))[1]
