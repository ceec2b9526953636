"""Progress of a long upload, in the task's log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from outbound_transfer.logs import Log

#: Seconds between two lines.
INTERVAL: Final = 5.0


class Progress:
    """Call it with the bytes read so far; it logs now and then."""

    def __init__(self, name: str, size: int, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.size, self.log, self.clock = name, size, log, clock
        self.started = self.last = clock()

    def __call__(self, sent: int) -> None:
        now = self.clock()
        if now - self.last >= INTERVAL:
            self.last = now
            self.log.info(
                "%s: %s of %s (%d %%), %s/s",
                self.name,
                in_units(sent),
                in_units(self.size),
                100 * sent // max(self.size, 1),
                in_units(sent / (now - self.started)),
            )

    def done(self) -> None:
        seconds = max(self.clock() - self.started, 0.001)
        self.log.info(
            "Attached %s: %s in %.1f s (%s/s)", self.name, in_units(self.size), seconds, in_units(self.size / seconds)
        )


def in_units(size: float) -> str:
    """A number of bytes as a person reads it: ``1.5 MB`` (1 MB = 1,048,576 bytes, as in service.md)."""
    for unit in ("B", "kB", "MB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GB"
