"""Find the files that a pattern matches, by the rules of :mod:`glob`, on this machine and in an object store.

:mod:`glob`, :func:`os.walk` and fsspec silently leave out folders that they cannot list, and entries that they cannot
look at, and a delivery without the files of one folder looks complete. Here every such failure is an error.
"""

from __future__ import annotations

import errno
import glob
import inspect
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from outbound_transfer.airflow_compat.object_storage import resolve_links
from outbound_transfer.protocol.errors import InvalidDelivery, NothingMatches, OutboundTransferError, SourceUnreadable

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_GLOB_CHARS: Final = re.compile(r"[*?[]")

#: A component that matches any number of folders.
_ANY_DEPTH: Final = "**"


def has_magic(path: str) -> bool:
    """Return whether a path may be a pattern."""
    return _GLOB_CHARS.search(path) is not None


def match_local(pattern: str) -> list[str]:
    """Return the paths on this machine that match and are not folders, sorted; a dangling link is one of them.

    :raises NothingMatches: there is none.
    :raises InvalidDelivery: the text is the name of a file and a pattern that matches others.
    :raises SourceUnreadable: a folder could not be listed.
    """
    root = pattern
    parts: list[str] = []
    while has_magic(root):
        root, part = os.path.split(root)
        parts.insert(0, part)
    return _search(_LocalTree(pattern, root), parts)


def match_remote(uri: str, store: ObjectStoragePath, key: str) -> list[ObjectStoragePath]:
    """Return the objects of ``store`` that match, sorted; raises what :func:`match_local` raises."""
    parts = key.rstrip("/").split("/")
    if "" in parts:
        raise InvalidDelivery(f"no file matches {uri!r}: objects behind two slashes cannot be listed, only named")
    start = next(number for number, part in enumerate(parts) if has_magic(part))
    tree = _RemoteTree(uri, store, "/".join(parts[:start]))
    return [store / path for path in _search(tree, parts[start:])]


def _search(tree: _Tree, parts: Sequence[str]) -> list[str]:
    escaped = [glob.escape(part) for part in parts]
    matches, named = set(_matches(tree, tree.root, parts)), set(_matches(tree, tree.root, escaped))
    if not matches | named:
        raise NothingMatches(
            f"no file matches {tree.pattern!r}. Check the folder on this worker, the pattern, and the task that should "
            "have written the files."
        )
    if named and matches - named:
        raise InvalidDelivery(
            f"{tree.pattern!r} is the name of an existing file ({min(named)}) and a pattern that matches others "
            f"({min(matches - named)}). For that file alone, end the path with {'/'.join(escaped)!r}; for the pattern, "
            "rename the file."
        )
    return sorted(matches | named)


def _matches(tree: _Tree, folder: str, parts: Sequence[str]) -> Iterator[str]:
    head, remaining = parts[0], parts[1:]
    if head == _ANY_DEPTH:
        for below in _walk_folders(tree, folder):
            yield from _matches(tree, below, remaining or ["*"])
        return
    for entry in tree.entries(folder, _GLOB_CHARS.split(head, maxsplit=1)[0], folders=bool(remaining)):
        if not (entry.name and tree.matches(entry.name, head)):
            continue
        if not entry.is_folder():
            yield from () if remaining else (entry.path,)
        elif remaining:
            yield from _matches(tree, entry.path, remaining)


def _walk_folders(tree: _Tree, folder: str, above: frozenset[object] = frozenset()) -> Iterator[str]:
    """Yield ``folder`` and all folders below it, but none that contains itself: a link may lead back."""
    identity = tree.identity(folder)
    if identity in above:
        return
    yield folder
    for entry in tree.entries(folder):
        if tree.matches(entry.name, "*") and entry.is_folder():
            yield from _walk_folders(tree, entry.path, above | {identity})


class _Entry(NamedTuple):
    """An entry of a folder."""

    name: str
    path: str
    is_folder: Callable[[], bool]


class _Tree(ABC):
    """A file system. Whatever it cannot determine is an error.

    :ivar hides_dots: whether wildcards skip names that begin with a dot.
    :ivar filters: whether it lists only the names that begin with a text.
    """

    hides_dots: ClassVar[bool]
    filters = False

    def __init__(self, pattern: str, root: str) -> None:
        self.pattern, self.root = pattern, root
        self._listed: dict[tuple[str, str, bool], list[_Entry]] = {}

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> list[_Entry]:
        """List a folder; may leave out names that do not begin with ``stem``, and with ``folders=False`` folders."""
        key = (folder, stem, folders) if self.filters and stem else (folder, "", True)
        if key not in self._listed:
            with self.translate_errors(folder):
                self._listed[key] = list(self._list(*key))
        return self._listed[key]

    def matches(self, name: str, pattern: str) -> bool:
        """Return whether a name matches a component of the pattern."""
        hidden = self.hides_dots and name.startswith(".") and not pattern.startswith(".")
        return not hidden and fnmatchcase(name, pattern)

    @contextmanager
    def translate_errors(self, folder: str) -> Iterator[None]:
        """Translate every failure to one of our errors. If the pattern's first folder is missing, nothing matches."""
        try:
            yield
        except OutboundTransferError:
            raise
        except Exception as error:  # each object store's library has its own errors
            shown = self._shown(folder)
            if folder == self.root and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise NothingMatches(f"no file matches {self.pattern!r}: there is no folder {shown}") from error
            raise SourceUnreadable(
                f"{shown} cannot be read, so what {self.pattern!r} matches is not known: {type(error).__name__} {error}"
            ) from error

    @abstractmethod
    def _list(self, folder: str, stem: str, folders: bool) -> Iterable[_Entry]: ...

    @abstractmethod
    def _shown(self, folder: str) -> object: ...

    def identity(self, folder: str) -> object:
        """Return a value that is equal for two paths of the same folder."""
        return folder


