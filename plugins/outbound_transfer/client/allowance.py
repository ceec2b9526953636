"""The allowance of a key: an interface through which a client shares it with other processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from outbound_transfer.protocol.messages import Call

log = logging.getLogger(__name__)

#: Seconds.
MIN_LOGGED_DELAY: Final = 1.0


@dataclass(frozen=True)
class ReservationDetails:
    """A call that is about to wait for its reserved time.

    :ivar delay: seconds until then.
    :ivar repeats: number of calls that another process of the task would make again before this one.
    :ivar reserve_repeats: reserves them, too, and returns the seconds until each: without them, that process would come
        no further than this one.
    """

    call: Call[Any]
    delay: float
    repeats: int
    reserve_repeats: Callable[[], list[float]]


#: Called before a call waits for its reserved time; may raise :class:`~.deferral.DeferRequested` to wait elsewhere.
ReservationHook: TypeAlias = Callable[[ReservationDetails], None]


class Allowance(Protocol):
    """The calls of one key that several processes share (service-api.md, R53). No method raises."""

    def reserve(self) -> float:
        """Reserve one call; return the seconds until it is to be made. May take some seconds itself."""

    def record_refusal(self, retry_after: float) -> None:
        """Record that the service has refused a call; does not wait.

        :param retry_after: seconds for which it accepts no other.
        """

    def record_repeat(self) -> None:
        """Record that a call is made again, which does not wait for its turn; does not wait."""


def log_reservation(reservation: ReservationDetails) -> None:
    """Log for how long a call waits, unless it is a moment."""
    if reservation.delay > MIN_LOGGED_DELAY:
        operation = reservation.call.operation.value
        log.info("Waiting %.1f s for %s: the key's calls until then are reserved", reservation.delay, operation)
