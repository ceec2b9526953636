"""A delivery in the task's log: the files found, the progress of each upload, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import timezone
from outbound_transfer.client.wording import format_bytes, pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client.models import File, Transfer
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.files.sources import Source

#: Seconds between two lines of one upload.
INTERVAL: Final = 5.0


class UploadProgress:
    """Logs the progress of one upload, at most every :data:`INTERVAL` seconds; call it with the bytes read so far."""

    def __init__(self, name: str, size: int, log: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.size, self.log, self.clock = name, size, log, clock
        self.started = self.last = clock()

    def __call__(self, sent: int) -> None:
        now = self.clock()
        if now - self.last >= INTERVAL:
            self.last = now
            self.log.info(
                "%s: %s of %s (%d %%), %s/s",
                self.name,
                format_bytes(sent),
                format_bytes(self.size),
                100 * sent // max(self.size, 1),
                format_bytes(sent / (now - self.started)),
            )

    def done(self) -> None:
        """Log that the upload finished."""
        seconds = max(self.clock() - self.started, 0.001)
        self.log.info(
            "Attached %s: %s in %.1f s (%s/s)",
            self.name,
            format_bytes(self.size),
            seconds,
            format_bytes(self.size / seconds),
        )


def log_sources(sources: Sequence[Source], log: Logger) -> Sequence[Source]:
    """Log how many files were found, and return them."""
    log.info("Found %s to deliver", _describe_files(sources))
    return sources


def log_archive(archive: Source, sources: Sequence[Source], log: Logger) -> Source:
    """Log what an archive holds, and return it."""
    log.info("Packed %s into %s: %s", _describe_files(sources), archive.name, format_bytes(archive.size))
    return archive


def delivery_summary(transfer: Transfer, files: Sequence[File] | None, ti: Any, settings: Settings) -> str:
    """Return one line about a sent transfer.

    :param files: those of the transfer; None if they are not known.
    :param ti: the task instance. Its seconds count from the start of the try, with all waits.
    """
    started = ti.start_date
    # A task instance of a test may have no usable start: after the send this must not fail.
    seconds = (timezone.utcnow() - started).total_seconds() if getattr(started, "tzinfo", None) else 0.0
    return (
        f"Done: {'files' if files is None else _describe_files(files)} "
        f"to {pluralize(len(transfer.recipients), 'recipient')} in {seconds:.1f} s of try {ti.try_number}; "
        f"transfer {transfer.id}, {settings.transfer_url(transfer.id)}"
    )


def _describe_files(files: Sequence[Source] | Sequence[File]) -> str:
    return f"{pluralize(len(files), 'file')} ({format_bytes(sum(file.size for file in files))})"
