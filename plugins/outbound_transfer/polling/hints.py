"""Transfers that new events name are read first. While this shows what was picked up, full polls become rarer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final, NamedTuple

#: Seconds from one poll of named transfers to the next one, doubled with each that fails.
HINT_INTERVAL: Final = 30.0
MAX_HINT_INTERVAL: Final = 900.0

#: Seconds within which a named transfer must be read, and an event must follow a pickup that a full poll shows first.
MAX_DELAY: Final = 120.0

#: Seconds between full polls while events name what is picked up: doubled from the first to the last.
FIRST_RARE_INTERVAL: Final = 60.0
LAST_RARE_INTERVAL: Final = 900.0

#: Seconds without a pickup after which it is unknown whether events still name them.
MAX_SILENCE: Final = 3_600.0

#: Seconds without news of the events after which full polls are not rare.
MAX_AGE: Final = 60.0


class _Named(NamedTuple):
    """When events first and last named a transfer since it was read."""

    first: float
    last: float


class Hints:
    """What new events say about the transfers that a poller polls. All times are monotonic seconds.

    That an event names a transfer proves nothing, as its fields are not documented (service-api.md, R46): the transfer
    is read. Full polls find what no event names. They become rarer step by step while reads of named transfers show
    pickups before a full poll does. They are as frequent as before once one pickup is not named in time, a named
    transfer is not read in time, or events cannot be read.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Named] = {}
        self._not_named: dict[str, float] = {}
        self._not_before = self._confirmed_at = self._rarer_at = self._updated_at = -inf
        self._rare_interval = 0.0
        self._is_confirmed = False
        self._failures = 0

    @property
    def due_at(self) -> float:
        """When named transfers are read next; inf if there are none."""
        return self._not_before if self._named else inf

    def rare_interval(self, now: float) -> float:
        """Return the minimum seconds between two full polls; 0 if hints change nothing."""
        return self._rare_interval if now - self._updated_at < MAX_AGE else 0.0

    def update(self, values: Collection[str] | None, is_polled: Callable[[str], bool], now: float) -> None:
        """Apply what was read of the events.

        :param values: texts in new events; None if the events could not be read.
        :param is_polled: returns whether a text is the id of a transfer that is polled.
        """
        self._updated_at = now
        for value in values or ():
            self._not_named.pop(value, None)
            if is_polled(value):
                before = self._named.get(value)
                self._named[value] = _Named(before.first if before else now, now)
        has_late = any(now - named.first >= MAX_DELAY for named in self._named.values())
        if has_late:
            self._named = {one: named for one, named in self._named.items() if now - named.first < MAX_DELAY}
        is_refuted = any(now - at >= MAX_DELAY for at in self._not_named.values())
        if values is None or has_late or is_refuted or now - self._confirmed_at >= MAX_SILENCE:
            self._make_frequent(now)
        elif self._is_confirmed and now >= self._rarer_at:
            self._rare_interval = min(max(2 * self._rare_interval, FIRST_RARE_INTERVAL), LAST_RARE_INTERVAL)
            self._rarer_at, self._is_confirmed = now + self._rare_interval, False

    def take(self, is_polled: Callable[[str], bool], now: float) -> list[str]:
        """Return the named transfers if it is time to read them, the first named ones first."""
        if now < self._not_before:
            return []
        self._named = {one: named for one, named in self._named.items() if is_polled(one)}
        if self._named:
            self._not_before = now + HINT_INTERVAL
        return list(self._named)

    def forget(self, transfer_ids: Iterable[str], poll_start: float) -> None:
        """Forget the transfers that a poll has read, unless they were named after it started."""
        for transfer_id in transfer_ids:
            named = self._named.get(transfer_id)
            if named and named.last <= poll_start:
                del self._named[transfer_id]

    def back_off(self, now: float) -> None:
        """Leave the named transfers to full polls, as they could not be read."""
        self._named.clear()
        self._make_frequent(now)
        self._failures = min(self._failures + 1, 10)
        self._not_before = now + min(HINT_INTERVAL * 2**self._failures, MAX_HINT_INTERVAL)

    def record_pickup(self, transfer_id: str, now: float, *, is_hinted: bool) -> None:
        """Record that a poll shows a transfer as picked up that it did not show so before.

        :param is_hinted: whether the transfer was read because it was named.
        """
        if is_hinted:
            self._confirmed_at, self._is_confirmed, self._failures = now, True, 0
        elif transfer_id not in self._named:  # what waits to be read is judged when it is late
            self._not_named[transfer_id] = now

    def _make_frequent(self, now: float) -> None:
        self._rare_interval, self._is_confirmed, self._rarer_at = 0.0, False, now
        self._not_named = {one: at for one, at in self._not_named.items() if now - at < MAX_DELAY}
