"""Which sends are truly concurrent (service.md, POST .../send, rule 4).

Two sends of one draft are concurrent when each arrived before the other was answered. The one that comes second to an
overlapping success succeeds too and changes nothing; a send that arrives after the answer finds a transfer that is no
draft.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Span:
    """One send between arrival and answer."""

    def __init__(self) -> None:
        self.sent = False
        self.overlapping: list[Span] = []

    @property
    def sent_meanwhile(self) -> bool:
        """True when a concurrent send succeeded."""
        return any(span.sent for span in self.overlapping)


class Overlaps:
    def __init__(self) -> None:
        self._open: defaultdict[str, list[Span]] = defaultdict(list)

    @contextmanager
    def span(self, transfer_id: str) -> Iterator[Span]:
        span, others = Span(), self._open[transfer_id]
        span.overlapping.extend(others)
        for other in others:
            other.overlapping.append(span)
        others.append(span)
        try:
            yield span
        finally:
            others.remove(span)
            if not others:
                del self._open[transfer_id]
