"""The story of a delivery, in the task's log: what is to be uploaded, how far it is, what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import timezone

from outbound_transfer.links import url_of
from outbound_transfer.logs import Log

if TYPE_CHECKING:
    from outbound_transfer.client import Settings
    from outbound_transfer.protocol.models import File, Transfer
    from outbound_transfer.sources import Source

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


def found(sources: Sequence[Source], log: Log) -> Sequence[Source]:
    """``sources``, told of."""
    log.info("Found %s to deliver", _counted(sources))
    return sources


def summary(transfer: Transfer, files: Sequence[File] | None, ti: Any, settings: Settings) -> str:
    """One line on a transfer that was sent.

    :param files: those of the transfer; None where they are not known.
    :param ti: the task instance. What it took is counted from the start of its try, with the waits.
    """
    began = ti.start_date
    # What is sent is sent: a task instance of somebody's test, without a time that can be reckoned with, fails nothing.
    seconds = (timezone.utcnow() - began).total_seconds() if getattr(began, "tzinfo", None) else 0.0
    return (
        f"Done: {'files' if files is None else _counted(files)} to {_number(transfer.recipients, 'recipient')} in "
        f"{seconds:.1f} s of try {ti.try_number}; transfer {transfer.id}, {url_of(settings, transfer.id)}"
    )


def _counted(files: Sequence[Source] | Sequence[File]) -> str:
    return f"{_number(files, 'file')} ({in_units(sum(file.size for file in files))})"


def _number(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
