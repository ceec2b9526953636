"""One wait for one transfer: when it is read, and how it ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from math import inf
from typing import Final

from outbound_transfer.client.errors import InvalidDelivery, NotFound
from outbound_transfer.client.models import PARTIAL, PENDING, Transfer, resolve_transfer_id, to_epoch
from outbound_transfer.client.outcomes import describe, status_hint
from outbound_transfer.waiting.rules import Rules, WaitEnd

#: Statuses of transfers that are outstanding, in the order in which they are listed: one that moves is then seen.
OUTSTANDING: Final = (PENDING, PARTIAL)

#: Minimum seconds between two polls: an interval of 0 must not become a busy loop.
MIN_INTERVAL: Final = 1.0

#: Seconds from a transfer's expiry to the poll for it: the service evaluates expiry on read (service-api.md, R19).
EXPIRY_MARGIN: Final = 1.0


@dataclass(eq=False, slots=True)
class Wait:
    """A deferred task that waits for one transfer.

    :param transfer_id: its id, or a mapping with an ``id``, as delivering tasks return it.
    :param interval: seconds between two polls.
    :param deadline: when the wait times out, after one last poll; seconds since the epoch.
    :param rules: which status ends the wait.
    :ivar seen: the transfer as last read here.
    :ivar asked: when its status was last known, or read in vain; initially, when the wait began, or just before its
        deadline. As all times here, in seconds since the epoch.
    :ivar end: how it has ended; None before.
    :ivar news: lines for the task's log; then how the wait has ended.
    :raises TypeError, ValueError: an argument is invalid.
    """

    transfer_id: str
    interval: float
    deadline: float
    rules: Rules
    seen: Transfer | None = None
    asked: float = field(default_factory=lambda: time.time())
    end: WaitEnd | None = None
    news: asyncio.Queue[str | WaitEnd] = field(default_factory=asyncio.Queue)
    _expired_at: float = inf
    _told: str = ""

    def __post_init__(self) -> None:
        self.transfer_id, interval = resolve_transfer_id(self.transfer_id), float(self.interval)
        if not 0 <= interval < inf:
            raise ValueError(f"invalid interval: {interval}")
        self.interval = max(interval, MIN_INTERVAL)
        self.asked = min(self.asked, self.deadline - 1)  # one that begins after its deadline is read once, too

    def is_due(self, origin: float, at: float) -> bool:
        """Return whether to read the transfer: once in each interval, and once at each moment.

        :param origin: where intervals begin. All waits of one interval are due together.
        """
        # "!=", as somebody may set the clock back.
        is_another = (at - origin) // self.interval != (self.asked - origin) // self.interval
        return is_another or any(self.asked < moment <= at for moment in self._moments)

    def must_be_read(self, at: float) -> bool:
        """Return whether it does not suffice that no listing shows the transfer as finished."""
        is_outstanding = self.seen is not None and self.seen.status in OUTSTANDING
        return not is_outstanding or self.rules.accept_partial or min(self._moments) <= at

    @property
    def _moments(self) -> tuple[float, ...]:
        return self.deadline, self._expired_at

    def update(self, read: Transfer | Exception | None, at: float, ahead: float = 0.0) -> None:
        """Apply what was read at ``at``, unless the wait has ended.

        :param read: the transfer; or the error of its read; None if it is known to be outstanding still.
        :param ahead: seconds by which the service's clock is ahead of this one.
        """
        if self.end or (read is None and self.must_be_read(at)):
            return  # another wait for the same transfer may be content with less
        self.asked = at
        if isinstance(read, Transfer):
            self._see(read, at, ahead)
        elif isinstance(read, NotFound | InvalidDelivery):
            self.finish(WaitEnd("error", self.seen, str(read)))
        elif isinstance(read, Exception):
            self.tell(f"Could not read transfer '{self.transfer_id}'; the wait continues: {read}")

    def _see(self, transfer: Transfer, at: float, ahead: float) -> None:
        # Only with a new status: an expiry that is put off at each read must not cause polls of its own.
        if self.seen is None or self.seen.status != transfer.status:
            self._expired_at = (to_epoch(transfer.expires_at) or inf) - ahead + EXPIRY_MARGIN
        self.seen = transfer
        if self.rules.outcome_of(transfer) is not None:
            self.finish(WaitEnd("finished", transfer))
        elif at >= self.deadline:
            self.finish(WaitEnd("timeout", transfer))
        else:
            self.tell(describe(transfer) + status_hint(transfer))

    def time_out(self) -> None:
        """End the wait if its deadline has passed; it has not if the clock was set back."""
        if time.time() >= self.deadline:
            self.finish(WaitEnd("timeout", self.seen))

    def finish(self, end: WaitEnd) -> None:
        """End the wait, unless it has ended."""
        if self.end is None:
            self.news.put_nowait(end)
            self.end = end

    def tell(self, line: str) -> None:
        """Log a line, unless it was the last one."""
        if line != self._told:
            self._told = line
            self.news.put_nowait(line)
