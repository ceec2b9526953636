"""The allowance of a key: an interface through which a client shares it with other processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from outbound_transfer.protocol.messages import Call

log = logging.getLogger(__name__)

#: Called before a call waits for its reserved time, with the seconds until then; may raise
#: :class:`~.deferral.DeferRequested` to wait elsewhere.
ReservationHook: TypeAlias = Callable[[Call[Any], float], None]


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


def log_reservation(call: Call[Any], delay: float) -> None:
    """Log for how long a call waits."""
    log.info("Waiting %.1f s for %s: the key's calls until then are reserved", delay, call.operation.value)
