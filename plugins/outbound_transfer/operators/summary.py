"""What a task delivers and has delivered, as lines of its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import timezone
from outbound_transfer.client.wording import format_bytes, pluralize

if TYPE_CHECKING:
    from outbound_transfer.client.models import File, Transfer
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.files.sources import Source


def describe_files(files: Sequence[Source] | Sequence[File]) -> str:
    """Return for example ``2 files (1.5 MB)``."""
    return f"{pluralize(len(files), 'file')} ({format_bytes(sum(file.size for file in files))})"


def delivery_summary(transfer: Transfer, ti: Any, settings: Settings) -> str:
    """Return one line about a sent transfer.

    :param ti: the task instance. Its seconds count from the start of the try, with all waits.
    """
    started = ti.start_date
    # A task instance of a test may have no usable start: after the send this must not fail.
    seconds = (timezone.utcnow() - started).total_seconds() if getattr(started, "tzinfo", None) else 0.0
    return (
        f"Done: {describe_files(transfer.files or ())} "
        f"to {pluralize(len(transfer.recipients), 'recipient')} in {seconds:.1f} s of try {ti.try_number}; "
        f"transfer {transfer.id}, {settings.transfer_url(transfer.id)}"
    )
