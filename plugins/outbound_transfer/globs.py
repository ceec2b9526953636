"""The files that a pattern matches, by the rules of :mod:`glob`, on this machine and in an object store.

:mod:`glob` and fsspec leave out what they cannot list, and a delivery without the files of one folder looks whole. Here
whatever gives no answer is an error.
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

from outbound_transfer.protocol.errors import InvalidDelivery, OutboundTransferError, SourceUnreadable

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_MAGIC: Final = re.compile(r"[*?[]")

#: A component that stands for any number of folders.
_ANY_DEPTH: Final = "**"


def has_magic(path: str) -> bool:
    """Whether a path can be read as a pattern."""
    return _MAGIC.search(path) is not None


def local_matches(pattern: str) -> list[str]:
    """The files of this machine that match, and what only looks like a file, such as a link that leads nowhere; sorted.

    :raises InvalidDelivery: none does, or it is not clear whether a name or a pattern is meant.
    :raises SourceUnreadable: a folder could not be listed.
    """
    root = pattern
    parts: list[str] = []
    while has_magic(root):
        root, part = os.path.split(root)
        parts.insert(0, part)
    return _found(_LocalTree(pattern, root), parts)


def remote_matches(uri: str, store: ObjectStoragePath, key: str) -> list[ObjectStoragePath]:
    """The objects of ``store`` that match; as :func:`local_matches`."""
    parts = key.rstrip("/").split("/")
    if "" in parts:
        raise InvalidDelivery(f"no file matches {uri!r}: what is behind two slashes cannot be listed, only named")
    start = next(number for number, part in enumerate(parts) if has_magic(part))
    tree = _RemoteTree(uri, store, "/".join(parts[:start]))
    return [store / path for path in _found(tree, parts[start:])]


@dataclass(frozen=True)
class _Entry:
    """What a folder holds."""

    name: str
    path: str
    is_folder: Callable[[], bool]


class _Tree(Protocol):
    """A file system. All that it cannot tell for sure is an error.

    :ivar hides_dots: a wildcard matches no name that begins with a dot.
    """

    pattern: str
    root: str
    hides_dots: bool

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Iterable[_Entry]:
        """What ``folder`` holds; may be without names that do not begin with ``stem``, or without folders."""
        ...

    def named(self, folder: str, name: str, *, folders: bool) -> Iterable[_Entry]:
        """What ``folder`` holds by just this name."""
        ...

    def identity(self, folder: str) -> object:
        """The same for two paths of one folder."""
        ...


#: A path, and for each component of the pattern whether the path has it to the letter.
_Match = tuple[str, tuple[bool, ...]]


def _found(tree: _Tree, parts: Sequence[str]) -> list[str]:
    parts = [part for part, alike in groupby(parts) for _ in ([0] if part == _ANY_DEPTH else alike)]
    matches = sorted(set(_matches(tree, tree.root, parts)))
    if not matches:
        raise InvalidDelivery(f"no file matches {tree.pattern!r}")
    _refuse_ambiguous(tree, parts, matches)
    return sorted({path for path, _ in matches})


def _refuse_ambiguous(tree: _Tree, parts: Sequence[str], matches: Sequence[_Match]) -> None:
    readings = {literal: path for path, literal in reversed(matches)}
    if len(readings) == 1 or len({path for path, _ in matches}) == 1:
        return
    most, least = max(readings, key=sum), min(readings, key=sum)
    escaped = [glob.escape(part) if literal else part for part, literal in zip(parts, most, strict=True)]
    raise InvalidDelivery(
        f"{tree.pattern!r} is the name of what is there ({readings[most]}) and a pattern that matches more "
        f"({readings[least]}). For the name alone, end the path with {'/'.join(escaped)!r}; for the pattern, rename "
        "what is named like it."
    )


def _matches(tree: _Tree, folder: str, parts: Sequence[str]) -> Iterator[_Match]:
    head, rest = parts[0], parts[1:]
    if head != _ANY_DEPTH:
        yield from _in_folder(tree, folder, head, rest)
        return
    for below in _folders(tree, folder):
        if rest:
            yield from ((path, (False, *literal)) for path, literal in _matches(tree, below, rest))
        else:
            yield from _in_folder(tree, below, head, rest)


def _in_folder(tree: _Tree, folder: str, head: str, rest: Sequence[str]) -> Iterator[_Match]:
    for entry in _fitting(tree, folder, head, folders=bool(rest)):
        literal = entry.name == head
        if entry.is_folder() and rest:
            yield from ((path, (literal, *more)) for path, more in _matches(tree, entry.path, rest))
        elif not (entry.is_folder() or rest):
            yield entry.path, (literal,)


def _fitting(tree: _Tree, folder: str, head: str, *, folders: bool) -> Iterable[_Entry]:
    if not has_magic(head):
        return tree.named(folder, head, folders=folders)
    stem = _MAGIC.split(head, maxsplit=1)[0]
    entries = tree.entries(folder, stem, folders=folders)
    # A name that the pattern has to the letter is kept: it is not passed over where it does not match itself.
    return (entry for entry in entries if entry.name == head or (entry.name and _fits(tree, entry.name, head)))


def _fits(tree: _Tree, name: str, pattern: str) -> bool:
    hidden = tree.hides_dots and name.startswith(".") and not pattern.startswith(".")
    return not hidden and fnmatchcase(name, pattern)


def _folders(tree: _Tree, folder: str, above: frozenset[object] = frozenset()) -> Iterator[str]:
    """``folder`` and all below it, but none again that it lies in itself: a link may lead back."""
    identity = tree.identity(folder)
    if identity in above:
        return
    yield folder
    for entry in tree.entries(folder):
        if _fits(tree, entry.name, _ANY_DEPTH) and entry.is_folder():
            yield from _folders(tree, entry.path, above | {identity})


@contextmanager
def _asking(tree: _Tree, folder: str, shown: object) -> Iterator[None]:
    """Nothing but an answer counts; that the folder which the pattern begins in is not there is one."""
    try:
        yield
    except OutboundTransferError:
        raise
    except Exception as error:  # each object store's library has errors of its own
        if folder == tree.root and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InvalidDelivery(f"no file matches {tree.pattern!r}: there is no folder {shown}") from error
        raise SourceUnreadable(
            f"{shown} cannot be read, so what {tree.pattern!r} matches is not known: {type(error).__name__} {error}"
        ) from error


class _LocalTree:
    """The folders of this machine."""

    hides_dots = True

    def __init__(self, pattern: str, root: str) -> None:
        self.pattern, self.root = pattern, root

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Iterable[_Entry]:  # noqa: ARG002
        with self._asking(folder), os.scandir(folder or os.curdir) as listing:
            return [self._entry(folder, found) for found in listing]

    def _entry(self, folder: str, found: os.DirEntry[str]) -> _Entry:
        # Not the path of ``found``, which begins with "./" in a relative search.
        path = os.path.join(folder, found.name)  # noqa: PTH118
        return _Entry(found.name, path, lambda: self._is_folder(path, found))

    def named(self, folder: str, name: str, *, folders: bool) -> Iterable[_Entry]:  # noqa: ARG002
        path = os.path.join(folder, name)  # noqa: PTH118
        with self._asking(folder):
            try:
                os.lstat(path)
            except FileNotFoundError:
                os.stat(folder)  # noqa: PTH116  # it is the name that is not there
                return []
        return [_Entry(name, path, lambda: self._is_folder(path))]

    def identity(self, folder: str) -> object:
        with self._asking(folder):
            found = os.stat(folder or os.curdir)  # noqa: PTH116
            return found.st_dev, found.st_ino

    def _is_folder(self, path: str, found: os.DirEntry[str] | None = None) -> bool:
        with self._asking(path):
            if found and not found.is_symlink():
                return found.is_dir(follow_symlinks=False)
            try:
                return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    return False  # a link that leads nowhere
                raise

    @contextmanager
    def _asking(self, folder: str) -> Iterator[None]:
        with _asking(self, folder, folder or os.curdir):
            yield


class _RemoteTree:
    """The folders of an object store; paths are below ``store``, without a slash before them."""

    hides_dots = False

    def __init__(self, pattern: str, store: ObjectStoragePath, root: str) -> None:
        self.pattern, self.store, self.root = pattern, store, root
        self._listed: dict[str, list[Any]] = {}
        with self._asking(root):
            self._fs = store.fs
            # A listing of an earlier search is no answer to this one.
            self._fs.invalidate_cache()
            self._filters = "prefix" in inspect.signature(getattr(self._fs, "_find", self._fs.find)).parameters

    def entries(self, folder: str, stem: str = "", *, folders: bool = True) -> Iterable[_Entry]:
        with self._asking(folder):
            return [self._entry(folder, info) for info in self._list(folder, stem, folders=folders)]

    def named(self, folder: str, name: str, *, folders: bool) -> Iterable[_Entry]:
        return [entry for entry in self.entries(folder, name, folders=folders) if entry.name == name]

    def identity(self, folder: str) -> object:
        return folder

    def _list(self, folder: str, stem: str, *, folders: bool) -> Iterable[Any]:
        if stem and self._filters and folder not in self._listed:
            # The store filters, so that one file of a million costs one request. Only where it finds something: fsspec
            # gives nothing, too, where the store gave an error.
            found = self._fs.find(self._at(folder), maxdepth=1, withdirs=folders, detail=True, prefix=stem)
            if found:
                return list(found.values())
        if folder not in self._listed:
            self._listed[folder] = self._fs.ls(self._at(folder), detail=True)
        return self._listed[folder]

    def _entry(self, folder: str, info: Any) -> _Entry:
        path = info["name"].strip("/")
        name = "" if path == self._at(folder).strip("/") else path.rpartition("/")[2]
        is_folder = partial(self._is_folder, info) if name else partial(self._is_nameless, folder, info)
        return _Entry(name, f"{folder}/{name}".removeprefix("/"), is_folder)

    def _is_folder(self, info: Any) -> bool:
        if info["type"] in ("file", "directory"):
            return bool(info["type"] == "directory")
        with self._asking(info["name"]):
            try:
                return bool(self._fs.info(info["name"])["type"] == "directory")
            except FileNotFoundError:
                return False  # a link that leads nowhere

    def _is_nameless(self, folder: str, info: Any) -> bool:
        """False, for a folder's own entry.

        :raises InvalidDelivery: it is a folder without a name, which cannot be listed, and holds something.
        """
        if self._filters and info["type"] == "directory" and info["name"].endswith("/"):
            with self._asking(folder):
                if self._fs.find(self._at(folder), maxdepth=1, withdirs=True, detail=True, prefix="/"):
                    raise InvalidDelivery(
                        f"{self.store / folder} holds what {self.pattern!r} cannot reach, behind two slashes: name it"
                    )
        return False

    def _at(self, folder: str) -> str:
        return f"{self.store.path.rstrip('/')}/{folder}".rstrip("/")

    @contextmanager
    def _asking(self, folder: str) -> Iterator[None]:
        with _asking(self, folder, self.store / folder):
            yield
