"""Control flow that leaves a call before it succeeds: a task that is to wait elsewhere, or whose calls were stopped."""

from __future__ import annotations

from collections.abc import Sequence


class CallsStopped(Exception):
    """Control flow, not an error: another thread has stopped the calls of the client."""


class DeferRequested(Exception):
    """Control flow, not an error: asks the task to wait in deferred mode instead of holding its worker slot.

    A hook raises it with the seconds and the reserved times. The client adds what it knows of its calls.

    :ivar seconds: how long to wait.
    :ivar waited: seconds that each unfinished call will have waited in all when the wait is over, by the value of its
        operation.
    :ivar reserved_at: when calls are to be made that are reserved in the key's allowance, in seconds since the epoch.
    :ivar was_in_doubt: whether any attempt of the call was in doubt: its request may still be under way.
    """

    def __init__(
        self,
        seconds: float,
        waited: dict[str, float] | None = None,
        *,
        reserved_at: Sequence[float] = (),
        was_in_doubt: bool = False,
    ) -> None:
        super().__init__(f"waiting {seconds:.0f} s")
        self.seconds, self.waited = seconds, waited or {}
        self.reserved_at = list(reserved_at)
        self.was_in_doubt = was_in_doubt


def combine_requests(requests: Sequence[DeferRequested]) -> DeferRequested:
    """Return one request for those of several calls: it waits until the last of them may be repeated.

    If all are reserved, it waits for the first. It was in doubt if any of them was. Each call will have waited as long,
    so that no timeout is exceeded unnoticed.
    """
    refused = [request.seconds for request in requests if not request.reserved_at]
    seconds = max(refused, default=min(request.seconds for request in requests))
    waited: dict[str, float] = {}
    for request in requests:
        for operation, own in request.waited.items():
            waited[operation] = max(waited.get(operation, 0.0), own + seconds - request.seconds)
    return DeferRequested(
        seconds,
        waited,
        reserved_at=[at for request in requests for at in request.reserved_at],
        was_in_doubt=any(request.was_in_doubt for request in requests),
    )
