"""One wait for one transfer: when it is read, and how it ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from math import floor, inf, isfinite
from typing import Any, Final, NamedTuple

from outbound_transfer.protocol.ids import resolve_transfer_id
from outbound_transfer.protocol.lateness import first_late_at
from outbound_transfer.protocol.models import Transfer, to_epoch
from outbound_transfer.protocol.outcomes import OutcomeRules, describe, status_hint

#: Minimum seconds between two polls: an interval of 0 must not become a busy loop.
MIN_INTERVAL: Final = 1.0

#: Seconds between two polls if the stored interval is invalid.
DEFAULT_INTERVAL: Final = 60.0

#: Seconds from a transfer's expiry to the poll for it: the service evaluates expiry on read (service-api.md, R19).
EXPIRY_MARGIN: Final = 1.0

#: Seconds between two attempts at the last poll before a timeout, and for which they go on.
LAST_POLL_INTERVAL: Final = 10.0
LAST_CHANCE: Final = 180.0


class Now(NamedTuple):
    """The current time in seconds.

    :ivar monotonic: for intervals: nobody sets this clock.
    :ivar wall: since the epoch, for deadlines and the service's timestamps.
    """

    monotonic: float
    wall: float


def now() -> Now:
    """Return the current time."""
    return Now(time.monotonic(), time.time())


class Row(NamedTuple):
    """A transfer as triggerers show it to one another: nothing of a person. Times are in seconds since the epoch."""

    id: str
    status: str
    sent_at: float | None
    expires_at: float | None

    @classmethod
    def of(cls, transfer: Transfer) -> Row:
        return cls(transfer.id, transfer.status, to_epoch(transfer.sent_at), to_epoch(transfer.expires_at))


class End(NamedTuple):
    """How a wait ended: ``finished``, ``late``, ``timeout`` or ``error``, which has a message."""

    status: str
    message: str = ""


@dataclass(eq=False, slots=True)
class Wait:
    """A deferred task that waits for one transfer.

    :param transfer_id: its id, or a mapping with an ``id``, as delivering tasks return it.
    :param interval: seconds between two polls.
    :param deadline: when the wait times out, after one last poll; seconds since the epoch.
    :param rules: which status ends the wait.
    :param notify_after: see :func:`.find_late`.
    :ivar seen: the transfer as last read here.
    :ivar row: the transfer as last shown, also to another triggerer.
    :ivar asked: when it was last known, or read in vain; initially, when the wait began.
    :ivar news: lines for the task's log; ``changed`` is set when there are some, or the wait has ended.
    :raises ValueError: an argument is invalid.
    """

    transfer_id: str
    interval: float
    deadline: float
    rules: OutcomeRules
    notify_after: tuple[float, ...] = ()
    seen: Transfer | None = None
    row: Row | None = None
    asked: Now = field(default_factory=now)
    end: End | None = None
    news: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _expires_at: float = inf
    _late_at: float = inf
    _overdue_since: float = inf
    _problem: str = ""

    def __post_init__(self) -> None:
        self.transfer_id, self.interval = resolve_transfer_id(self.transfer_id), valid_interval(self.interval)
        if not isfinite(self.deadline):
            raise ValueError(f"invalid deadline: {self.deadline}")

    def due_at(self, origin: float, at: Now) -> float:
        """Return when the transfer is read next, in monotonic seconds: at the poll's times, and once at each moment.

        :param origin: the first of the poll's times. All waits of one interval share them, whenever they began.
        """
        interval = self.interval if self._overdue_since == inf else min(self.interval, LAST_POLL_INTERVAL)
        regular = _next_time(self.asked.monotonic, origin, interval)
        return min([regular, *(at.monotonic - at.wall + one for one in self._moments() if one > self.asked.wall)])

    def must_be_read(self, at: Now) -> bool:
        """Return whether it does not suffice that no listing shows the transfer as finished."""
        return self.rules.accept_partial or any(one <= at.wall for one in self._moments())

    def _moments(self) -> tuple[float, float, float]:
        return self.deadline, self._expires_at + EXPIRY_MARGIN, self._late_at

    def update(self, transfer: Transfer, at: Now, ahead: float = 0.0) -> None:
        """Apply a response to a request that was made at ``at``.

        :param ahead: seconds by which the service's clock is ahead of this one.
        """
        before = self.seen
        if before is None or (before.status, before.picked_up_count) != (transfer.status, transfer.picked_up_count):
            self._tell(describe(transfer) + status_hint(transfer))
        if before is None or before.status != transfer.status:
            self._late_at = first_late_at(transfer, self.notify_after)
        self.show(Row.of(transfer), at, ahead)
        self.seen, self._problem = transfer, ""
        if self.rules.outcome_of(transfer) is not None:
            self.finish("finished")
        elif at.wall >= self.deadline:
            self.finish("timeout")
        elif at.wall >= self._late_at:
            self.finish("late")

    def show(self, row: Row | None, at: Now, ahead: float = 0.0) -> None:
        """Apply that the transfer was outstanding at ``at``: so another triggerer, or no listing of the finished, says.

        :param row: what that triggerer was shown.
        """
        # Only with a new status: an expiry that is extended at each poll must not cause polls of its own.
        if row and (self.row is None or self.row.status != row.status):
            self._expires_at = inf if row.expires_at is None else row.expires_at - ahead
        self.row, self.asked = row or self.row, at

    def fail(self, error: object, at: Now) -> None:
        """Apply that the transfer could not be read by itself; the wait continues."""
        self.asked = at
        self.warn(f"Could not read transfer '{self.transfer_id}'; the wait continues: {error}")

    def warn(self, problem: str) -> None:
        """Log a problem, unless it was the last one."""
        if problem != self._problem:
            self._problem = problem
            self._tell(problem)

    def check_deadline(self, at: Now) -> None:
        """End the wait if its deadline has passed for so long that no last poll will show the transfer."""
        if at.wall < self.deadline:  # also if the clock was set back
            self._overdue_since = inf
        elif at.monotonic - (since := min(self._overdue_since, at.monotonic)) < LAST_CHANCE:
            self._overdue_since = since
        else:
            self.finish("timeout")

    def finish(self, status: str, message: str = "") -> None:
        """End the wait, unless it has ended."""
        self.end = self.end or End(status, message)
        self.changed.set()

    def _tell(self, line: str) -> None:
        self.news.append(line)
        self.changed.set()


def valid_interval(given: Any) -> float:
    """Return an interval of a stored trigger, which may be anything, in seconds."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return max(float(given), MIN_INTERVAL) if is_number and isfinite(given) and given >= 0 else DEFAULT_INTERVAL


def _next_time(after: float, origin: float, interval: float) -> float:
    """Return the first of ``origin``, ``origin + interval``, … that is after ``after``."""
    number = max(floor((after - origin) / interval) + 1, 0)
    # Floating-point rounding may give the time itself.
    return next(at for at in (origin + number * interval, origin + (number + 1) * interval) if at > after)
