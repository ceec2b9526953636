"""Attach sources to a draft, several at once; the files that a draft then holds, and how others differ from them.

Each file is read once, and hashed while it is sent.
"""

from __future__ import annotations

import hashlib
import logging
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from outbound_transfer.client.errors import FileConflict, SourceChanged
from outbound_transfer.traces import trace
from outbound_transfer.wording import format_bytes

if TYPE_CHECKING:
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

log: Any = logging.getLogger(__name__)


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A file that a draft holds, in at most 130 bytes of JSON.

    :ivar id: the service's.
    :ivar size: bytes.
    :ivar digest: SHA-256 of its bytes, in base64.
    :ivar fingerprint: of the source, shortened; "" if the file is to be removed.
    :ivar is_doubtful: another request may still upload a file of this name.
    """

    id: str
    size: int
    digest: str
    fingerprint: str
    is_doubtful: bool = False

    @classmethod
    def of(cls, source: Source, file: File, sha256: str, *, is_doubtful: bool) -> Held:
        """Return what an upload attached. ``sha256`` of its bytes is in hexadecimal."""
        digest = urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
        return cls(file.id, source.size, digest, shorten(source), is_doubtful)

    @property
    def sha256(self) -> str:
        """In hexadecimal."""
        return urlsafe_b64decode(f"{self.digest}=").hex()


def shorten(source: Source) -> str:
    """Return the fingerprint of a source as a draft's row keeps it."""
    digest = hashlib.sha256(source.fingerprint.encode(errors="backslashreplace")).digest()
    return urlsafe_b64encode(digest[:12]).decode()


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
    draft = _Draft(client, transfer_id, taken, check_still_current)
    waiting = iter(sorted(sources, key=lambda source: source.size, reverse=True))
    if min(max_parallel, len(sources)) > 1:
        _attach_in_threads(draft, waiting, max_parallel, on_attached)
    for source in waiting:
        on_attached(*draft.upload(source))


def _attach_in_threads(
    draft: _Draft, waiting: Iterator[Source], max_parallel: int, on_attached: Callable[[str, Held], object]
) -> None:
    """Pass on each result in this thread: only it stores, and talks to Airflow.

    After a failure, uploads that run are stopped, and awaited until it is known what became of each; those that ended
    well all the same are passed on. If this thread is interrupted, they are stopped and not awaited for long.
    """
    threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="upload")
    running = set[Future[tuple[str, Held]]]()

    def start(count: int) -> None:
        # Each in a context of its own: Airflow's log takes the fields of its lines from there.
        running.update(threads.submit(copy_context().run, draft.upload, source) for source in islice(waiting, count))

    try:
        start(1)
        (largest,) = running
        largest.add_done_callback(lambda _: draft.accepted.set())
        draft.accepted.wait()
        if largest.done():
            largest.result()  # its failure ends the others before they begin
        start(max_parallel - 1)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(future)
                on_attached(*future.result())
                start(1)
    except BaseException as error:
        draft.client.stop()
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
    taken: Mapping[str, Taken]
    check_still_current: Callable[[], object]
    accepted: Event = field(default_factory=Event)

    def upload(self, source: Source) -> tuple[str, Held]:
        """Upload one file, perhaps in a thread of its own, so that the draft has exactly its bytes.

        Only 201 proves an upload (docs/guarantees.md#sent-as-intended). After 200, a file of this name that an earlier
        attempt may have begun is removed, and uploaded again.

        :return: its name, and what the draft holds under it.
        :raises FileConflict: the draft has a file of this name, which this task did not attach.
        :raises SourceChanged: the source has changed; the file's record was removed from the draft.
        """
        taken, sha256, started = self.taken.get(source.name), "", time.monotonic()
        held_id, others_may_arrive = taken or ("", False)

        def read() -> Iterator[bytes]:
            nonlocal sha256  # of the last attempt that has read the file to its end
            digest, sent, logged_at = hashlib.sha256(), 0, time.monotonic()
            for chunk in source.chunks():
                digest.update(chunk)
                yield chunk
                sent += len(chunk)
                if sent >= ACCEPTED_BYTES:
                    self.accepted.set()
                if time.monotonic() - logged_at >= _LOG_INTERVAL:
                    logged_at = time.monotonic()
                    log.info("%s: %s of %s", source.name, format_bytes(sent), format_bytes(source.size))
            sha256 = digest.hexdigest()

        for _ in range(_MAX_UPLOADS):
            if held_id:
                self._remove(held_id)
            with trace("upload", transfer_id=self.transfer_id, file_size=source.size):
                upload = replace(source.upload(), chunks=read)
                attached = self.client.attach_file(self.transfer_id, upload, self.check_still_current)
            file, is_doubtful = attached.file, attached.is_doubtful or others_may_arrive
            if attached.is_new or (attached.is_doubtful and not taken):
                self._check_source(source, file)
                seconds, size = max(time.monotonic() - started, 0.001), format_bytes(source.size)
                speed = format_bytes(source.size / seconds)
                log.info("Attached %s: %s in %.1f s (%s/s)", source.name, size, seconds, speed)
                return source.name, Held.of(source, file, sha256, is_doubtful=is_doubtful)
            if not taken:
                break
            held_id = file.id
        raise FileConflict(
            f"{source.name!r}: the draft {self.transfer_id} already has {file.name!r} ({file.size} bytes), which this "
            "delivery did not attach. Remove that file, or use another draft."
        )

    def _remove(self, file_id: str) -> None:
        self.client.remove_file(self.transfer_id, file_id, self.check_still_current)

    def _check_source(self, source: Source, file: File) -> None:
        """Remove a file whose source has changed while it was uploaded, or that the service stored as another."""
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


def describe_differences(held: Mapping[str, Held], sources: Sequence[Source]) -> list[str]:
    """Describe how files differ from those that were sent.

    A file with the same bytes is the same file, whenever it was written: it is read only if its fingerprint changed.
    """
    names = {source.name for source in sources}
    missing = [f"{name} is not among them any more" for name in held if name not in names]
    return missing + [words for source in sources if (words := _describe_difference(held.get(source.name), source))]


def _describe_difference(held: Held | None, source: Source) -> str:
    if held is None:
        return f"{source.name} was not among them"
    if held.size != source.size:
        return f"{source.name} has {source.size} bytes and had {held.size}"
    if held.fingerprint != shorten(source) and held.sha256 != source.sha256():
        return f"{source.name} has other content"
    return ""
