"""Which of the processes that share a key polls for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from outbound_transfer.protocol.models import Transfer

#: Seconds between two signs of life of a process.
RENEWAL_INTERVAL: Final = 5.0

#: Seconds after its last sign of life for which a process is believed to be alive, and holds the lease.
LEASE_SECONDS: Final = 20.0

#: Seconds after which a process writes again what others may have lost.
REPEAT_INTERVAL: Final = 600.0

#: Maximum number of characters of an id that is shared.
MAX_ID_LENGTH: Final = 200

#: Other values make a stored lease invalid: no timestamp or number of a database could be made from them.
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class SharedWaiter(NamedTuple):
    """What another process must know to poll a transfer for those who wait for it.

    :ivar interval: seconds between two polls.
    :ivar sent_at: when the transfer was sent, in seconds since the epoch; 0 if it was not read yet.
    """

    interval: int
    sent_at: int


class ProcessState(NamedTuple):
    """What a process tells the others that share its key.

    :ivar waiters: what it waits for and another may poll, by transfer.
    :ivar readings: what it has read for the others; ignored unless it is still the holder.
    :ivar can_poll: whether it may be the holder.
    :ivar has_polled: whether it has finished a poll since the last time.
    """

    waiters: Mapping[str, SharedWaiter]
    readings: Mapping[str, Transfer | None]
    can_poll: bool
    has_polled: bool


class ClusterState(NamedTuple):
    """What a process learns from the others that share its key.

    :ivar is_holder: whether this process polls for all.
    :ivar has_holder: whether any process does.
    :ivar others: what the others wait for, by transfer; empty unless this process is the holder.
    :ivar readings: transfers that this process waits for, as the holder has read them since the last time, by id; None
        for one that could not be read.
    """

    is_holder: bool
    has_holder: bool
    others: Mapping[str, SharedWaiter]
    readings: Mapping[str, Transfer | None]


class PollLease(msgspec.Struct):
    """The lease of one key. All times are seconds since the epoch by one clock.

    :ivar holder: the process that polls; "" if none does.
    :ivar held_since: when it got the lease.
    :ivar polled_at: when a holder last finished a poll; 0 if none did.
    :ivar seen_at: by process, when it last gave a sign of life.
    :ivar sequence: number of the last change of what is waited for, or was read.
    :ivar waiters_changed: number of the last change of what is waited for.
    """

    holder: str = ""
    held_since: _Time = 0.0
    polled_at: _Time = 0.0
    seen_at: dict[str, _Time] = {}
    sequence: _Number = 0
    waiters_changed: _Number = 0

    @property
    def expires_at(self) -> float:
        """When the lease expires unless its holder renews it; 0 if there is no holder."""
        return self.seen_at[self.holder] + LEASE_SECONDS if self.holder in self.seen_at else 0.0

    def forget_dead(self, now: float) -> bool:
        """Forget the processes without a recent sign of life, and their lease; return whether there were any."""
        # One of the future was given before the clock was set back, and says nothing.
        alive = {one: at for one, at in self.seen_at.items() if abs(now - at) < LEASE_SECONDS}
        has_dead = len(alive) < len(self.seen_at)
        self.seen_at = alive
        if self.holder not in alive:
            self.holder = ""
        return has_dead

    def renew(self, process: str, now: float, *, can_poll: bool) -> bool:
        """Record that a process is alive. It gets the lease if that is free, and gives it up if it cannot poll.

        :return: whether the process holds the lease.
        """
        self.seen_at[process] = now
        if not self.holder and can_poll:
            self.holder, self.held_since = process, now
        elif self.holder == process and not can_poll:
            self.holder = ""
        return self.holder == process

    def leave(self, process: str) -> None:
        """Forget a process that stops."""
        self.seen_at.pop(process, None)
        if self.holder == process:
            self.holder = ""

    def next_number(self, now: float) -> int:
        """Return the number of a change: higher than all before, also if the lease was lost and created anew."""
        self.sequence = max(self.sequence + 1, int(now * 1_000))
        return self.sequence
