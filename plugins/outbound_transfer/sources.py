"""The files of a delivery: found by path, URI or glob, read in chunks, and watched for change."""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias
from urllib.parse import unquote

from outbound_transfer.protocol.content_disposition import check_name
from outbound_transfer.protocol.errors import (
    InvalidDelivery,
    NothingMatches,
    OutboundTransferError,
    SourceChanged,
    SourceMissing,
    SourceUnreadable,
)
from outbound_transfer.protocol.exchange import Upload

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

#: A path, a URI or a glob of either, or a mapping ``{"path": …, "name": …}`` that renames one file.
FileSpec: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"

CHUNK: Final = 1024 * 1024

_MAGIC: Final = frozenset("*?[")

_FILE_URI: Final = re.compile("file:(//(localhost)?(?=/))?", re.IGNORECASE)
_URI: Final = re.compile("[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """One file to deliver.

    :ivar location: where it is, as a person would name it.
    :ivar name: the name that it is attached under.
    :ivar size: bytes.
    :ivar version: another one when the content may be another.
    """

    location: str
    name: str
    size: int
    version: str
    _backend: Local | Remote

    def check_unchanged(self) -> None:
        """Compare the file with what it was when it was found.

        :raises SourceChanged: it is another size or version now, or gone.
        """
        try:
            now = self._backend.identity()
        except SourceUnreadable as error:
            raise SourceChanged(f"{self.location} vanished while it was delivered: {error}") from error
        if now != (self.size, self.version):
            raise SourceChanged(
                f"{self.location} changed while it was delivered: {self.size} bytes before, {now[0]} now. "
                "Deliver files that nothing writes to any more."
            )

    def upload(self, on_progress: Callable[[int], object] = int) -> Upload:
        """The file as the body of a call; ``on_progress`` is told the bytes read so far."""
        return Upload(self.name, self.size, lambda: self._chunks(on_progress), self.location)

    def _chunks(self, on_progress: Callable[[int], object]) -> Iterator[bytes]:
        self.check_unchanged()
        left = self.size
        with self._backend.open() as file:
            while left:
                chunk = self._read(file, min(CHUNK, left))
                if not chunk:
                    raise SourceChanged(f"{self.location} shrank while it was read: {left} bytes are missing")
                left -= len(chunk)
                yield chunk
                on_progress(self.size - left)

    def _read(self, file: BinaryIO, size: int) -> bytes:
        try:
            with _readable(self.location):
                return file.read(size)
        except SourceUnreadable:
            # An object store refuses to go on with an object that was replaced or deleted meanwhile.
            self.check_unchanged()
            raise


@dataclass(frozen=True)
class Local:
    """A file of this machine."""

    path: Path

    def identity(self) -> tuple[int, str]:
        with _readable(self.path):
            found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SourceUnreadable(f"{self.path} is not a file")
        return found.st_size, f"{found.st_ino}-{found.st_mtime_ns}"

    def open(self) -> BinaryIO:
        with _readable(self.path):
            return self.path.open("rb", buffering=0)


@dataclass(frozen=True)
class Remote:
    """An object that Airflow's ObjectStoragePath reaches; read in place, without a temporary copy."""

    path: ObjectStoragePath

    def identity(self) -> tuple[int, str]:
        with _readable(self.path):
            self.path.fs.invalidate_cache()
            # Asked of the file system that Airflow attached; the path's own methods may ask another, without its keys.
            found = self.path.fs.info(self.path.path)
            if found["type"] != "file" or found["size"] is None:
                raise SourceUnreadable(f"{self.path} is not a file, or one of unknown size")
            return int(found["size"]), str(self.path.checksum())

    def open(self) -> BinaryIO:
        with _readable(self.path):
            # The libraries' own block is many times as large, and is kept twice.
            return self.path.open("rb", block_size=8 * CHUNK)  # type: ignore[no-any-return]


@contextmanager
def _readable(path: object) -> Iterator[None]:
    try:
        yield
    except OutboundTransferError:
        raise
    except FileNotFoundError as error:
        raise SourceMissing(f"{path} is not there: {error}") from error
    except Exception as error:  # each object store's library has errors of its own
        raise SourceUnreadable(f"{path} cannot be read: {type(error).__name__} {error}") from error


def find_sources(files: FileSpec | Iterable[FileSpec]) -> list[Source]:
    """Every file that ``files`` names, each opened once to see that it can be read.

    :raises InvalidDelivery: nothing was named, a glob matched nothing, or two files would have one name.
    :raises SourceUnreadable: a file is missing or may not be read.
    :raises NameRefused: the service could not keep a name.
    """
    sources = [source for spec in _specs(files) for source in _sources_of(spec)]
    if not sources:
        raise InvalidDelivery("files is empty: a transfer without files cannot be sent")
    _refuse_twins(sources)
    return sources


def _specs(files: FileSpec | Iterable[FileSpec]) -> list[FileSpec]:
    if isinstance(files, str | Mapping) or not isinstance(files, Iterable):
        return [files] if files else []
    return list(files)


def _sources_of(spec: FileSpec) -> Iterator[Source]:
    path, name = _path_and_name(spec)
    backends = _find(path)
    if name and len(backends) > 1:
        raise InvalidDelivery(f"{path!r} matches {len(backends)} files, which cannot all be named {name!r}")
    for backend in backends:
        size, version = backend.identity()
        source_name = name or backend.path.name
        check_name(source_name)
        backend.open().close()
        yield Source(str(backend.path), source_name, size, version, backend)


def _path_and_name(spec: FileSpec) -> tuple[str, str | None]:
    if isinstance(spec, Mapping):
        if not spec.get("path") or not set(spec) <= {"path", "name"}:
            raise InvalidDelivery('a file given as a mapping needs "path", and may have "name"')
        if not isinstance(spec.get("name"), str | None):
            raise InvalidDelivery(f"the name of a file is text, not {type(spec['name']).__name__}")
        return _path(spec["path"]), spec.get("name")
    return _path(spec), None


def _path(given: object) -> str:
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not path or not isinstance(path, str) or "\0" in path:
        raise InvalidDelivery(f"a file is a path, a URI or a mapping, not {given!r}")
    return path


def _find(path: str) -> list[Local] | list[Remote]:
    if file_uri := _FILE_URI.match(path):
        path = unquote(path[file_uri.end() :])
    elif _URI.match(path):
        return [Remote(found) for found in _find_remote(path)]
    return [Local(Path(found)) for found in _find_local(path)]


def _find_local(pattern: str) -> list[str]:
    # A name that exists is meant, even where it could be read as a pattern.
    if not _MAGIC & set(pattern) or Path(pattern).exists():
        return [pattern]
    # glob takes absolute, relative and recursive patterns alike; Path.glob does not. Only directories are passed over:
    # a dangling link is a file that somebody meant to be there.
    return _matched(pattern, itertools.filterfalse(os.path.isdir, glob.glob(pattern, recursive=True)))  # noqa: PTH207


def _find_remote(uri: str) -> list[ObjectStoragePath]:
    from airflow.sdk import ObjectStoragePath

    # These would be left out without a word, and another file meant.
    if set("\t\r\n") & set(uri):
        raise InvalidDelivery(f"{uri!r}: a URI holds no control characters")
    with _readable(uri):
        path = ObjectStoragePath(uri)
        if not _MAGIC & set(uri) or path.fs.exists(path.path):
            return [path]
        found = path.fs.glob(path.path, detail=True)
    root = next((parent for parent in path.parents if not _MAGIC & set(parent.path)), None)
    if root is None:
        raise InvalidDelivery(f"{uri!r}: only what follows the first / may be a pattern")
    if not found:
        _check_bucket([root, *root.parents][-1], uri)
    matches = (name.removeprefix(root.path).lstrip("/") for name, info in found.items() if info["type"] == "file")
    return _matched(uri, (root / match for match in matches))


def _check_bucket(bucket: ObjectStoragePath, uri: str) -> None:
    # A store answers a pattern in a bucket that is not there with nothing.
    with _readable(uri):
        if not bucket.fs.exists(bucket.path):
            raise InvalidDelivery(f"no file matches {uri!r}: {bucket} does not exist, or may not be listed")


def _matched(pattern: str, found: Iterable[Any]) -> list[Any]:
    if not (matches := sorted(found, key=str)):
        raise NothingMatches(f"no file matches {pattern!r}")
    return matches


def _refuse_twins(sources: list[Source]) -> None:
    # The service keeps the first file of a name and answers 200 to the second (POST .../files, Rules).
    twins = {name for name, count in Counter(source.name for source in sources).items() if count > 1}
    if twins:
        where = "; ".join(f"{source.name}: {source.location}" for source in sources if source.name in twins)
        raise InvalidDelivery(
            f'two files have one name, and the service would keep only the first: {where}. Give one a "name".'
        )
