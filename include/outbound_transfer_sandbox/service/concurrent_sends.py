"""Which sends of a draft are concurrent (service-api.md, R38).

Two sends are concurrent if each arrives before the response to the other. The second of them succeeds as well and
changes nothing. A send that arrives after the response finds a transfer that is not a draft.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class SendWindow:
    """One send, from its arrival until its response."""

    def __init__(self) -> None:
        self.sent = False
        self.overlapping: list[SendWindow] = []

    @property
    def is_sent_concurrently(self) -> bool:
        """Return whether a concurrent send succeeded."""
        return any(window.sent for window in self.overlapping)


class ConcurrentSends:
    """The sends that are open now, by transfer."""

    def __init__(self) -> None:
        self._open: defaultdict[str, list[SendWindow]] = defaultdict(list)

    @contextmanager
    def open_window(self, transfer_id: str) -> Iterator[SendWindow]:
        window, others = SendWindow(), self._open[transfer_id]
        window.overlapping.extend(others)
        for other in others:
            other.overlapping.append(window)
        others.append(window)
        try:
            yield window
        finally:
            others.remove(window)
            if not others:
                del self._open[transfer_id]
