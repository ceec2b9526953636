"""Attach sources to a draft, several at once: each file is read once, and hashed while it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from outbound_transfer.client.errors import FileConflict, SourceChanged
from outbound_transfer.client.traces import trace
from outbound_transfer.files.checksum import HashingUpload
from outbound_transfer.files.parallel import run_uploads
from outbound_transfer.files.progress import UploadProgress

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import File
    from outbound_transfer.files.sources import Source

#: Bytes of an upload from which on the service must have read some: connections and gateways hold back fewer.
ACCEPTED_BYTES: Final = 16 * 1024 * 1024


#: Uploads of one file after each of which another request turns out to have the name.
_MAX_UPLOADS: Final = 5


class Taken(NamedTuple):
    """A name that an earlier attempt has begun to upload.

    :ivar file_id: of the file that the draft holds under it; "" if it holds none.
    :ivar is_doubtful: whether a request of that attempt may still arrive.
    """

    file_id: str
    is_doubtful: bool


@dataclass(frozen=True)
class FinishedUpload:
    """A source that is attached.

    :ivar file: the service's record of it.
    :ivar sha256: of its bytes, in hexadecimal.
    :ivar is_doubtful: whether another request may still upload a file of this name.
    """

    source: Source
    file: File
    sha256: str
    is_doubtful: bool = False


def attach_sources(
    client: Client,
    transfer_id: str,
    sources: Sequence[Source],
    *,
    max_parallel: int,
    on_attached: Callable[[FinishedUpload], object],
    log: Logger,
    taken: Mapping[str, Taken] | None = None,
    check_still_current: Callable[[], object] = lambda: None,
) -> None:
    """Attach files that a draft does not hold.

    The largest is attached first, and alone until the service has accepted it. The service checks a file's declared
    length before it reads a byte (413 ``file_too_large``), so a delivery over the account's limit is refused before any
    of it is uploaded, in each try: the limit may have been raised since. The others follow in parallel.

    :param max_parallel: how many files to upload at once; 1 starts no thread.
    :param on_attached: called with each file that is attached, in this thread.
    :param taken: names that an earlier attempt has begun to upload; their files are replaced.
    :param check_still_current: called before each attempt of a call that changes the draft, in any thread; raises an
        error if this try must not.
    :raises FileConflict: the draft has another file of that name.
    :raises SourceChanged: a file changed while it was read; its record is removed.
    """
    accepted = Future[None]()
    uploads = [
        partial(
            _upload, client, transfer_id, source, (taken or {}).get(source.name), accepted, log, check_still_current
        )
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
    taken: Taken | None,
    accepted: Future[None],
    log: Logger,
    check_still_current: Callable[[], object],
) -> FinishedUpload:
    """Upload one file, perhaps in a thread of its own, so that the draft has exactly its bytes.

    Only 201 proves an upload (docs/guarantees.md#sent-as-intended). After 200, a file of this name that an earlier
    attempt may have begun is removed, and uploaded again.

    :param accepted: is done once the service has read bytes of any file, the first of which is the largest.
    :raises FileConflict: the draft has a file of this name, which this task did not attach.
    :raises SourceChanged: the source has changed; the file's record was removed from the draft.
    """
    log_progress = UploadProgress(source.name, source.size, log)

    def on_progress(sent: int) -> None:
        log_progress(sent)
        if sent >= ACCEPTED_BYTES and not accepted.done():
            accepted.set_result(None)

    others_may_arrive, held_id = bool(taken and taken.is_doubtful), taken.file_id if taken else ""
    for _ in range(_MAX_UPLOADS):
        if held_id:
            client.remove_file(transfer_id, held_id, check_still_current)
        hashing = HashingUpload(source.upload(on_progress))
        with trace("upload", transfer_id=transfer_id, file_size=source.size):
            attached = client.attach_file(transfer_id, hashing.upload, check_still_current)
        file, is_doubtful = attached.file, attached.is_doubtful or others_may_arrive
        is_same = (file.name, file.size) == (source.name, source.size)
        if attached.is_new or (attached.is_doubtful and is_same and not taken):
            _check_source(client, transfer_id, source, file, check_still_current)
            log_progress.done()
            return FinishedUpload(source, file, hashing.sha256, is_doubtful)
        if not (taken or attached.is_doubtful):
            break
        held_id = file.id
    raise FileConflict(
        f"{source.name!r}: the draft {transfer_id} already has {file.name!r} ({file.size} bytes), which this delivery "
        "did not attach. Remove that file, or use another draft."
    )


def _check_source(
    client: Client, transfer_id: str, source: Source, file: File, check_still_current: Callable[[], object]
) -> None:
    """Remove a file whose source has changed while it was uploaded.

    :raises SourceChanged: it has.
    """
    try:
        source.check_unchanged()
        if (file.name, file.size) != (source.name, source.size):
            raise SourceChanged(
                f"{source.name!r} has {source.size} bytes, but the service stored {file.name!r} with {file.size} bytes"
            )
    except SourceChanged:
        # The service stores the declared number of bytes and reports success, so this record must be removed.
        client.remove_file(transfer_id, file.id, check_still_current)
        raise
