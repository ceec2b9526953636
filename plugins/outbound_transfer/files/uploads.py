"""Attach sources to a draft, several at once: each file is read once, and hashed while it is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from outbound_transfer.client.traces import trace
from outbound_transfer.files.checksum import HashingUpload
from outbound_transfer.files.parallel import run_uploads
from outbound_transfer.files.progress import UploadProgress
from outbound_transfer.protocol import flows

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import File

#: Bytes of an upload from which on the service must have read some: connections and gateways hold back fewer.
ACCEPTED_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class FinishedUpload:
    """A source that is attached.

    :ivar file: the service's record of it.
    :ivar sha256: of its bytes, in hexadecimal.
    """

    source: Source
    file: File
    sha256: str


def attach_sources(
    client: Client,
    transfer_id: str,
    sources: Sequence[Source],
    *,
    max_parallel: int,
    on_attached: Callable[[FinishedUpload], object],
    log: Logger,
    check_still_current: Callable[[], None] = lambda: None,
) -> None:
    """Attach files that a draft does not hold.

    The largest is attached first, and alone until the service has accepted it. The service checks a file's declared
    length before it reads a byte (413 ``file_too_large``), so a delivery over the account's limit is refused before any
    of it is uploaded, in each try: the limit may have been raised since. The others follow in parallel.

    :param max_parallel: how many files to upload at once; 1 starts no thread.
    :param on_attached: called with each file that is attached, in this thread.
    :param check_still_current: called before each attempt of a call that changes the draft, in any thread; raises an
        error if this try must not.
    :raises FileConflict: the draft has another file of that name.
    :raises SourceChanged: a file changed while it was read; its record is removed.
    """
    accepted = Future[None]()
    uploads = [
        partial(_upload, client, transfer_id, source, accepted, log, check_still_current)
        for source in sorted(sources, key=lambda source: source.size, reverse=True)
    ]
    if min(max_parallel, len(uploads)) < 2:
        for upload in uploads:
            on_attached(upload())
        return
    run_uploads(uploads, max_parallel, first_accepted=accepted, on_finished=on_attached, stop=client.stop, log=log)


def _upload(
    client: Client,
    transfer_id: str,
    source: Source,
    accepted: Future[None],
    log: Logger,
    check_still_current: Callable[[], None],
) -> FinishedUpload:
    """Upload one file, perhaps in a thread of its own.

    :param accepted: is done once the service has read bytes of any file, the first of which is the largest.
    """
    log_progress = UploadProgress(source.name, source.size, log)

    def on_progress(sent: int) -> None:
        log_progress(sent)
        if sent >= ACCEPTED_BYTES and not accepted.done():
            accepted.set_result(None)

    hashing = HashingUpload(source.upload(on_progress))
    flow = flows.attach(transfer_id, hashing.upload, check_unchanged=source.check_unchanged)
    with trace("upload", transfer_id=transfer_id, file_size=source.size):
        file = client.run(flow, before_attempt=check_still_current)
    log_progress.done()
    return FinishedUpload(source, file, hashing.sha256)
