"""The files of a delivery: found by path, URI or glob, read in chunks, and watched for change."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias
from urllib.parse import unquote

from outbound_transfer.globs import has_magic, local_matches, remote_matches
from outbound_transfer.protocol.content_disposition import check_name
from outbound_transfer.protocol.errors import (
    InvalidDelivery,
    OutboundTransferError,
    SourceChanged,
    SourceMissing,
    SourceUnreadable,
)
from outbound_transfer.protocol.exchange import Upload

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

#: A path, a URI or a glob of either, or a mapping ``{"path": …, "name": …}`` that renames one file.
FileSpec: TypeAlias = "str | os.PathLike[str] | ObjectStoragePath | Mapping[str, Any]"

#: The same as JSON has it.
PlainSpec: TypeAlias = "str | dict[str, str]"

CHUNK: Final = 1024 * 1024

_FILE_URI: Final = re.compile("file:(//(localhost)?(?=/))?", re.IGNORECASE)
_URI: Final = re.compile("(?P<store>[a-z][a-z0-9+.-]*://[^/]*)/?(?P<key>.*)", re.IGNORECASE | re.DOTALL)


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
            if not left:
                self._check_end(file)
            while left:
                chunk = self._read(file, min(CHUNK, left))
                if not chunk:
                    raise SourceChanged(f"{self.location} shrank while it was read: {left} bytes are missing")
                left -= len(chunk)
                if not left:
                    # Before the last bytes go out, so that the service never gets the whole of a part.
                    self._check_end(file)
                yield chunk
                on_progress(self.size - left)

    def check_readable(self) -> None:
        """Open the file, and where it is said to be empty see that it is.

        :raises SourceUnreadable: it may not be read.
        :raises SourceChanged: it is longer than it is said to be, as files are that are made while they are read.
        """
        with self._backend.open() as file:
            if not self.size:
                self._check_end(file)

    def _check_end(self, file: BinaryIO) -> None:
        if self._read(file, 1):
            raise SourceChanged(
                f"{self.location} is longer than the {self.size} bytes that it is said to have. Deliver a copy of it "
                "that nothing writes to any more."
            )

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
        # A file that takes the place of another may have its inode and its time of change, and not this time.
        return found.st_size, f"{found.st_dev}-{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"

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

    :param files: as of :func:`normalized_files`.
    :raises InvalidDelivery: nothing was named, a glob matched nothing, it is not clear whether a name or a pattern is
        meant, or two files would have one name.
    :raises SourceUnreadable: a file is missing or may not be read, or a folder of a glob could not be listed.
    :raises SourceChanged: a file that is said to be empty is not.
    :raises NameRefused: the service could not keep a name.
    """
    sources = [source for spec in normalized_files(files) for source in _sources_of(spec)]
    if not sources:
        raise InvalidDelivery("files is empty: a transfer without files cannot be sent")
    _refuse_twins(sources)
    return sources


def normalized_files(files: FileSpec | Iterable[FileSpec] | None) -> list[PlainSpec]:
    """``files`` as JSON, the same in each try of a task: texts, or mappings of texts with ``path`` and ``name``.

    A set is sorted. What can be read once only, such as a generator, is read here: go on with what this returns, which
    it returns unchanged. No file is looked at.

    :param files: one file or many; None and "" are none.
    :raises InvalidDelivery: something in it is no file.
    """
    if isinstance(files, str | Mapping) or not isinstance(files, Iterable):
        return [_normalized(files)] if files else []
    specs = [_normalized(spec) for spec in files]
    return sorted(specs, key=str) if isinstance(files, Set) else specs


def _normalized(spec: Any) -> PlainSpec:
    if not isinstance(spec, Mapping):
        return _path(spec)
    if not spec.get("path") or not set(spec) <= {"path", "name"}:
        raise InvalidDelivery('a file given as a mapping needs "path", and may have "name"')
    name = spec.get("name")
    if not isinstance(name, str | None):
        raise InvalidDelivery(f"the name of a file is text, not {type(name).__name__}")
    return {"path": _path(spec["path"]), "name": name} if name else {"path": _path(spec["path"])}


def _path(given: object) -> str:
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else _text_of_object_storage(given)
    if not path or not isinstance(path, str) or "\0" in path:
        raise InvalidDelivery(f"a file is a path, a URI or a mapping, not {given!r}")
    return path


def _text_of_object_storage(given: object) -> str | None:
    from airflow.sdk import ObjectStoragePath

    if not isinstance(given, ObjectStoragePath):
        return None
    # The text of a local one is a URI, in which "%41" would be read as "A".
    return str(given.path if given.protocol in ("", "file", "local") else given)


def _sources_of(spec: PlainSpec) -> Iterator[Source]:
    path, name = (spec, None) if isinstance(spec, str) else (spec["path"], spec.get("name"))
    backends = _find(path)
    if name and len(backends) > 1:
        raise InvalidDelivery(f"{path!r} matches {len(backends)} files, which cannot all be named {name!r}")
    for backend in backends:
        size, version = backend.identity()
        source_name = name or backend.path.name
        check_name(source_name)
        source = Source(str(backend.path), source_name, size, version, backend)
        source.check_readable()
        yield source


def _find(path: str) -> list[Local] | list[Remote]:
    if file_uri := _FILE_URI.match(path):
        path = unquote(path[file_uri.end() :])
    elif uri := _URI.match(path):
        return [Remote(found) for found in _find_remote(path, uri["store"], uri["key"])]
    found = local_matches(path) if has_magic(path) else [path]
    # Only what is no folder is found, so also a dangling link, which is a file that somebody meant to be there.
    return [Local(Path(file)) for file in found]


def _find_remote(uri: str, store: str, key: str) -> list[ObjectStoragePath]:
    from airflow.sdk import ObjectStoragePath

    # These would be left out without a word, and another file meant.
    if set("\t\r\n") & set(uri):
        raise InvalidDelivery(f"{uri!r}: a URI holds no control characters")
    if has_magic(store):
        raise InvalidDelivery(f"{uri!r}: only what follows the first / may be a pattern")
    with _readable(uri):
        # Not of the whole URI, of which an empty query or fragment would be left out: "a?" would mean "a".
        root = ObjectStoragePath(f"{store}/")
        return remote_matches(uri, root, key) if has_magic(key) else [root / key]


def _refuse_twins(sources: list[Source]) -> None:
    # The service keeps the first file of a name and answers 200 to the second (POST .../files, Rules).
    twins = {name for name, count in Counter(source.name for source in sources).items() if count > 1}
    if twins:
        _refuse_repeated(sources)
        where = "; ".join(f"{source.name}: {source.location}" for source in sources if source.name in twins)
        raise InvalidDelivery(
            f'two files have one name, and the service would keep only the first: {where}. Give one a "name".'
        )


def _refuse_repeated(sources: list[Source]) -> None:
    files = Counter((source.location, source.name) for source in sources)
    if repeated := [location for (location, _), count in files.items() if count > 1]:
        raise InvalidDelivery(
            f"files finds {'; '.join(repeated)} more than once, as a path and a pattern that matches it do. Name each "
            "file once."
        )
