"""Waiters for transfers: when each is polled next, and when it finishes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import inf, isfinite
from typing import Any, Final

from outbound_transfer.polling.schedule import Now, PollTimes, interval_or_default
from outbound_transfer.polling.watcher import CompletionWatcher
from outbound_transfer.protocol.ids import resolve_transfer_id
from outbound_transfer.protocol.lateness import first_late_at
from outbound_transfer.protocol.models import Transfer, to_epoch, to_summary_dict
from outbound_transfer.protocol.outcomes import (
    TERMINAL_STATUSES,
    OutcomeRules,
    describe,
    status_hint,
)

#: Seconds from a transfer's expiry to the poll that checks for it: the service evaluates expiry on read
#: (service-api.md, R19).
EXPIRY_MARGIN: Final = 1.0

#: Seconds for which the final poll before a timeout is repeated if it fails.
FINAL_POLL_GRACE: Final = 30.0

#: Seconds between repeats of the final poll.
FINAL_POLL_INTERVAL: Final = 10.0


@dataclass(eq=False, slots=True)
class Waiter:
    """A deferred task that waits for one transfer.

    :ivar transfer_id: the transfer's id. A mapping with an ``id``, as delivering tasks return it, is accepted too.
    :ivar interval: seconds between two polls.
    :ivar deadline: when the waiter times out, after one final poll; seconds since the epoch.
    :ivar rules: when the waiter finishes.
    :ivar polled_at: when the last poll of the transfer started; initially, when the waiter was created.
    :ivar transfer: the transfer as last seen.
    :ivar sent_at: when the transfer was sent, in seconds since the epoch; 0 if unknown.
    :ivar expires_at: when the transfer expires, in seconds since the epoch; -inf if unknown.
    :ivar result: the payload of the trigger's event, once the waiter has finished.
    :ivar log_messages: lines for the task's log that are not logged yet.
    :ivar overdue_since: when the deadline was first seen to have passed, in monotonic seconds.
    :ivar final_poll_failed: whether a poll that started after that could not read the transfer.
    :ivar was_outstanding: whether the transfer was polled more than once, and was outstanding. From then on, no event
        that names it is missed; the first poll may use pages that were read before the waiter began.
    :ivar notify_after: see :func:`.find_late`.
    :ivar late_at: when the waiter finishes although the transfer is outstanding, after a poll that shows who has not
        picked up, in seconds since the epoch; inf if it does not.
    :raises ValueError: the transfer id or the deadline is invalid.
    """

    transfer_id: str
    interval: float
    deadline: float
    rules: OutcomeRules
    polled_at: Now
    transfer: Transfer | None = None
    sent_at: float = 0.0
    expires_at: float = -inf
    result: dict[str, Any] | None = None
    log_messages: list[str] = field(default_factory=list)
    overdue_since: float = inf
    final_poll_failed: bool = False
    was_outstanding: bool = False
    notify_after: tuple[float, ...] = ()
    late_at: float = inf
    _last_problem: str = ""

    def __post_init__(self) -> None:
        self.transfer_id, self.interval = resolve_transfer_id(self.transfer_id), interval_or_default(self.interval)
        if not isfinite(self.deadline):
            raise ValueError(f"invalid deadline: {self.deadline}")

    def due_at(self, times: PollTimes, now: Now) -> float:
        """Return when the transfer is polled next, in monotonic seconds.

        It is polled at regular times, when it is late, just after its expiry, and at the deadline.
        """
        wall_to_monotonic = now.monotonic - now.wall
        last = (
            self.polled_at.monotonic + FINAL_POLL_INTERVAL
            if self.final_poll_failed
            else self.deadline + wall_to_monotonic
        )
        candidates = [self._next_poll_at(times, now), last]
        once = (self.expires_at + EXPIRY_MARGIN, self.late_at)
        return min([*candidates, *(at + wall_to_monotonic for at in once if at > self.polled_at.wall)])

    def _next_poll_at(self, times: PollTimes, now: Now) -> float:
        has_hints = self.was_outstanding and not self.is_urgent(now)
        return times.next_after(self.polled_at.monotonic, self.interval, has_hints=has_hints)

    def update(self, transfer: Transfer, poll_start: Now) -> None:
        """Apply the result of a poll that started at ``poll_start``."""
        if self.transfer is None or (self.transfer.status, self.transfer.picked_up_count) != (
            transfer.status,
            transfer.picked_up_count,
        ):
            self.log_messages.append(describe(transfer) + status_hint(transfer))
        # Only with a new status: an expiry that is extended at each poll must not cause polls of its own.
        if self.transfer is None or self.transfer.status != transfer.status:
            self.expires_at = to_epoch(transfer.expires_at) or -inf
            self.late_at = first_late_at(transfer, self.notify_after)
        self.was_outstanding = self.transfer is not None and transfer.status not in TERMINAL_STATUSES
        self.transfer, self.polled_at, self._last_problem = transfer, poll_start, ""
        self.sent_at = to_epoch(transfer.sent_at) or 0.0
        if self.rules.outcome_of(transfer) is not None:
            self._finish("finished")
        elif poll_start.monotonic >= self.overdue_since:  # which a waiter that joined during the poll is not yet
            self._finish("timeout")
        elif poll_start.wall >= self.late_at:
            self._finish("late", notify_after=list(self.notify_after))

    def is_urgent(self, now: Now) -> bool:
        """Return whether the transfer must be read: it does not suffice that no listing shows it as finished.

        That is so for a final poll, after its expiry, which the service evaluates on read (service-api.md, R19), for a
        transfer that is never listed or is late, and if the wait finishes before the transfer does.
        """
        is_listed = self.sent_at and now.wall < self.expires_at
        return self.needs_new_read(now) or (self.transfer is not None and (self.rules.accept_partial or not is_listed))

    def needs_new_read(self, now: Now) -> bool:
        """Return whether the next read concludes something from its time, so that an earlier one does not do."""
        is_expired = self.transfer is not None and now.wall >= self.expires_at > -inf
        return self.overdue_since < inf or now.wall >= self.late_at or is_expired

    def presume_outstanding(self, poll_start: Now) -> None:
        """Apply that a poll has not found the transfer among the finished ones."""
        self.polled_at, self.was_outstanding = poll_start, True

    def record_read_error(self, problem: str, poll_start: Now) -> None:
        """Record that the transfer could not be read. The waiter continues."""
        if problem != self._last_problem:
            self.log_messages.append(f"Could not read transfer '{self.transfer_id}'; the wait continues: {problem}")
        self._last_problem, self.polled_at = problem, poll_start
        self.record_failed_poll(poll_start)

    def record_failed_poll(self, poll_start: Now) -> None:
        """Record that a poll did not show the transfer."""
        self.final_poll_failed |= poll_start.monotonic >= self.overdue_since

    def check_deadline(self, now: Now) -> None:
        """Record whether the deadline has passed. If the system clock is set back, it has not."""
        if now.wall < self.deadline:
            self.overdue_since, self.final_poll_failed = inf, False
        elif self.overdue_since == inf:
            self.overdue_since = now.monotonic

    def fail(self, message: str) -> None:
        """Finish with an error: the service refuses the request."""
        self._finish("error", message)

    def time_out(self) -> None:
        """Finish with a timeout: the deadline has passed, and the final poll failed."""
        self._finish("timeout")

    def _finish(self, status: str, message: str = "", **details: Any) -> None:
        self.result = {
            "status": status,
            "transfer": to_summary_dict(self.transfer) if self.transfer else None,
            "message": message,
            **details,
        }


class WaiterRegistry:
    """All waiters and watchers of one connection in this process."""

    def __init__(self) -> None:
        self._by_id: defaultdict[str, list[Waiter]] = defaultdict(list)
        self.watchers: list[CompletionWatcher] = []
        self._has_updates = False

    @contextmanager
    def register(self, waiter: Waiter) -> Iterator[Waiter]:
        """Poll for ``waiter`` while the block runs."""
        self._by_id[waiter.transfer_id].append(waiter)
        try:
            yield waiter
        finally:
            others = self._by_id[waiter.transfer_id]
            others.remove(waiter)
            if not others:
                del self._by_id[waiter.transfer_id]

    @contextmanager
    def register_watcher(self, watcher: CompletionWatcher) -> Iterator[CompletionWatcher]:
        """Notify ``watcher`` of every transfer while the block runs."""
        self.watchers.append(watcher)
        try:
            yield watcher
        finally:
            self.watchers.remove(watcher)

    def __iter__(self) -> Iterator[Waiter]:
        """Iterate over the waiters that have not finished."""
        return (waiter for waiters in self._by_id.values() for waiter in waiters if waiter.result is None)

    def next_due_at(self, times: PollTimes, now: Now) -> float:
        """Return when the next poll is due, in monotonic seconds; inf if there are no waiters or watchers."""
        return min(
            chain((waiter.due_at(times, now) for waiter in self), (one.due_at(times) for one in self.watchers)),
            default=inf,
        )

    def is_polled(self, transfer_id: str) -> bool:
        """Return whether a waiter waits for the transfer, or a watcher watches it."""
        return any(self._unfinished(transfer_id)) or self._is_watched(transfer_id)

    def was_outstanding(self, transfer_id: str) -> bool:
        """Return whether the last poll of the transfer has not shown that it has finished."""
        is_waited_for = any(waiter.was_outstanding for waiter in self._unfinished(transfer_id))
        return is_waited_for or self._is_watched(transfer_id)

    def update(self, transfers: Iterable[Transfer], poll_start: Now) -> None:
        """Apply the transfers that a poll has read."""
        for transfer in transfers:
            for waiter in self._unfinished(transfer.id):
                waiter.update(transfer, poll_start)
                self._has_updates |= bool(waiter.log_messages or waiter.result)

    def presume_outstanding(self, transfer_ids: Iterable[str], poll_start: Now) -> None:
        """Apply that a poll has not found the transfers among the finished ones."""
        for transfer_id in transfer_ids:
            for waiter in self._unfinished(transfer_id):
                waiter.presume_outstanding(poll_start)

    def update_watchers(self, transfers: Iterable[Transfer]) -> None:
        """Notify the watchers of all transfers that a poll has read, together: each reports them in one event."""
        for transfer in transfers:
            for watcher in self.watchers:
                watcher.update(transfer)

    def record_read_errors(self, errors: Mapping[str, Exception], poll_start: Now) -> None:
        """Record the transfers that a poll could not read."""
        for transfer_id, error in errors.items():
            for waiter in self._unfinished(transfer_id):
                waiter.record_read_error(str(error), poll_start)
                self._has_updates |= bool(waiter.log_messages)

    def record_failed_poll(self, poll_start: Now) -> None:
        """Record that a poll failed, for all waiters whose transfer it did not show."""
        for waiter in self:
            if waiter.polled_at != poll_start:
                waiter.record_failed_poll(poll_start)

    def mark_missing(self, missing: Mapping[str, Exception], poll_start: Now) -> None:
        """Finish the waiters for transfers that the key cannot see, and notify the watchers."""
        for transfer_id, error in missing.items():
            for waiter in self._unfinished(transfer_id):
                waiter.fail(str(error))
                self._has_updates = True
        for watcher in self.watchers:
            watcher.record_missing(missing, poll_start.wall)

    def pop_has_updates(self) -> bool:
        """Return whether a waiter or watcher has changed since the last call."""
        has_updates, self._has_updates = self._has_updates, False
        return has_updates or any(watcher.has_updates for watcher in self.watchers)

    def fail_all(self, message: str) -> None:
        """Finish every waiter with an error."""
        for waiter in list(self):
            waiter.fail(message)

    def check_deadlines(self, now: Now) -> bool:
        """Record whose deadline has passed.

        :return: whether one of them still needs its final poll.
        """
        is_final_poll_due = False
        for waiter in self:
            waiter.check_deadline(now)
            is_final_poll_due |= waiter.overdue_since < inf and not waiter.final_poll_failed
        return is_final_poll_due

    def expire_overdue(self, now: Now) -> bool:
        """Finish the waiters whose final poll has failed for :data:`FINAL_POLL_GRACE`.

        :return: whether there were any.
        """
        late = [
            waiter
            for waiter in self
            if waiter.final_poll_failed and now.monotonic >= waiter.overdue_since + FINAL_POLL_GRACE
        ]
        for waiter in late:
            waiter.time_out()
        return bool(late)

    def _is_watched(self, transfer_id: str) -> bool:
        return any(transfer_id in watcher.outstanding for watcher in self.watchers)

    def _unfinished(self, transfer_id: str) -> Iterator[Waiter]:
        return (waiter for waiter in self._by_id.get(transfer_id, ()) if waiter.result is None)
