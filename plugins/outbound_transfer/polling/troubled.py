"""Transfers that cannot be read by themselves: each is tried less and less, so that they cost the others nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

#: Seconds from one read of such a transfer to the next, doubled each time.
SHORTEST_REST: Final = 30.0
LONGEST_REST: Final = 900.0


class Troubled:
    """How often each could not be read in a row though others could, and when last. Instants are steady seconds.

    :ivar failures: by id.
    """

    def __init__(self) -> None:
        self.failures: dict[str, tuple[int, float]] = {}

    def note(self, transfer_ids: Iterable[str], now: float) -> None:
        """These could not be read."""
        for one in transfer_ids:
            self.failures[one] = self.failures.get(one, (0, now))[0] + 1, now

    def put_last(self, transfer_ids: Iterable[str], now: float) -> None:
        """These could not be read either, but nor could anything else."""
        for one in transfer_ids:
            self.failures[one] = self.failures.get(one, (0, now))[0], now

    def forget(self, transfer_ids: Iterable[str]) -> None:
        """These could."""
        for one in transfer_ids:
            self.failures.pop(one, None)

    def keep(self, transfer_ids: Collection[str]) -> None:
        """Nobody waits for any others."""
        self.forget([one for one in self.failures if one not in transfer_ids])

    def rests(self, transfer_id: str, now: float) -> bool:
        """Whether it is not to be tried yet."""
        count, at = self.failures.get(transfer_id, (0, 0.0))
        return count > 0 and now < at + min(SHORTEST_REST * 2.0 ** min(count - 1, 10), LONGEST_REST)
