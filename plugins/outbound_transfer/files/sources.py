"""One file to deliver: its name, its size, a fingerprint that changes with it, and its bytes."""

from __future__ import annotations

import hashlib
import inspect
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from unicodedata import normalize

from outbound_transfer.client import errors
from outbound_transfer.client.models import Upload
from outbound_transfer.client.new_transfer import check_name

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_CHUNK_BYTES: Final = 1024 * 1024

#: Fields that change with an object. Not the file system's ``checksum``: over SFTP, that runs a command on the server.
_VERSIONS: Final = ("ETag", "etag", "mtime", "last_modified", "LastModified", "created")


@dataclass(frozen=True)
class Source:
    """One file to deliver."""

    location: str  # its path or URI, for messages and lineage; "" if it is given as content
    name: str  # that it is attached under
    size: int  # bytes
    fingerprint: str  # device, inode and times of change of a local file, ETag of an object, digest of content
    open: Callable[[], BinaryIO]
    stat: Callable[[], tuple[int, str]]  # returns size and fingerprint as they are now

    @classmethod
    def found(
        cls, location: str, name: str, opens: Callable[[], BinaryIO], stats: Callable[[], tuple[int, str]]
    ) -> Source:
        """Return a file that exists and whose name the service keeps; it is not opened."""
        with readable(location):
            version = stats()
        check_name(name)
        # For a path that is not UTF-8, Python's string fits into no log or database.
        return cls(location.encode(errors="backslashreplace").decode(), name, *version, opens, stats)

    def __str__(self) -> str:
        return self.location or f"the content of {self.name!r}"

    def check_unchanged(self) -> None:
        """:raises SourceChanged: the file's size or fingerprint has changed since it was found, or it is gone."""
        try:
            with readable(self):
                now = self.stat()
        except errors.SourceUnreadable as error:
            raise errors.SourceChanged(f"{self} vanished while it was delivered: {error}") from error
        if now != (self.size, self.fingerprint):
            raise errors.SourceChanged(
                f"{self} changed while it was delivered: {self.size} bytes before, {now[0]} now. "
                "Deliver files that are no longer written to."
            )

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes that the file has now."""
        try:
            with readable(self), self.open() as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except errors.SourceUnreadable:
            self.check_unchanged()  # an object store refuses to continue with an object that was replaced
            raise

    def read(self) -> Iterator[bytes]:
        """Yield the bytes that the file had when it was found; SourceChanged if they have changed since."""
        yield from Upload(self.name, self.size, self.chunks).body()
        self.check_unchanged()

    def sha256(self) -> str:
        """Read the file to its end; return the SHA-256 of its bytes, in hexadecimal."""
        digest = hashlib.sha256()
        for chunk in self.read():
            digest.update(chunk)
        return digest.hexdigest()


@contextmanager
def readable(place: object) -> Iterator[None]:
    """Name the file or folder in errors about it.

    :raises SourceMissing: it does not exist.
    :raises SourceUnreadable: it cannot be read.
    """
    try:
        yield
    except errors.OutboundTransferError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.SourceMissing(
            f"{place} does not exist: {error.strerror or error}. Check the path on this worker (absolute; ~ is not "
            "expanded), and the task that should have written the file."
        ) from None
    except Exception as error:  # each object store's library has its own errors
        raise errors.SourceUnreadable(f"{place} cannot be read: {type(error).__name__} {error}") from error


def local_source(path: str, name: str) -> Source:
    file = Path(path)
    return Source.found(str(file), name or file.name, partial(_open_local, file), partial(_stat_local, file))


def _open_local(file: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a named pipe that has replaced the file would block forever.
    return open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))


def _stat_local(file: Path) -> tuple[int, str]:
    found = file.stat()
    if stat.S_ISDIR(found.st_mode):
        raise errors.SourceUnreadable(f"{file} is a folder. For the files in it, use a pattern: {file / '*'}")
    if not stat.S_ISREG(found.st_mode):
        raise errors.SourceUnreadable(f"{file} is not a file")
    if not os.access(file, os.R_OK):
        raise PermissionError("this process may not read it")
    # A file that replaces another may have its inode and its mtime, but not its ctime.
    return found.st_size, f"{found.st_dev}-{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def object_source(path: ObjectStoragePath, name: str) -> Source:
    return Source.found(str(path), name or path.name, partial(_open_object, path), partial(_stat_object, path))


def _stat_object(path: ObjectStoragePath) -> tuple[int, str]:
    # The file system that Airflow attached; the path's own methods may use another, without its keys.
    found = path.fs.info(path.path)
    if found["type"] != "file" or found["size"] is None:
        raise errors.SourceUnreadable(f"{path} is not a file, or its size is unknown")
    return int(found["size"]), str(next((found[key] for key in _VERSIONS if found.get(key)), ""))


def _open_object(path: ObjectStoragePath) -> BinaryIO:
    # A block of s3fs, gcsfs and adlfs is many times as large and buffered twice; sshfs asks for a block at a time.
    reads_ahead = "block_size" in inspect.signature(path.fs._open).parameters
    return path.open("rb", block_size=8 * _CHUNK_BYTES if reads_ahead else None)  # type: ignore[no-any-return]


def reject_duplicate_names(sources: Sequence[Source]) -> None:
    """:raises InvalidDelivery: two files have the same name."""
    # The service keeps the first file of a name and responds 200 to the second (service-api.md, R32). Two forms of one
    # accent look the same, and are one name on macOS.
    by_name: dict[str, Source] = {}
    for source in sources:
        if (other := by_name.setdefault(normalize("NFC", source.name), source)) is not source:
            raise errors.InvalidDelivery(
                f"two files have the same name, {source.name!r}, and the service would keep only the first: {other}; "
                f'{source}. Set "name" on one of them; if a path and a pattern match the same file, list it only once.'
            )
