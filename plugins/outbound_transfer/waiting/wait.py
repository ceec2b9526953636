"""One wait for one transfer: when it is read, which status ends it, and how (service-api.md, R17)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from outbound_transfer.client import models
from outbound_transfer.client.errors import InvalidDelivery, NotFound
from outbound_transfer.store.rows import read_event_time

FAIL: Final = "fail"
SKIP: Final = "skip"
SUCCEED: Final = "succeed"

OUTCOMES: Final = (SUCCEED, FAIL, SKIP)  # what on_expired and on_canceled may be

OUTSTANDING: Final = (models.PENDING, models.PARTIAL)  # in the order of listing: one that moves is seen

MIN_INTERVAL: Final = 1.0  # seconds between two polls: an interval of 0 must not become a busy loop
EXPIRY_MARGIN: Final = 1.0  # seconds from expiry to the poll for it: it is evaluated on read (service-api.md, R19)


def epoch_of(timestamp: str | None, default: float = inf) -> float:
    """Return a timestamp of the service as seconds since the epoch."""
    found = read_event_time(timestamp)
    return found.timestamp() if found else default


class Rules(NamedTuple):
    """The outcome of a task for each terminal status."""

    on_expired: str = FAIL  # one of OUTCOMES
    on_canceled: str = FAIL  # as well
    accept_partial: bool = False  # whether to succeed as soon as one recipient has picked up

    def outcome_of(self, transfer: models.Transfer) -> str | None:
        """Return the outcome of waiting for ``transfer``; None to keep waiting.

        Unknown statuses keep a task waiting (service-api.md, R5: the set of statuses is open).
        """
        is_partial = transfer.status == models.PARTIAL or len(transfer.picked_up) > 0
        if self.accept_partial and is_partial and transfer.status != models.CANCELED:
            return SUCCEED
        return {models.COMPLETE: SUCCEED, models.EXPIRED: self.on_expired, models.CANCELED: self.on_canceled}.get(
            transfer.status
        )


class WaitEnd(msgspec.Struct, frozen=True):
    """How a wait in the triggerer has ended: the payload of the trigger's event."""

    status: Literal["finished", "timeout", "error"]
    transfer: models.Transfer | None = None  # as last read, without its files; None if it never was
    message: str = ""  # of an error


def wait_outcome(status: str) -> str:
    """Return the metric's outcome for a wait that finishes with this status."""
    return {models.COMPLETE: "picked_up", models.EXPIRED: "expired", models.CANCELED: "canceled"}.get(status, "partial")


def skip_reason(transfer: models.Transfer) -> str:
    """Return why a task whose transfer has this status is skipped."""
    return f"Skipped by on_expired or on_canceled: {models.describe(transfer)}"


@dataclass(eq=False, slots=True)
class Wait:
    """A deferred task that waits for one transfer. All times are seconds since the epoch.

    :raises InvalidDelivery: ``transfer_id`` is not a string.
    """

    transfer_id: str
    interval: float  # seconds between two polls
    deadline: float  # when the wait times out, after one last poll
    rules: Rules
    seen: models.Transfer | None = None  # as last read here
    asked: float = field(default_factory=lambda: time.time())  # when its status was last known, or read in vain
    end: WaitEnd | None = None
    news: asyncio.Queue[str | WaitEnd] = field(default_factory=asyncio.Queue)  # lines for the task's log; then the end
    _expired_at: float = inf
    _told: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.transfer_id, str):  # the arguments of a trigger may come from elsewhere
            raise InvalidDelivery(f"transfer_id must be a string, not {type(self.transfer_id).__name__}")
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
        """Return whether to read the transfer even if no listing shows it as finished."""
        is_outstanding = self.seen is not None and self.seen.status in OUTSTANDING
        return not is_outstanding or self.rules.accept_partial or min(self.deadline, self._expired_at) <= at

    def update(self, read: models.Transfer | Exception | None, at: float, ahead: float = 0.0) -> None:
        """Apply what was read at ``at``, unless the wait has ended.

        :param read: the transfer; or the error of its read; None if it is known to be outstanding still.
        :param ahead: seconds by which the service's clock is ahead of this one.
        """
        if self.end or (read is None and self.must_be_read(at)):
            return  # another wait for the same transfer may need less
        at = min(at, time.time())  # somebody may have set the clock back
        self.asked = min(at, self.deadline - 1) if isinstance(read, Exception) else at  # a last poll is repeated
        if isinstance(read, models.Transfer):
            # Only with a new status: an expiry that is put off at each read must not cause polls of its own.
            if self.seen is None or self.seen.status != read.status:
                self._expired_at = epoch_of(read.expires_at) - ahead + EXPIRY_MARGIN
            self.seen = read
            if self.rules.outcome_of(read):
                self.finish(WaitEnd("finished", read))
            elif at >= self.deadline:
                self.finish(WaitEnd("timeout", read))
            else:
                self.tell(models.describe(read) + models.status_hint(read))
        elif isinstance(read, NotFound | InvalidDelivery):
            self.finish(WaitEnd("error", self.seen, str(read)))
        elif read:
            self.tell(f"Could not read transfer '{self.transfer_id}'; the wait continues: {read}")

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
