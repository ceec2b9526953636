"""One wait for one transfer: when it is read, which status ends it, and how (service-api.md, R17)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from outbound_transfer.client.errors import InvalidDelivery, NotFound
from outbound_transfer.client.models import CANCELED, COMPLETE, EXPIRED, PARTIAL, PENDING, Transfer, to_epoch
from outbound_transfer.client.outcomes import describe, status_hint

FAIL: Final = "fail"
SKIP: Final = "skip"
SUCCEED: Final = "succeed"

#: What ``on_expired`` and ``on_canceled`` may be.
OUTCOMES: Final = (SUCCEED, FAIL, SKIP)

#: Statuses of transfers that are outstanding, in the order in which they are listed: one that moves is then seen.
OUTSTANDING: Final = (PENDING, PARTIAL)

#: Minimum seconds between two polls: an interval of 0 must not become a busy loop.
MIN_INTERVAL: Final = 1.0

#: Seconds from a transfer's expiry to the poll for it: the service evaluates expiry on read (service-api.md, R19).
EXPIRY_MARGIN: Final = 1.0


class Rules(NamedTuple):
    """What each terminal status means for a task.

    :ivar on_expired: one of :data:`OUTCOMES`.
    :ivar on_canceled: one of :data:`OUTCOMES`.
    :ivar accept_partial: whether to succeed as soon as one recipient has picked up.
    """

    on_expired: str = FAIL
    on_canceled: str = FAIL
    accept_partial: bool = False

    def outcome_of(self, transfer: Transfer) -> str | None:
        """Return the outcome of waiting for ``transfer``; None to keep waiting.

        Unknown statuses keep a task waiting (service-api.md, R5: the set of statuses is open).
        """
        outcomes = {COMPLETE: SUCCEED, EXPIRED: self.on_expired, CANCELED: self.on_canceled}
        is_partial = transfer.status == PARTIAL or len(transfer.picked_up) > 0
        if self.accept_partial and is_partial and transfer.status != CANCELED:
            return SUCCEED
        return outcomes.get(transfer.status)


class WaitEnd(msgspec.Struct, frozen=True):
    """How a wait in the triggerer has ended: the payload of the trigger's event.

    :ivar transfer: as last read, without its files; None if it never was.
    :ivar message: of an error.
    """

    status: Literal["finished", "timeout", "error"]
    transfer: Transfer | None = None
    message: str = ""


def wait_outcome(status: str) -> str:
    """Return as what a wait is counted that finishes with this status."""
    return {COMPLETE: "picked_up", EXPIRED: "expired", CANCELED: "canceled"}.get(status, "partial")


def skip_reason(transfer: Transfer) -> str:
    """Return why a task is skipped whose transfer has this status."""
    return f"Skipped by on_expired or on_canceled: {describe(transfer)}"


@dataclass(eq=False, slots=True)
class Wait:
    """A deferred task that waits for one transfer.

    :param transfer_id: its id.
    :param interval: seconds between two polls.
    :param deadline: when the wait times out, after one last poll; seconds since the epoch.
    :ivar seen: the transfer as last read here.
    :ivar asked: when its status was last known, or read in vain; initially, when the wait began, or just before its
        deadline. As all times here, in seconds since the epoch.
    :ivar end: how it has ended; None before.
    :ivar news: lines for the task's log; then how the wait has ended.
    :raises InvalidDelivery: ``transfer_id`` is no text.
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
        if not isinstance(self.transfer_id, str):  # the arguments of a trigger may come from elsewhere
            raise InvalidDelivery(f"transfer_id must be text, not {type(self.transfer_id).__name__}")
        self.interval = max(self.interval, MIN_INTERVAL)
        self.asked = min(self.asked, self.deadline - 1)  # one that begins after its deadline is read once, too

    def is_due(self, origin: float, at: float) -> bool:
        """Return whether to read the transfer: once in each interval, and once at each moment.

        :param origin: where intervals begin. All waits of one interval are due together.
        """
        # "!=", as somebody may set the clock back.
        is_another = (at - origin) // self.interval != (self.asked - origin) // self.interval
        return is_another or any(self.asked < moment <= at for moment in (self.deadline, self._expired_at))

    def must_be_read(self, at: float) -> bool:
        """Return whether it does not suffice that no listing shows the transfer as finished."""
        is_outstanding = self.seen is not None and self.seen.status in OUTSTANDING
        return not is_outstanding or self.rules.accept_partial or min(self.deadline, self._expired_at) <= at

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
        elif read:
            self.tell(f"Could not read transfer '{self.transfer_id}'; the wait continues: {read}")

    def _see(self, transfer: Transfer, at: float, ahead: float) -> None:
        # Only with a new status: an expiry that is put off at each read must not cause polls of its own.
        if self.seen is None or self.seen.status != transfer.status:
            self._expired_at = (to_epoch(transfer.expires_at) or inf) - ahead + EXPIRY_MARGIN
        self.seen = transfer
        if self.rules.outcome_of(transfer):
            self.finish(WaitEnd("finished", transfer))
        elif at >= self.deadline:
            self.finish(WaitEnd("timeout", transfer))
        else:
            self.tell(describe(transfer) + status_hint(transfer))

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
