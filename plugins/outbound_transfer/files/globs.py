"""Find the files that a pattern matches, by the rules of :mod:`glob`, on this machine and in an object store.

:mod:`glob` and fsspec silently leave out folders that they cannot list, and a delivery without the files of one folder
looks complete. Here every failure to list or read is an error.
"""

from __future__ import annotations

import errno
import glob
import inspect
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

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
    :raises InvalidDelivery: the text may be a name or a pattern, and these differ.
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


@dataclass(frozen=True)
class _Entry:
    """An entry of a folder."""

    name: str
    path: str
    is_folder: Callable[[], bool]


class _Tree(Protocol):
    """A file system. Whatever it cannot determine is an error.

    :ivar hides_dots: whether wildcards skip names that begin with a dot.
    """

    pattern: str
    root: str
    hides_dots: bool

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Iterable[_Entry]:
        """List ``folder``; may leave out names that do not begin with ``stem``, and with ``folders=False`` folders."""
        ...

    def find_by_name(self, folder: str, name: str, *, folders: bool) -> Iterable[_Entry]:
        """List the entries of ``folder`` with exactly this name."""
        ...

    def identity(self, folder: str) -> object:
        """Return a value that is equal for two paths of the same folder."""
        ...


#: A path, and for each component of the pattern whether the path contains it literally.
_Match = tuple[str, tuple[bool, ...]]


def _search(tree: _Tree, parts: Sequence[str]) -> list[str]:
    parts = [part for part, alike in groupby(parts) for _ in ([0] if part == _ANY_DEPTH else alike)]
    matches = sorted(set(_matches(tree, tree.root, parts)))
    if not matches:
        raise NothingMatches(
            f"no file matches {tree.pattern!r}. Check the folder on this worker, the pattern, and the task that should "
            "have written the files."
        )
    _reject_ambiguous(tree, parts, matches)
    return sorted({path for path, _ in matches})


def _reject_ambiguous(tree: _Tree, parts: Sequence[str], matches: Sequence[_Match]) -> None:
    readings = {literal: path for path, literal in reversed(matches)}
    if len(readings) == 1 or len({path for path, _ in matches}) == 1:
        return
    fullest, barest = max(readings, key=sum), min(readings, key=sum)
    escaped = [glob.escape(part) if literal else part for part, literal in zip(parts, fullest, strict=True)]
    raise InvalidDelivery(
        f"{tree.pattern!r} is the name of an existing file ({readings[fullest]}) and a pattern that matches others "
        f"({readings[barest]}). For that file alone, end the path with {'/'.join(escaped)!r}; for the pattern, "
        "rename the file."
    )


def _matches(tree: _Tree, folder: str, parts: Sequence[str]) -> Iterator[_Match]:
    head, remaining = parts[0], parts[1:]
    if head != _ANY_DEPTH:
        yield from _matches_in_folder(tree, folder, head, remaining)
        return
    for below in _walk_folders(tree, folder):
        if remaining:
            yield from ((path, (False, *literal)) for path, literal in _matches(tree, below, remaining))
        else:
            yield from _matches_in_folder(tree, below, head, remaining)


def _matches_in_folder(tree: _Tree, folder: str, head: str, remaining: Sequence[str]) -> Iterator[_Match]:
    for entry in _candidate_entries(tree, folder, head, folders=bool(remaining)):
        literal = entry.name == head
        if entry.is_folder() and remaining:
            yield from ((path, (literal, *more)) for path, more in _matches(tree, entry.path, remaining))
        elif not (entry.is_folder() or remaining):
            yield entry.path, (literal,)


def _candidate_entries(tree: _Tree, folder: str, head: str, *, folders: bool) -> Iterable[_Entry]:
    if not has_magic(head):
        return tree.find_by_name(folder, head, folders=folders)
    stem = _GLOB_CHARS.split(head, maxsplit=1)[0]
    entries = tree.entries(folder, stem, folders=folders)
    # A name that equals the pattern is included, even if the pattern does not match itself.
    return (entry for entry in entries if entry.name == head or (entry.name and _name_matches(tree, entry.name, head)))


def _name_matches(tree: _Tree, name: str, pattern: str) -> bool:
    hidden = tree.hides_dots and name.startswith(".") and not pattern.startswith(".")
    return not hidden and fnmatchcase(name, pattern)


def _walk_folders(tree: _Tree, folder: str, above: frozenset[object] = frozenset()) -> Iterator[str]:
    """Yield ``folder`` and all folders below it, but none that contains itself: a link may lead back."""
    identity = tree.identity(folder)
    if identity in above:
        return
    yield folder
    for entry in tree.entries(folder):
        if _name_matches(tree, entry.name, _ANY_DEPTH) and entry.is_folder():
            yield from _walk_folders(tree, entry.path, above | {identity})


@contextmanager
def _translate_errors(tree: _Tree, folder: str, shown: object) -> Iterator[None]:
    """Translate every failure to one of our errors. If the pattern's first folder is missing, nothing matches."""
    try:
        yield
    except OutboundTransferError:
        raise
    except Exception as error:  # each object store's library has its own errors
        if folder == tree.root and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise NothingMatches(f"no file matches {tree.pattern!r}: there is no folder {shown}") from error
        raise SourceUnreadable(
            f"{shown} cannot be read, so what {tree.pattern!r} matches is not known: {type(error).__name__} {error}"
        ) from error


