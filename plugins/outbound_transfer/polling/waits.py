"""Who waits for what, when each is looked at next, and when a wait is over. Instants are seconds since the epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from outbound_transfer.polling.schedule import next_look
from outbound_transfer.polling.watch import Watch
from outbound_transfer.protocol.models import Transfer, as_listed, instant_of
from outbound_transfer.protocol.outcomes import KNOWN_STATUSES, OutcomeRules, story

#: Expiry is evaluated on read (service.md, States and transitions), so it is looked for just after it is due.
AFTER_EXPIRY: Final = 1.0

#: Seconds that the look which precedes a timeout may take.
LAST_LOOK: Final = 30.0


@dataclass(eq=False, slots=True)
class Wait:
    """One wait for one transfer.

    :ivar interval: seconds between two looks.
    :ivar deadline: when it is given up, after one last look.
    :ivar looked: when the last look at the transfer began; at first, when the wait did.
    :ivar sent: when the transfer was sent; 0 where that is not known.
    :ivar end: how it has ended, once it has: the payload of the trigger's event.
    :ivar remarks: what its task's log should say.
    """

    transfer_id: str
    interval: float
    deadline: float
    rules: OutcomeRules
    looked: float
    seen: Transfer | None = None
    sent: float = 0.0
    expires: float = -inf
    end: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)

    def due(self, grid: float) -> float:
        """When it is to be looked at next: regularly, just after it expires, and at its deadline."""
        moments = (next_look(self.looked, grid, self.interval), self.expires + AFTER_EXPIRY, self.deadline)
        return min(moment for moment in moments if moment > self.looked)

    def see(self, transfer: Transfer, looked: float) -> None:
        """Take in what a look that began at ``looked`` has shown."""
        if self.seen is None or (self.seen.status, self.seen.picked_up) != (transfer.status, transfer.picked_up):
            is_strange = transfer.status not in KNOWN_STATUSES
            self.remarks.append(
                story(transfer) + ("; service.md does not list this status, the wait goes on" if is_strange else "")
            )
        self.seen, self.looked = transfer, looked
        self.sent = instant_of(transfer.sent_at) or 0.0
        self.expires = instant_of(transfer.expires_at) or -inf
        if self.rules.of(transfer) is not None:
            self._end("ended")
        elif looked >= self.deadline:
            self._end("timed out")

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
        self._newcomers: list[Wait | Watch] = []
        self._has_news = False

    @contextmanager
    def joined(self, wait: Wait) -> Iterator[Wait]:
        """Have ``wait`` looked after while the block runs."""
        self._by_id[wait.transfer_id].append(wait)
        self._newcomers.append(wait)
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
        self._newcomers.append(watch)
        try:
            yield watch
        finally:
            self.watches.remove(watch)

    def __iter__(self) -> Iterator[Wait]:
        """The waits that have not ended."""
        return (wait for waits in self._by_id.values() for wait in waits if wait.end is None)

    def next_due(self, grid: float) -> float:
        """When the next look is due; never where nobody waits."""
        self._newcomers.clear()
        waiting: Iterable[Wait | Watch] = chain(self, self.watches)
        return min((one.due(grid) for one in waiting), default=inf)

    def next_due_of_newcomers(self, grid: float) -> float:
        """The same of those who have joined since one of these two was last asked."""
        newcomers, self._newcomers = self._newcomers, []
        return min((one.due(grid) for one in newcomers), default=inf)

    def see(self, transfers: Iterable[Transfer], looked: float) -> None:
        """Take in what a look that began at ``looked`` has shown."""
        for transfer in transfers:
            for wait in self._of(transfer.id):
                wait.see(transfer, looked)
                self._has_news |= bool(wait.remarks or wait.end)
            for watch in self.watches:
                watch.see(transfer)

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

    def give_up(self, now: float) -> bool:
        """End the waits for which even the last look has had its time; whether there were any."""
        late = [wait for wait in self if now >= wait.deadline + LAST_LOOK]
        for wait in late:
            wait.give_up()
        return bool(late)

    def _of(self, transfer_id: str) -> Iterator[Wait]:
        return (wait for wait in self._by_id.get(transfer_id, ()) if wait.end is None)