class _LocalTree(_Tree):
    """The folders on this machine."""

    hides_dots = True

    def _list(self, folder: str, stem: str, folders: bool) -> Iterable[_Entry]:  # noqa: ARG002  # it does not filter
        with os.scandir(folder or os.curdir) as listing:
            for found in listing:
                # Not the path of ``found``: it begins with "./" in a relative search.
                path = os.path.join(folder, found.name)  # noqa: PTH118
                yield _Entry(found.name, path, partial(self._is_folder, path, found))

    def _is_folder(self, path: str, found: os.DirEntry[str]) -> bool:
        with self.translate_errors(path):
            if not found.is_symlink():
                return found.is_dir(follow_symlinks=False)
            try:
                return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    return False  # a dangling link
                raise

    def _shown(self, folder: str) -> object:
        return folder or os.curdir

    def identity(self, folder: str) -> object:
        with self.translate_errors(folder):
            found = os.stat(folder or os.curdir)  # noqa: PTH116
            return found.st_dev, found.st_ino


class _RemoteTree(_Tree):
    """The folders of an object store; paths are relative to ``store``, without a leading slash."""

    hides_dots = False

    def __init__(self, pattern: str, store: ObjectStoragePath, root: str) -> None:
        super().__init__(pattern, root)
        self.store = store
        with self.translate_errors(root):
            store.fs.invalidate_cache()  # a cached listing may be out of date
            # Without a depth, it would list all folders below, too.
            find = inspect.signature(getattr(store.fs, "_find", store.fs.find))
            self.filters = {"prefix", "maxdepth"} <= set(find.parameters)

    def _list(self, folder: str, stem: str, folders: bool) -> Iterable[_Entry]:
        listed = self._full_path(folder)
        # The store filters, so one file of a million costs one request. An empty result is not trusted: fsspec returns
        # it for errors of the store too.
        found = self._find(listed, stem, folders) if stem else {}
        for info in found.values() or self.store.fs.ls(listed, detail=True):
            path = info["name"].strip("/")
            name = "" if path == listed.strip("/") else path.rpartition("/")[2]
            if not name and info["type"] == "file" and not info["name"].endswith("/"):
                # The library of Azure lists this object alone, and leaves out what the folder of its name holds.
                raise NotADirectoryError("a file has the folder's name")
            is_folder = partial(self._is_folder, info) if name else partial(self._check_own_entry, folder, info)
            yield _Entry(name, f"{folder}/{name}".removeprefix("/"), is_folder)

    def _check_own_entry(self, folder: str, info: Any) -> bool:
        """Return False for a folder's own entry: it is not a folder below.

        :raises InvalidDelivery: it is a folder with an empty name that holds something, and cannot be listed.
        """
        if self.filters and info["type"] == "directory" and info["name"].endswith("/"):
            with self.translate_errors(folder):
                if self._find(info["name"].rstrip("/"), "/", True):
                    raise InvalidDelivery(
                        f"{self.store / folder} holds what {self.pattern!r} cannot reach, behind two slashes: "
                        "give its full path"
                    )
        return False

    def _find(self, listed: str, prefix: str, folders: bool) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.store.fs.find(listed, maxdepth=1, withdirs=folders, detail=True, prefix=prefix)
        return found

    def _is_folder(self, info: Any) -> bool:
        if info["type"] in ("file", "directory"):
            return bool(info["type"] == "directory")
        with self.translate_errors(info["name"]):
            try:
                return bool(self.store.fs.info(info["name"])["type"] == "directory")
            except FileNotFoundError:
                return False  # a dangling link

    def _shown(self, folder: str) -> object:
        return self.store / folder

    def identity(self, folder: str) -> object:
        with self.translate_errors(folder):
            return resolve_links(self.store.fs, self._full_path(folder))

    def _full_path(self, folder: str) -> str:
        # To a server of SFTP, "" is the user's home.
        return f"{self.store.path.rstrip('/')}/{folder}".rstrip("/") or "/"
