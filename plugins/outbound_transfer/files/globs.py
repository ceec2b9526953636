"""Find the files that a pattern matches, by the rules of :mod:`glob`, on this machine and in an object store.

:mod:`glob` and :func:`os.walk` silently leave out folders that they cannot list, and entries that they cannot look at;
fsspec's ``walk`` and ``glob`` those below the first. A delivery without the files of one folder looks complete, so here
every such failure is an error.
"""

from __future__ import annotations

import glob
import inspect
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        if tree.matches(entry.name, head):
            is_folder = entry.is_folder()
            if remaining and is_folder:
                yield from _matches(tree, entry.path, remaining)
            elif not remaining and not is_folder:
                yield entry.path


def _walk_folders(tree: _Tree, folder: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield ``folder`` and all folders below it, but none that contains itself: a link may lead back."""
    resolved = tree.resolve(folder)
    if resolved in above:
        return
    yield folder
    for entry in tree.entries(folder):
        if tree.matches(entry.name, "*") and entry.is_folder():
            yield from _walk_folders(tree, entry.path, above | {resolved})


class _Entry(NamedTuple):
    """An entry of a folder; ``is_folder`` follows links, and may fail."""

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

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Sequence[_Entry]:
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

    @abstractmethod
    def resolve(self, folder: str) -> str:
        """Return the path with its links resolved."""


class _LocalTree(_Tree):
    """The folders on this machine."""

    hides_dots = True

    def _list(self, folder: str, stem: str, folders: bool) -> Iterable[_Entry]:  # noqa: ARG002  # it does not filter
        with os.scandir(folder or os.curdir) as listing:
            for found in listing:
                # Not the path of ``found``: it begins with "./" in a relative search.
                path = os.path.join(folder, found.name)  # noqa: PTH118
                yield _Entry(found.name, path, partial(self._is_folder, found, path))

    def _is_folder(self, found: os.DirEntry[str], path: str) -> bool:
        with self.translate_errors(path):
            return found.is_dir()

    def _shown(self, folder: str) -> object:
        return folder or os.curdir

    def resolve(self, folder: str) -> str:
        return os.path.realpath(folder)


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
        listed, fs = self._full_path(folder), self.store.fs
        # The store filters, so one file of a million costs one request. An empty result is not trusted: fsspec returns
        # it for errors of the store too.
        found = fs.find(listed, maxdepth=1, withdirs=folders, detail=True, prefix=stem) if stem else {}
        for info in found.values() or fs.ls(listed, detail=True):
            path = info["name"].strip("/")
            if path != listed.strip("/"):
                name = path.rpartition("/")[2]
                yield _Entry(name, f"{folder}/{name}".removeprefix("/"), partial(self._is_folder, info))
            elif info["type"] == "file" and not info["name"].endswith("/"):  # not the mark of a folder
                # The library of Azure lists this object alone, and leaves out what the folder of its name holds.
                raise NotADirectoryError("a file has the folder's name")

    def _is_folder(self, info: Any) -> bool:
        with self.translate_errors(info["name"]):
            if info["type"] not in ("file", "directory"):
                try:
                    info = self.store.fs.info(info["name"])
                except FileNotFoundError:
                    return False  # a dangling link
            return bool(info["type"] == "directory")

    def _shown(self, folder: str) -> object:
        return self.store / folder

    def resolve(self, folder: str) -> str:
        with self.translate_errors(folder):
            return resolve_links(self.store.fs, self._full_path(folder))

    def _full_path(self, folder: str) -> str:
        # To a server of SFTP, "" is the user's home.
        return f"{self.store.path.rstrip('/')}/{folder}".rstrip("/") or "/"
