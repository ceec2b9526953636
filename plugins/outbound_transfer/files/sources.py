"""The files of a delivery: found by path, URI or pattern, or given as content, and read in chunks."""

from __future__ import annotations

import inspect
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias
from unicodedata import normalize
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem

from outbound_transfer.airflow_compat.object_storage import filesystem_of
from outbound_transfer.client.content_disposition import check_name
from outbound_transfer.client.errors import (
    InvalidDelivery,
    NothingMatches,
    OutboundTransferError,
    SourceChanged,
    SourceMissing,
    SourceUnreadable,
)
from outbound_transfer.client.models import Upload
from outbound_transfer.client.wording import hint_at_pair
from outbound_transfer.files.content import CHUNK_BYTES, Content, Held, Spool
from outbound_transfer.files.match import has_magic, match

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

#: A path, a URI or a pattern of either; a mapping ``{"path": …, "name": …}`` that renames one file; or a mapping
#: ``{"name": …, "content": …}`` for a file that exists nowhere (see :class:`.Content`).
FileSpec: TypeAlias = "str | os.PathLike[str] | ObjectStoragePath | Mapping[str, Any]"

#: A file, with its content if it is given by that.
ParsedSpec: TypeAlias = "str | dict[str, Any]"

_SPEC_KEYS: Final = frozenset(("path", "name", "content"))

_FILE_URI: Final = re.compile("file:(//(localhost)?(?=/))?", re.IGNORECASE)
_ENCODED_WILDCARD: Final = re.compile("%(2A|3F|5B)", re.IGNORECASE)
_URI: Final = re.compile("(?P<store>[a-z][a-z0-9+.-]*://[^/]*)/?(?P<key>.*)", re.IGNORECASE | re.DOTALL)

#: Says why a delivery without files fails.
NO_FILES: Final = (
    "files is empty: a transfer without files cannot be sent. If it comes from a task, check what that returned."
)

#: Size in bytes, and a fingerprint that changes whenever the content may have changed.
Version: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class Source:
    """One file to deliver.

    :ivar location: its path or URI, for messages and lineage; "" if it is given by its content.
    :ivar name: the name that it is attached under.
    :ivar size: bytes.
    :ivar fingerprint: device, inode and times of change of a local file, the ETag of an object, the digest of content.
    """

    location: str
    name: str
    size: int
    fingerprint: str
    open: Callable[[], BinaryIO]
    stat: Callable[[], Version]

    @classmethod
    def of_content(cls, name: str, held: Held) -> Source:
        size, fingerprint = held.size, f"sha256:{held.sha256}"
        return cls("", name, size, fingerprint, held.open, lambda: (size, fingerprint))

    def __str__(self) -> str:
        return self.location or f"the content of {self.name!r}"

    def check_unchanged(self) -> None:
        """Check that the file is the same as when it was found.

        :raises SourceChanged: it has another size or fingerprint, or is gone.
        """
        try:
            with _readable(self):
                now = self.stat()
        except SourceUnreadable as error:
            raise SourceChanged(f"{self} vanished while it was delivered: {error}") from error
        if now != (self.size, self.fingerprint):
            raise SourceChanged(
                f"{self} changed while it was delivered: {self.size} bytes before, {now[0]} now. "
                "Deliver files that nothing writes to any more."
            )

    def upload(self, on_progress: Callable[[int], object] | None = None) -> Upload:
        """Return the file as the body of a call.

        :param on_progress: called with the bytes read so far.
        """
        return Upload(self.name, self.size, lambda: self._chunks(on_progress), self.location)

    def _chunks(self, on_progress: Callable[[int], object] | None) -> Iterator[bytes]:
        left = self.size
        with self._reading(), self.open() as file:
            while left:
                chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise SourceChanged(f"{self} shrank while it was read: {left} bytes are missing")
                left -= len(chunk)
                if not left:
                    # Before the last bytes are sent, so that the service never gets a complete but truncated file.
                    self._check_end(file)
                yield chunk
                if on_progress:
                    on_progress(self.size - left)
            if not self.size:
                self._check_end(file)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with _readable(self):
                yield
        except SourceUnreadable:
            self.check_unchanged()  # an object store refuses to continue with an object that was replaced
            raise

    def _check_end(self, file: BinaryIO) -> None:
        if file.read(1):
            raise SourceChanged(
                f"{self} is longer than the {self.size} bytes that it is said to have. Deliver a copy of it "
                "that nothing writes to any more."
            )


