"""Attach sources to a draft, several at once; the files that a draft then holds, and how others differ from them."""

from __future__ import annotations

import hashlib
import logging
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from outbound_transfer.client.errors import FileConflict, SourceChanged
from outbound_transfer.client.models import File, Upload
from outbound_transfer.traces import trace
from outbound_transfer.wording import format_bytes

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.files.sources import Source

ACCEPTED_BYTES: Final = 16 * 1024 * 1024  # after which the service must have read some: gateways hold back fewer
_MAX_UPLOADS: Final = 5  # of one file after each of which another request turns out to have the name
_LOG_INTERVAL: Final = 5.0  # seconds between two lines about the progress of an upload

log: Any = logging.getLogger(__name__)


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A file that a draft holds, in at most 130 bytes of JSON."""

    id: str
    size: int
    digest: str  # SHA-256 of its bytes, in base64
    fingerprint: str  # of the source, shortened; "" if the file is to be removed
    is_doubtful: bool = False  # whether another request may still upload a file of this name

    @property
    def sha256(self) -> str:  # in hexadecimal
        return urlsafe_b64decode(f"{self.digest}=").hex()


def shorten(source: Source) -> str:
    """Return the fingerprint of a source as a draft's row keeps it."""
    return _encode(hashlib.sha256(source.fingerprint.encode(errors="backslashreplace")).digest()[:12])


def _encode(digest: bytes) -> str:
    return urlsafe_b64encode(digest).decode().rstrip("=")


class Taken(NamedTuple):
    """A name that an earlier attempt has begun to upload."""

    file_id: str  # of the file that the draft holds under it; "" if it holds none
    is_doubtful: bool  # whether a request of that attempt may still arrive


@dataclass(frozen=True)
class Uploads:
    """Uploads to a draft. Any thread calls ``on_attached``, and ``check_still_current`` before each change."""

    client: Client
    transfer_id: str
    on_attached: Callable[[str, Held], object]
    taken: Mapping[str, Taken]  # names whose files are replaced
    check_still_current: Callable[[], object]  # raises an error if this attempt must not change the draft
    accepted: Event = field(default_factory=Event)  # set once the service has read bytes of the first file, the largest

    def attach(self, sources: Sequence[Source], max_parallel: int) -> None:
        """Attach files that the draft does not hold.

        The largest is attached first, and alone until the service has accepted it. The service checks a file's declared
        length before it reads a byte (413 ``file_too_large``), so a delivery over the account's limit is refused before
        any of it is uploaded, in each attempt: the limit may have been raised since. The others follow in parallel.

        :param max_parallel: how many files to upload at once; 1 starts no thread.
        :raises FileConflict: the draft has another file with that name.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        ordered = sorted(sources, key=lambda source: source.size, reverse=True)
        if min(max_parallel, len(sources)) > 1:
            self._upload_in_threads(ordered, max_parallel)
        else:
            for source in ordered:
                self._upload(source)

    def _upload_in_threads(self, sources: Sequence[Source], max_parallel: int) -> None:
        """Upload files. After a failure, those under way are stopped, and awaited unless this thread is interrupted."""
        threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="upload")

        def start(source: Source) -> Future[None]:
            # Each in a context of its own: Airflow's log takes the fields of its lines from there.
            return threads.submit(copy_context().run, self._upload, source)

        try:
            waiting = iter(sources)
            first = start(next(waiting))
            first.add_done_callback(lambda _: self.accepted.set())
            self.accepted.wait()
            if first.done():
                first.result()  # its failure ends the others before they begin
            running = {first, *map(start, islice(waiting, max_parallel - 1))}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for upload in done:
                    upload.result()
                running |= set(map(start, islice(waiting, len(done))))
        except BaseException as error:
            self.client.stop()
            threads.shutdown(wait=isinstance(error, Exception))
            raise

    def _upload(self, source: Source) -> None:
        """Upload one file, so that the draft has exactly its bytes.

        Only 201 proves an upload (docs/guarantees.md#sent-as-intended). After 200, a file of this name that an earlier
        attempt may have begun is removed, and uploaded again.
        """
        taken, digest, started = self.taken.get(source.name), "", time.monotonic()
        held_id, others_may_arrive = taken or ("", False)

        def read() -> Iterator[bytes]:
            nonlocal digest, started  # of the last attempt that has read the file to its end
            sha256, sent, started = hashlib.sha256(), 0, time.monotonic()
            logged_at = started
            for chunk in source.chunks():
                sha256.update(chunk)
                yield chunk
                sent += len(chunk)
                if sent >= ACCEPTED_BYTES:
                    self.accepted.set()
                if time.monotonic() - logged_at >= _LOG_INTERVAL:
                    logged_at = time.monotonic()
                    log.info("%s: %s of %s", source.name, format_bytes(sent), format_bytes(source.size))
            digest = _encode(sha256.digest())

        for _ in range(_MAX_UPLOADS):
            if held_id:
                self.client.remove_file(self.transfer_id, held_id, self.check_still_current)
            with trace("upload", transfer_id=self.transfer_id, file_size=source.size):
                upload = Upload(source.name, source.size, read)
                file, is_new, is_doubtful = self.client.attach_file(self.transfer_id, upload, self.check_still_current)
            if is_new or (is_doubtful and not taken):
                self._check_source(source, file)
                seconds = time.monotonic() - started
                log.info("Attached %s: %s in %.1f s", source.name, format_bytes(source.size), seconds)
                is_doubtful = is_doubtful or others_may_arrive
                self.on_attached(source.name, Held(file.id, source.size, digest, shorten(source), is_doubtful))
                return
            if not taken:
                break
            held_id = file.id
        raise FileConflict(
            f"{source.name!r}: the draft {self.transfer_id} already has {file.name!r} ({file.size} bytes), which this "
            "delivery did not attach. Remove that file, or use another draft."
        )

    def _check_source(self, source: Source, file: File) -> None:
        """Remove a file whose source has changed while it was uploaded, or whose record differs."""
        try:
            source.check_unchanged()
            if (file.name, file.size) != (source.name, source.size):
                raise SourceChanged(
                    f"{source.name!r} has {source.size} bytes, but the service stored {file.name!r} with {file.size}"
                )
        except SourceChanged:
            # The service stores the declared number of bytes and reports success, so this record must be removed.
            self.client.remove_file(self.transfer_id, file.id, self.check_still_current)
            raise
