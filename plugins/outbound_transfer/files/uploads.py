"""Attach sources to a draft, several at once: each file is read once, and hashed while it is sent."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from outbound_transfer.client.errors import FileConflict, SourceChanged
from outbound_transfer.client.traces import trace
from outbound_transfer.client.wording import format_bytes
from outbound_transfer.files.attached import Held

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import File
    from outbound_transfer.files.sources import Source

#: Bytes of an upload from which on the service must have read some: connections and gateways hold back fewer.
ACCEPTED_BYTES: Final = 16 * 1024 * 1024

#: Seconds between two lines of the log about one upload.
_LOG_INTERVAL: Final = 5.0

#: Uploads of one file after each of which another request turns out to have the name.
_MAX_UPLOADS: Final = 5

#: Seconds that an interrupted task gives its uploads to break off. Those that do not are left alone.
_STOP_TIMEOUT: Final = 1.0

#: Uploads one file; returns its name, and what the draft holds under it.
_Upload: TypeAlias = Callable[[], tuple[str, Held]]


class Taken(NamedTuple):
    """A name that an earlier attempt has begun to upload.

    :ivar file_id: of the file that the draft holds under it; "" if it holds none.
    :ivar is_doubtful: whether a request of that attempt may still arrive.
    """

    file_id: str
    is_doubtful: bool


def attach_sources(
    client: Client,
    transfer_id: str,
    sources: Sequence[Source],
    *,
    max_parallel: int,
    on_attached: Callable[[str, Held], object],
    log: Logger,
    taken: Mapping[str, Taken],
    check_still_current: Callable[[], object],
) -> None:
    """Attach files that a draft does not hold.

    The largest is attached first, and alone until the service has accepted it. The service checks a file's declared
    length before it reads a byte (413 ``file_too_large``), so a delivery over the account's limit is refused before any
    of it is uploaded, in each try: the limit may have been raised since. The others follow in parallel.

    :param max_parallel: how many files to upload at once; 1 starts no thread.
    :param on_attached: called with the name of each file that is attached, and what the draft holds, in this thread.
    :param taken: names that an earlier attempt has begun to upload; their files are replaced.
    :param check_still_current: called before each attempt of a call that changes the draft, in any thread; raises an
        error if this try must not.
    :raises FileConflict: the draft has another file of that name.
    :raises SourceChanged: a file changed while it was read; its record is removed.
    """
    draft = _Draft(client, transfer_id, log, check_still_current)
    largest_first = sorted(sources, key=lambda source: source.size, reverse=True)
    uploads = [partial(draft.upload, source, taken.get(source.name)) for source in largest_first]
    if min(max_parallel, len(uploads)) > 1:
        _run_in_threads(uploads, max_parallel, draft.accepted, on_attached, client.stop)
    else:
        for upload in uploads:
            on_attached(*upload())


def _run_in_threads(
    uploads: Sequence[_Upload],
    max_parallel: int,
    accepted: Event,
    on_attached: Callable[[str, Held], object],
    stop: Callable[[], object],
) -> None:
    """Run uploads in threads, and pass on each result in this thread: only it stores, and talks to Airflow.

    After a failure, uploads that run are stopped, and awaited until it is known what became of each; those that ended
    well all the same are passed on. If this thread is interrupted, they are stopped and not awaited for long.
    """
    threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="upload")
    waiting, running = iter(uploads), set[Future[tuple[str, Held]]]()

    def start(count: int) -> None:
        # Each in a context of its own: Airflow's log takes the fields of its lines from there.
        running.update(threads.submit(copy_context().run, upload) for upload in islice(waiting, count))

    try:
        start(1)
        (largest,) = running
        largest.add_done_callback(lambda _: accepted.set())
        accepted.wait()
        if largest.done():
            largest.result()  # its failure ends the others before they begin
        start(max_parallel - 1)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(future)
                on_attached(*future.result())
                start(1)
    except BaseException as error:
        stop()
        for future in wait(running, None if isinstance(error, Exception) else _STOP_TIMEOUT).done:
            with suppress(Exception):  # of the upload, or as this thread may store nothing: the first error counts
                on_attached(*future.result())
        raise
    finally:
        threads.shutdown(wait=False)


@dataclass(frozen=True)
class _Draft:
    """A draft that gets files.

    :ivar accepted: is set once the service has read bytes of any file, the first of which is the largest.
    """

    client: Client
    transfer_id: str
    log: Logger
    check_still_current: Callable[[], object]
    accepted: Event = field(default_factory=Event)

    def upload(self, source: Source, taken: Taken | None) -> tuple[str, Held]:
        """Upload one file, perhaps in a thread of its own, so that the draft has exactly its bytes.

        Only 201 proves an upload (docs/guarantees.md#sent-as-intended). After 200, a file of this name that an earlier
        attempt may have begun is removed, and uploaded again.

        :raises FileConflict: the draft has a file of this name, which this task did not attach.
        :raises SourceChanged: the source has changed; the file's record was removed from the draft.
        """
        held_id, others_may_arrive = taken or ("", False)
        reading = _Reading(source, self.accepted, self.log)
        for _ in range(_MAX_UPLOADS):
            if held_id:
                self._remove(held_id)
            with trace("upload", transfer_id=self.transfer_id, file_size=source.size):
                attached = self.client.attach_file(self.transfer_id, reading.upload, self.check_still_current)
            file, is_doubtful = attached.file, attached.is_doubtful or others_may_arrive
            is_same = (file.name, file.size) == (source.name, source.size)
            if attached.is_new or (attached.is_doubtful and is_same and not taken):
                self._check_source(source, file)
                reading.log_end()
                return source.name, Held.of(source, file, reading.sha256, is_doubtful=is_doubtful)
            if not (taken or attached.is_doubtful):
                break
            held_id = file.id
        raise FileConflict(
            f"{source.name!r}: the draft {self.transfer_id} already has {file.name!r} ({file.size} bytes), which this "
            "delivery did not attach. Remove that file, or use another draft."
        )

    def _remove(self, file_id: str) -> None:
        self.client.remove_file(self.transfer_id, file_id, self.check_still_current)

    def _check_source(self, source: Source, file: File) -> None:
        """Remove a file whose source has changed while it was uploaded.

        :raises SourceChanged: it has, or the service stored another file.
        """
        try:
            source.check_unchanged()
            if (file.name, file.size) != (source.name, source.size):
                raise SourceChanged(
                    f"{source.name!r} has {source.size} bytes, but the service stored {file.name!r} with {file.size}"
                )
        except SourceChanged:
            # The service stores the declared number of bytes and reports success, so this record must be removed.
            self._remove(file.id)
            raise


class _Reading:
    """A source as the body of an upload, hashed while it is sent: each attempt reads the file once.

    :ivar upload: the body.
    :ivar sha256: of the last attempt that read the file to its end, in hexadecimal.
    """

    def __init__(self, source: Source, accepted: Event, log: Logger) -> None:
        self._accepted, self._log, self._started = accepted, log, time.monotonic()
        self._chunks, self.upload = source.upload().chunks, replace(source.upload(), chunks=self._read)
        self.sha256 = ""

    def _read(self) -> Iterator[bytes]:
        digest, sent, logged_at = hashlib.sha256(), 0, time.monotonic()
        for chunk in self._chunks():
            digest.update(chunk)
            yield chunk
            sent += len(chunk)
            if sent >= ACCEPTED_BYTES:
                self._accepted.set()
            if time.monotonic() - logged_at >= _LOG_INTERVAL:
                logged_at = time.monotonic()
                self._log.info("%s: %s of %s", self.upload.name, format_bytes(sent), format_bytes(self.upload.size))
        self.sha256 = digest.hexdigest()

    def log_end(self) -> None:
        """Log that the upload finished."""
        seconds = max(time.monotonic() - self._started, 0.001)
        size = self.upload.size
        speed = format_bytes(size / seconds)
        self._log.info("Attached %s: %s in %.1f s (%s/s)", self.upload.name, format_bytes(size), seconds, speed)