@contextmanager
def _readable(path: object) -> Iterator[None]:
    try:
        yield
    except (OutboundTransferError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        raise SourceMissing(
            f"{path} is not there: {error}. Check the path on this worker (absolute; ~ is not expanded), and the task "
            "that should have written the file."
        ) from None
    except Exception as error:  # each object store's library has its own errors
        raise SourceUnreadable(f"{path} cannot be read: {type(error).__name__} {error}") from error


def resolve_files(
    files: FileSpec | Iterable[FileSpec], spool: Spool | None = None, gone: list[OutboundTransferError] | None = None
) -> list[Source]:
    """Find every file that ``files`` names, and produce every content. No file is opened.

    :param files: one file or several; see :func:`parse_files`.
    :param spool: holds the contents, and must stay open for as long as the sources are read.
    :param gone: takes the errors of files that are not there and of patterns that match nothing, and the others are
        found; if None, such an error is raised.
    :raises InvalidDelivery: there is no file, a pattern matches nothing, a text may be a name or a pattern, a content
        is none, or two files have the same name.
    :raises SourceUnreadable: a file is missing or is no file, or a folder of a pattern could not be listed.
    :raises NameRefused: the service would change a name.
    """
    sources: list[Source] = []
    for spec in parse_files(files):
        try:
            sources += _resolve(spec, spool)
        except (SourceMissing, NothingMatches) as error:
            if gone is None:
                raise
            gone.append(error)
    if not sources and not gone:
        raise InvalidDelivery(NO_FILES)
    reject_duplicate_names(sources)
    return sources


def parse_files(files: FileSpec | Iterable[FileSpec] | None) -> list[ParsedSpec]:
    """Convert ``files`` to a list of paths, URIs or patterns and of mappings. No file is read, no content produced.

    A set is sorted. A generator is consumed: continue with the result, which this function returns unchanged.

    :param files: one file or several; None and "" mean no file.
    :raises InvalidDelivery: an element is not a file.
    """
    if isinstance(files, str | Mapping) or not isinstance(files, Iterable):
        return [_parse(files)] if files else []
    specs = [_parse(spec) for spec in files]
    return sorted(specs, key=str) if isinstance(files, Set) else specs


def _parse(spec: Any) -> ParsedSpec:
    if not isinstance(spec, Mapping):
        return _path_text(spec)
    name = spec.get("name")
    if not isinstance(name, str | None):
        raise InvalidDelivery(f"the name of a file is text, not {type(name).__name__}")
    if "name" in spec and not name:
        raise InvalidDelivery(
            "the name of a file must not be empty; a template without a value is. A file with a path keeps its own "
            'name if "name" is left out'
        )
    if name and set(spec) == {"name", "content"}:
        return {"name": name, "content": Content.of(name, spec["content"])}
    if not spec.get("path") or not set(spec) <= {"path", "name"}:
        unknown = sorted(str(key)[:50] for key in set(spec) - _SPEC_KEYS)
        raise InvalidDelivery(
            'a file given as a mapping needs "path", and may have "name"; or it has "name" and "content"'
            + (f"; not {', '.join(map(repr, unknown[:5]))}" if unknown else "")
        )
    return {"path": _path_text(spec["path"]), "name": name} if name else {"path": _path_text(spec["path"])}


def _path_text(given: object) -> str:
    # First, because before universal-pathlib 0.3 it is an os.PathLike, too, of a text without the store.
    path = _object_storage_text(given) if hasattr(given, "protocol") else given
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not path or not isinstance(path, str) or "\0" in path:
        raise InvalidDelivery(f"a file is a path, a URI or a mapping, not {_describe(given)}{hint_at_pair(given)}")
    return path


def _describe(given: object) -> str:
    """Return what was given instead of a path: its type, as it may be content, which no error quotes."""
    if given is None or given == "":
        return repr(given)
    return (
        f"text with a null character, {len(given)} characters long"
        if isinstance(given, str)
        else type(getattr(given, "value", given)).__name__
    )


def _object_storage_text(given: object) -> str | None:
    from airflow.sdk import ObjectStoragePath

    if not isinstance(given, ObjectStoragePath):
        return None
    # The text of a local path is a URI, in which "%41" would be read as "A".
    return str(given.path if given.protocol in ("", "file", "local") else given)


def _resolve(spec: ParsedSpec, spool: Spool | None) -> list[Source]:
    if not isinstance(spec, str) and "content" in spec:
        check_name(spec["name"])
        if spool is None:
            raise TypeError("content needs a spool that holds it")
        return [Source.of_content(spec["name"], spool.hold(spec["name"], spec["content"]))]
    path, name = (spec, None) if isinstance(spec, str) else (spec["path"], spec.get("name"))
    sources = list(_find(path, name))
    if name and len(sources) > 1:
        raise InvalidDelivery(f"{path!r} matches {len(sources)} files, which cannot all be named {name!r}")
    return sources


def _find(path: str, name: str | None) -> Iterator[Source]:
    is_pattern = has_magic(path)
    if file_uri := _FILE_URI.match(path):
        if is_pattern and (encoded := _ENCODED_WILDCARD.search(path)):
            raise InvalidDelivery(f"{path!r}: a pattern in a URI must not contain {encoded[0]}; give a path")
        path = unquote(path[file_uri.end() :])  # an encoded wildcard of a URI without a pattern is part of the name
    elif uri := _URI.match(path):
        yield from _find_objects(path, uri["store"], uri["key"], name)
        return
    absolute = os.path.join(Path.cwd(), path)  # noqa: PTH118  # Path would resolve "//" and "."
    found = match(LocalFileSystem(), absolute, path) if is_pattern else [path]
    for file in map(Path, found):
        yield _source(str(file), name or file.name, partial(_open_local, file), partial(_stat_local, file))


def _find_objects(uri: str, store: str, key: str, name: str | None) -> Iterator[Source]:
    from airflow.sdk import ObjectStoragePath

    # The library drops these silently, and would read another file.
    if set("\t\r\n") & set(uri):
        raise InvalidDelivery(f"{uri!r}: a URI must not contain control characters")
    if has_magic(store):
        raise InvalidDelivery(f"{uri!r}: only what follows the first / may be a pattern")
    with _readable(uri):
        # Not built from the whole URI, which would lose an empty query or fragment: "a?" would mean "a".
        root = ObjectStoragePath(f"{store}/")
        fs = filesystem_of(root)
        fs.invalidate_cache()
        base = root.path.rstrip("/")
        keys = [key]
        if has_magic(key):
            found = match(fs, f"{base}/{key}", uri)
            keys = [file.strip("/").removeprefix(base.strip("/")).strip("/") for file in found]
        for path in (root / each for each in keys):
            yield _source(str(path), name or path.name, partial(_open_object, path), partial(_stat_object, path))


def _source(location: str, name: str, opens: Callable[[], BinaryIO], stats: Callable[[], Version]) -> Source:
    with _readable(location):
        source = Source(location, name, *stats(), opens, stats)
    check_name(name)
    return source


def _stat_local(file: Path) -> Version:
    found = file.stat()
    if stat.S_ISDIR(found.st_mode):
        raise SourceUnreadable(f"{file} is a folder. For the files in it, name a pattern: {file / '*'}")
    if not stat.S_ISREG(found.st_mode):
        raise SourceUnreadable(f"{file} is not a file")
    if not os.access(file, os.R_OK):
        raise PermissionError("this process may not read it")
    # A file that replaces another may have its inode and its mtime, but not its ctime.
    return found.st_size, f"{found.st_dev}-{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def _open_local(file: Path) -> BinaryIO:
    return file.open("rb", buffering=0)


#: What changes with an object. Not the file system's ``checksum``: over SFTP, that runs a command on the server.
_VERSIONS: Final = ("ETag", "etag", "mtime", "last_modified", "LastModified", "created")


def _stat_object(path: ObjectStoragePath) -> Version:
    # The file system that Airflow attached; the path's own methods may use another, without its keys.
    found = path.fs.info(path.path)
    if found["type"] != "file" or found["size"] is None:
        raise SourceUnreadable(f"{path} is not a file, or one of unknown size")
    return int(found["size"]), str(next((found[key] for key in _VERSIONS if found.get(key)), ""))


def _open_object(path: ObjectStoragePath) -> BinaryIO:
    # A block of s3fs, gcsfs and adlfs is many times as large and buffered twice; sshfs asks for a block at a time.
    reads_ahead = "block_size" in inspect.signature(path.fs._open).parameters
    return path.open("rb", block_size=8 * CHUNK_BYTES if reads_ahead else None)  # type: ignore[no-any-return]


def reject_duplicate_names(sources: list[Source]) -> None:
    """:raises InvalidDelivery: two files have one name."""
    # The service keeps the first file of a name and responds 200 to the second (service-api.md, R32). Two forms of one
    # accent look the same, and are one name on macOS.
    counts = Counter(normalize("NFC", source.name) for source in sources)
    twins = [source for source in sources if counts[normalize("NFC", source.name)] > 1]
    if twins:
        where = "; ".join(f"{source.name}: {source}" for source in twins)
        raise InvalidDelivery(
            f"two files have one name, and the service would keep only the first: {where}. "
            'Set "name" on one of them; if a path and a pattern match the same file, list it only once.'
        )
