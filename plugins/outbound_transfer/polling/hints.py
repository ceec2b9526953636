"""Transfers that new events name are read first. While this shows what was picked up, full polls become rarer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import Final

#: Minimum seconds between two polls of named transfers.
HINT_INTERVAL: Final = 30.0

#: Seconds after which a transfer that could not be read is left to full polls.
MAX_HINT_AGE: Final = 300.0

#: Maximum number of named transfers that one poll is for.
MAX_HINTS: Final = 500

#: Seconds within which an event must follow a pickup that a full poll has shown first.
MAX_EVENT_DELAY: Final = 120.0

#: Seconds between full polls while events name what is picked up: doubled from the first to the last.
FIRST_RARE_INTERVAL: Final = 60.0
LAST_RARE_INTERVAL: Final = 900.0

#: Seconds without a pickup after which it is unknown whether events still name them.
MAX_SILENCE: Final = 3_600.0


class Hints:
    """What new events say about the transfers that a poller polls.

    That an event names a transfer proves nothing, as its fields are not documented (service-api.md, R46): the transfer
    is read. Full polls find what no event names. They become rarer step by step while events name what is picked up
    before a full poll shows it, and go on as before as soon as one pickup is not named in time, or events cannot be
    read. All times are monotonic seconds.

    :ivar rare_interval: minimum seconds between two full polls; 0 if hints change nothing.
    """

    def __init__(self) -> None:
        self.rare_interval = 0.0
        self._named: dict[str, float] = {}
        self._not_named: dict[str, float] = {}
        self._not_before = -inf
        self._confirmed_at = self._rarer_at = -inf
        self._is_confirmed = False

    @property
    def due_at(self) -> float:
        """When named transfers are read next; inf if there are none."""
        return self._not_before if self._named else inf

    def add(self, values: Iterable[str], is_polled: Callable[[str], bool], now: float) -> None:
        """Add the texts in new events.

        :param is_polled: returns whether a text is the id of a transfer that is polled.
        """
        for value in values:
            self._not_named.pop(value, None)
            if is_polled(value):
                self._named[value] = now

    def take(self, is_polled: Callable[[str], bool], now: float) -> set[str]:
        """Return the named transfers to read in a poll that starts now, the first named ones first."""
        if now < self._not_before:
            return set()
        self._named = {one: at for one, at in self._named.items() if now - at < MAX_HINT_AGE and is_polled(one)}
        taken = set(islice(self._named, MAX_HINTS))
        if taken:
            self._not_before = now + HINT_INTERVAL
        return taken

    def record_pickup(self, transfer_id: str, now: float) -> None:
        """Record that a poll shows a transfer as picked up that it did not show so before."""
        if transfer_id in self._named:
            self._confirmed_at, self._is_confirmed = now, True
        else:
            self._not_named[transfer_id] = now

    def forget(self, transfer_ids: Iterable[str], poll_start: float) -> None:
        """Forget the transfers that a poll has read, unless they were named after it started."""
        for transfer_id in transfer_ids:
            if self._named.get(transfer_id, inf) <= poll_start:
                del self._named[transfer_id]

    def update_interval(self, now: float, *, can_read: bool) -> None:
        """Set the interval of full polls.

        :param can_read: whether the events can be read.
        """
        is_late = any(now - at >= MAX_EVENT_DELAY for at in self._not_named.values())
        if is_late or not can_read or now - self._confirmed_at >= MAX_SILENCE:
            self.rare_interval, self._is_confirmed, self._rarer_at = 0.0, False, now
            self._not_named = {one: at for one, at in self._not_named.items() if now - at < MAX_EVENT_DELAY}
        elif self._is_confirmed and now >= self._rarer_at:
            self.rare_interval = min(max(2 * self.rare_interval, FIRST_RARE_INTERVAL), LAST_RARE_INTERVAL)
            self._rarer_at, self._is_confirmed = now + self.rare_interval, False