class _LocalTree:
    """The folders on this machine."""

    hides_dots = True

    def __init__(self, pattern: str, root: str) -> None:
        self.pattern, self.root = pattern, root

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Iterable[_Entry]:  # noqa: ARG002
        with self._translate_errors(folder), os.scandir(folder or os.curdir) as listing:
            return [self._entry(folder, found) for found in listing]

    def _entry(self, folder: str, found: os.DirEntry[str]) -> _Entry:
        # Not the path of ``found``: it begins with "./" in a relative search.
        path = os.path.join(folder, found.name)  # noqa: PTH118
        return _Entry(found.name, path, lambda: self._is_folder(path, found))

    def find_by_name(self, folder: str, name: str, *, folders: bool) -> Iterable[_Entry]:  # noqa: ARG002
        path = os.path.join(folder, name)  # noqa: PTH118
        with self._translate_errors(folder):
            try:
                os.lstat(path)
            except FileNotFoundError:
                os.stat(folder)  # noqa: PTH116  # fails if the folder is missing, not only the name
                return []
        return [_Entry(name, path, lambda: self._is_folder(path))]

    def identity(self, folder: str) -> object:
        with self._translate_errors(folder):
            found = os.stat(folder or os.curdir)  # noqa: PTH116
            return found.st_dev, found.st_ino

    def _is_folder(self, path: str, found: os.DirEntry[str] | None = None) -> bool:
        with self._translate_errors(path):
            if found and not found.is_symlink():
                return found.is_dir(follow_symlinks=False)
            try:
                return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    return False  # a dangling link
                raise

    @contextmanager
    def _translate_errors(self, folder: str) -> Iterator[None]:
        with _translate_errors(self, folder, folder or os.curdir):
            yield


class _RemoteTree:
    """The folders of an object store; paths are relative to ``store``, without a leading slash."""

    hides_dots = False

    def __init__(self, pattern: str, store: ObjectStoragePath, root: str) -> None:
        self.pattern, self.store, self.root = pattern, store, root
        self._listed: dict[str, list[Any]] = {}
        with self._translate_errors(root):
            self._fs = store.fs
            # A cached listing may be out of date.
            self._fs.invalidate_cache()
            self._filters = "prefix" in inspect.signature(getattr(self._fs, "_find", self._fs.find)).parameters

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Iterable[_Entry]:
        with self._translate_errors(folder):
            return [self._entry(folder, info) for info in self._list(folder, stem, folders=folders)]

    def find_by_name(self, folder: str, name: str, *, folders: bool) -> Iterable[_Entry]:
        return [entry for entry in self.entries(folder, name, folders=folders) if entry.name == name]

    def identity(self, folder: str) -> object:
        return folder

    def _list(self, folder: str, stem: str, *, folders: bool) -> Iterable[Any]:
        if stem and self._filters and folder not in self._listed:
            # The store filters, so one file of a million costs one request. An empty result is not trusted: fsspec
            # returns it for errors of the store too.
            found = self._fs.find(self._store_path(folder), maxdepth=1, withdirs=folders, detail=True, prefix=stem)
            if found:
                return list(found.values())
        if folder not in self._listed:
            self._listed[folder] = self._fs.ls(self._store_path(folder), detail=True)
        return self._listed[folder]

    def _entry(self, folder: str, info: Any) -> _Entry:
        path = info["name"].strip("/")
        name = "" if path == self._store_path(folder).strip("/") else path.rpartition("/")[2]
        is_folder = partial(self._is_folder, info) if name else partial(self._check_own_entry, folder, info)
        return _Entry(name, f"{folder}/{name}".removeprefix("/"), is_folder)

    def _is_folder(self, info: Any) -> bool:
        if info["type"] in ("file", "directory"):
            return bool(info["type"] == "directory")
        with self._translate_errors(info["name"]):
            try:
                return bool(self._fs.info(info["name"])["type"] == "directory")
            except FileNotFoundError:
                return False  # a dangling link

    def _check_own_entry(self, folder: str, info: Any) -> bool:
        """Return False for a folder's own entry: it is not a folder below.

        :raises InvalidDelivery: it is a folder with an empty name that holds something, and cannot be listed.
        """
        if self._filters and info["type"] == "directory" and info["name"].endswith("/"):
            with self._translate_errors(folder):
                if self._fs.find(self._store_path(folder), maxdepth=1, withdirs=True, detail=True, prefix="/"):
                    raise InvalidDelivery(
                        f"{self.store / folder} holds what {self.pattern!r} cannot reach, behind two slashes: "
                        "give its full path"
                    )
        return False

    def _store_path(self, folder: str) -> str:
        return f"{self.store.path.rstrip('/')}/{folder}".rstrip("/")

    @contextmanager
    def _translate_errors(self, folder: str) -> Iterator[None]:
        with _translate_errors(self, folder, self.store / folder):
            yield
