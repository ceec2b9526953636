"""Who waits for what, when each is looked at next, and when a wait is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import inf, isfinite
from typing import Any, Final

from outbound_transfer.polling.schedule import Now, interval_of, next_look
from outbound_transfer.polling.watch import Watch
from outbound_transfer.protocol.ids import transfer_id_of
from outbound_transfer.protocol.models import Transfer, as_listed, instant_of
from outbound_transfer.protocol.outcomes import KNOWN_STATUSES, OutcomeRules, story

#: Expiry is evaluated on read (service.md, States and transitions), so it is looked for just after it is due.
AFTER_EXPIRY: Final = 1.0

#: Seconds for which the look that precedes a timeout is repeated where it fails.
LAST_LOOK: Final = 30.0

#: Seconds between its repeats.
AGAIN: Final = 10.0


@dataclass(eq=False, slots=True)
class Wait:
    """One wait for one transfer.

    :ivar transfer_id: or a mapping, as of :func:`~outbound_transfer.protocol.ids.transfer_id_of`.
    :ivar interval: seconds between two looks.
    :ivar deadline: when it is given up, after one last look; seconds since the epoch.
    :ivar looked: when the last look at the transfer began; at first, when the wait did.
    :ivar sent: when the transfer was sent; 0 where that is not known.
    :ivar end: how it has ended, once it has: the payload of the trigger's event.
    :ivar remarks: what its task's log should say.
    :ivar overdue: since when its deadline is seen to have passed, in steady seconds.
    :ivar tried: a look that began since then could not show the transfer.
    :raises ValueError: what is asked for is no wait.
    """

    transfer_id: str
    interval: float
    deadline: float
    rules: OutcomeRules
    looked: Now
    seen: Transfer | None = None
    sent: float = 0.0
    expires: float = -inf
    end: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)
    overdue: float = inf
    tried: bool = False
    _trouble: str = ""

    def __post_init__(self) -> None:
        self.transfer_id, self.interval = transfer_id_of(self.transfer_id), interval_of(self.interval)
        if not isfinite(self.deadline):
            raise ValueError(f"{self.deadline} is no deadline")

    def due(self, grid: float, now: Now) -> float:
        """When it is to be looked at next, in steady seconds: regularly, just after it expires, and at its deadline."""
        of_wall = now.steady - now.wall
        last = self.looked.steady + AGAIN if self.tried else self.deadline + of_wall
        moments = [next_look(self.looked.steady, grid, self.interval), last]
        if (expired := self.expires + AFTER_EXPIRY) > self.looked.wall:
            moments.append(expired + of_wall)
        return min(moments)

    def see(self, transfer: Transfer, began: Now) -> None:
        """Take in what a look has shown."""
        if self.seen is None or (self.seen.status, self.seen.picked_up) != (transfer.status, transfer.picked_up):
            is_strange = transfer.status not in KNOWN_STATUSES
            self.remarks.append(
                story(transfer) + ("; service.md does not list this status, the wait goes on" if is_strange else "")
            )
        if self.seen is None or self.seen.status != transfer.status:  # one that moves on its own makes no looks
            self.expires = instant_of(transfer.expires_at) or -inf
        self.seen, self.looked, self._trouble = transfer, began, ""
        self.sent = instant_of(transfer.sent_at) or 0.0
        if self.rules.of(transfer) is not None:
            self._end("ended")
        elif began.wall >= self.deadline:
            self._end("timed out")

    def miss(self, trouble: str, began: Now) -> None:
        """The transfer could not be read by itself, which says nothing of it."""
        if trouble != self._trouble:
            self.remarks.append(f"transfer {self.transfer_id} cannot be read, and the wait goes on: {trouble}")
        self._trouble, self.looked = trouble, began
        self.look_in_vain(began)

    def look_in_vain(self, began: Now) -> None:
        """A look has not shown it."""
        self.tried |= began.steady >= self.overdue

    def check_deadline(self, now: Now) -> None:
        """Note whether the deadline has passed; a clock that was set back takes that back too."""
        if now.wall < self.deadline:
            self.overdue, self.tried = inf, False
        elif self.overdue == inf:
            self.overdue = now.steady

    def fail(self, message: str) -> None:
        """The service refuses what the wait needs."""
        self._end("failed", message)

    def give_up(self) -> None:
        """The deadline has passed, and the transfer could not be seen."""
        self._end("timed out")

    def _end(self, ending: str, message: str = "") -> None:
        self.end = {"ending": ending, "transfer": as_listed(self.seen) if self.seen else None, "message": message}


class Waits:
    """All who wait on one connection in this process."""

    def __init__(self) -> None:
        self._by_id: defaultdict[str, list[Wait]] = defaultdict(list)
        self.watches: list[Watch] = []
        self._has_news = False

    @contextmanager
    def joined(self, wait: Wait) -> Iterator[Wait]:
        """Have ``wait`` looked after while the block runs."""
        self._by_id[wait.transfer_id].append(wait)
        try:
            yield wait
        finally:
            others = self._by_id[wait.transfer_id]
            others.remove(wait)
            if not others:
                del self._by_id[wait.transfer_id]

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[Watch]:
        """Have ``watch`` told of every transfer while the block runs."""
        self.watches.append(watch)
        try:
            yield watch
        finally:
            self.watches.remove(watch)

    def __iter__(self) -> Iterator[Wait]:
        """The waits that have not ended."""
        return (wait for waits in self._by_id.values() for wait in waits if wait.end is None)

    def next_due(self, grid: float, now: Now) -> float:
        """When the next look is due; never where nobody waits."""
        return min(chain((wait.due(grid, now) for wait in self), (one.due(grid) for one in self.watches)), default=inf)

    def see(self, transfers: Iterable[Transfer], began: Now) -> None:
        """Take in what a look has shown."""
        for transfer in transfers:
            for wait in self._of(transfer.id):
                wait.see(transfer, began)
                self._has_news |= bool(wait.remarks or wait.end)

    def show(self, transfers: Iterable[Transfer]) -> None:
        """Have the watches take in all that a look has shown: at once, as each tells of all ends together."""
        for transfer in transfers:
            for watch in self.watches:
                watch.see(transfer)

    def miss(self, troubled: Mapping[str, Exception], began: Now) -> None:
        """Take in which transfers a look could not read."""
        for transfer_id, error in troubled.items():
            for wait in self._of(transfer_id):
                wait.miss(str(error), began)
                self._has_news |= bool(wait.remarks)

    def look_in_vain(self, began: Now) -> None:
        """A look has failed, and what it has not shown it never will."""
        for wait in self:
            if wait.looked != began:
                wait.look_in_vain(began)

    def lose(self, gone: Mapping[str, Exception]) -> None:
        """Take in which transfers the key does not see."""
        for transfer_id, error in gone.items():
            for wait in self._of(transfer_id):
                wait.fail(str(error))
                self._has_news = True
        for watch in self.watches:
            watch.forget(gone)

    def have_news(self) -> bool:
        """Whether anybody has something to tell since this was last asked."""
        has_news, self._has_news = self._has_news, False
        return has_news or any(watch.has_news for watch in self.watches)

    def fail(self, message: str) -> None:
        """End every wait."""
        for wait in list(self):
            wait.fail(message)

    def check_deadlines(self, now: Now) -> bool:
        """Note whose deadline has passed; whether any of them has yet to be looked at since."""
        is_owed = False
        for wait in self:
            wait.check_deadline(now)
            is_owed |= wait.overdue < inf and not wait.tried
        return is_owed

    def give_up(self, now: Now) -> bool:
        """End the waits for which even the last look has failed for long enough; whether there were any."""
        late = [wait for wait in self if wait.tried and now.steady >= wait.overdue + LAST_LOOK]
        for wait in late:
            wait.give_up()
        return bool(late)

    def _of(self, transfer_id: str) -> Iterator[Wait]:
        return (wait for wait in self._by_id.get(transfer_id, ()) if wait.end is None)
