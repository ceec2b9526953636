"""A poll that several processes share: one of them, the holder of a lease, polls for all."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Final, Protocol

from outbound_transfer.polling.schedule import NEVER, Now, PollTimes
from outbound_transfer.polling.waiters import Waiter, WaiterRegistry
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.listings import ScanResult
from outbound_transfer.protocol.models import Transfer
from outbound_transfer.protocol.outcomes import OutcomeRules
from outbound_transfer.protocol.poll_lease import (
    LEASE_SECONDS,
    MAX_ID_LENGTH,
    REPEAT_INTERVAL,
    ClusterState,
    ProcessState,
    SharedWaiter,
)
from outbound_transfer.protocol.wording import pluralize

log = logging.getLogger(__name__)

#: Maximum interval that is shared, in seconds.
MAX_INTERVAL: Final = 86_400.0


class ClusterPoll(Protocol):
    """What connects the processes that share a key. No method raises."""

    async def sync(self, own: ProcessState) -> ClusterState | None:
        """Give a sign of life, write what is waited for and what was read, and read that of the others.

        :return: None if the others cannot be reached.
        """

    async def read_events(self) -> Collection[str] | None:
        """Return the texts in the events that have landed since the last call; None if they cannot be read."""

    def leave(self) -> None:
        """Give up the lease, and what this process waits for; does not wait."""


class ClusterMember:
    """This process's part in the poll of a cluster.

    The holder polls what the others wait for along with its own. The others read what it has seen. They poll themselves
    what a reading cannot conclude (see :meth:`_is_shareable`), and all else every hour. What is lost between the
    processes is written again every ten minutes. While the others cannot be reached, each polls for itself.

    :ivar others: the holder's waiters for the others, by transfer.
    """

    def __init__(self, cluster: ClusterPoll, registry: WaiterRegistry) -> None:
        self._cluster, self._registry = cluster, registry
        self.others: dict[str, Waiter] = {}
        self._unpublished: dict[str, Transfer | None] = {}
        self._refused: set[str] = set()
        self._readings: Mapping[str, Transfer | None] = {}
        self._alone: set[str] = set()
        self._is_holder = self._has_polled = False
        self._valid_until = self._repeated_at = -inf

    async def read_events(self) -> Collection[str] | None:
        """Return the texts in the events that have landed since the last call; None if they cannot be read."""
        return await self._cluster.read_events()

    async def sync(self, now: Now, origin: float, *, can_poll: bool) -> bool:
        """Give a sign of life to the others, and learn what they know.

        :param origin: of the times of polls, in monotonic seconds.
        :param can_poll: whether this process reaches the service.
        :return: whether the others can be reached.
        """
        # Again: a waiter that joined one that these have finished gets no others, as its row does not change.
        self._apply(self._readings, now)
        self._alone &= {waiter.transfer_id for waiter in self._registry}
        if now.monotonic >= self._repeated_at + REPEAT_INTERVAL:
            self._repeat_finished(now)
        shared = [waiter for waiter in self._registry if self._is_shareable(waiter, now)]
        published, has_polled, self._has_polled = dict(self._unpublished), self._has_polled, False
        state = await self._cluster.sync(ProcessState(_combine(shared), published, can_poll, has_polled))
        if state is None:
            self.expire(now)
            return False
        for transfer_id, transfer in published.items():
            if self._unpublished.get(transfer_id) is transfer:
                del self._unpublished[transfer_id]
        if state.is_holder:
            self._load_others(state.others, now, origin)
        else:
            self._stop_holding()
        self._is_holder, self._valid_until = state.is_holder, now.monotonic + LEASE_SECONDS
        is_elsewhere = state.has_holder and not state.is_holder
        for waiter in shared:
            waiter.was_outstanding &= not is_elsewhere and waiter.polled_elsewhere_until == -inf
            waiter.polled_elsewhere_until = self._valid_until if is_elsewhere else -inf
        self._readings = state.readings
        if unread := sum(transfer is None for transfer in state.readings.values()):
            log.info(
                "The holder of the poll could not read %s, which this process reads itself",
                pluralize(unread, "transfer"),
            )
        self._apply(state.readings, now)
        return True

    def expire(self, now: Now) -> None:
        """Stop polling for the others if the lease has not been renewed in time."""
        if now.monotonic >= self._valid_until:
            self._stop_holding()

    def leave(self) -> None:
        """Give up the lease, and what this process waits for."""
        for waiter in self._registry:
            waiter.was_outstanding &= waiter.polled_elsewhere_until == -inf
            waiter.polled_elsewhere_until = -inf
        self._cluster.leave()

    def record(self, found: ScanResult, poll_start: Now) -> None:
        """Note what a poll has read for the others: what has changed is published with the next :meth:`sync`."""
        for transfer_id in found.presumed & self.others.keys():
            self.others[transfer_id].presume_outstanding(poll_start)
        for transfer_id, transfer in found.transfers.items():
            waiter = self.others.get(transfer_id)
            if waiter is not None and waiter.result is None:
                waiter.update(transfer, poll_start)
                if waiter.log_messages:
                    waiter.log_messages.clear()
                    self._unpublished[transfer_id] = transfer
        for transfer_id, error in (found.missing | found.failed).items():
            waiter = self.others.get(transfer_id)
            if waiter is not None and waiter.result is None:
                waiter.fail(str(error))  # the others read it themselves from now on
                self._unpublished[transfer_id] = None

    def record_poll(self) -> None:
        """Note that a poll has finished."""
        self._has_polled = True

    def next_due_at(self, times: PollTimes, now: Now) -> float:
        """Return when the next poll for the others is due, in monotonic seconds; inf if there is none."""
        return min((waiter.due_at(times, now) for waiter in self.unfinished()), default=inf)

    def pollable(self, times: PollTimes, poll_start: Now) -> list[Waiter]:
        """Return the waiters of the others whose transfers a listing can show; their own process reads all else."""
        for waiter in self.unfinished():
            if waiter.due_at(times, poll_start) <= poll_start.monotonic and waiter.is_urgent(poll_start):
                waiter.polled_at = poll_start
        return list(self.unfinished())

    def unfinished(self) -> Iterator[Waiter]:
        """Yield the waiters of the others whose transfers have not reached a terminal status."""
        return (waiter for waiter in self.others.values() if waiter.result is None)

    def _is_shareable(self, waiter: Waiter, now: Now) -> bool:
        """Return whether a waiter may rely on what another process has read.

        Not if it concludes from the time of the read (a deadline, an expiry), or from a status that may still change,
        nor if the holder cannot read the transfer.
        """
        transfer_id = waiter.transfer_id
        is_plain = transfer_id.isascii() and transfer_id.isprintable() and len(transfer_id) <= MAX_ID_LENGTH
        return (
            is_plain
            and transfer_id not in self._alone
            and not waiter.rules.accept_partial
            and now.wall < waiter.deadline
            and not waiter.is_urgent(now)
        )

    def _load_others(self, others: Mapping[str, SharedWaiter], now: Now, origin: float) -> None:
        if not self._is_holder:
            now = Now(
                min(origin, now.monotonic) - 1.0, now.wall
            )  # the last holder may have read none of them: all are due
        for transfer_id in self.others.keys() - others.keys():
            del self.others[transfer_id]
        self._refused &= others.keys()
        for transfer_id, shared in others.items():
            if transfer_id in self._refused:
                continue
            try:
                self._load_other(transfer_id, shared, now)
            except (InvalidDelivery, ValueError, TypeError, OverflowError):  # of another version, or damaged
                self.others.pop(transfer_id, None)
                self._refused.add(transfer_id)
                self._unpublished[transfer_id] = None  # its process reads it itself

    def _load_other(self, transfer_id: str, shared: SharedWaiter, now: Now) -> None:
        interval, sent_at = int(shared.interval), int(shared.sent_at)  # SQLite stores any value in any column
        waiter = self.others.get(transfer_id)
        if waiter is None:
            # Its process checks the deadline itself.
            waiter = self.others[transfer_id] = Waiter(transfer_id, interval, NEVER, OutcomeRules(), polled_at=now)
        waiter.interval, waiter.sent_at = interval, waiter.sent_at or sent_at

    def _repeat_finished(self, now: Now) -> None:
        """Publish again what another process waits for although it has finished: that may have been lost."""
        self._repeated_at = now.monotonic
        for transfer_id, waiter in self.others.items():
            if waiter.result is not None:
                is_read = waiter.result["status"] == "finished"
                self._unpublished.setdefault(transfer_id, waiter.transfer if is_read else None)

    def _stop_holding(self) -> None:
        self._is_holder = False
        self.others.clear()
        self._refused.clear()
        self._unpublished.clear()

    def _apply(self, readings: Mapping[str, Transfer | None], now: Now) -> None:
        unread = {one for one, transfer in readings.items() if transfer is None}
        self._alone |= unread
        for waiter in self._registry:
            if waiter.transfer_id in unread:
                waiter.polled_elsewhere_until = -inf
        self._registry.apply_readings([one for one in readings.values() if one is not None], now)


def _combine(waiters: Iterable[Waiter]) -> dict[str, SharedWaiter]:
    """Return what the waiters have in common for each transfer."""
    combined: dict[str, SharedWaiter] = {}
    for waiter in waiters:
        before = combined.get(waiter.transfer_id)
        interval = int(min(max(waiter.interval, 1.0), MAX_INTERVAL))
        sent_at = max(int(waiter.sent_at), 0)
        if before is not None:
            interval, sent_at = min(interval, before.interval), max(sent_at, before.sent_at)
        combined[waiter.transfer_id] = SharedWaiter(interval, sent_at)
    return combined
