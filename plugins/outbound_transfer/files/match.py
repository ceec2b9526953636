"""The files that a pattern matches, on this machine and in any store of fsspec. What cannot be listed is an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from outbound_transfer.client.errors import InvalidDelivery, NothingMatches, SourceMissing, SourceUnreadable
from outbound_transfer.files.sources import readable

_MAGIC: Final = re.compile(r"[*?[]")


def has_magic(path: str) -> bool:
    """Return whether a path may be a pattern."""
    return _MAGIC.search(path) is not None


def match(fs: Any, folder: str, pattern: str, shown: str) -> list[str]:
    """Return the path below ``folder`` of each file that matches, sorted. A link that leads nowhere is a file.

    Not ``fs.glob``, which silently leaves out each folder below the first that it cannot list.

    :param pattern: a path below ``folder``; ``**`` matches folders at any depth. On this machine, wildcards skip names
        that begin with a dot.
    :param shown: the pattern as its user wrote it.
    :raises NothingMatches: no file matches.
    :raises InvalidDelivery: the text is no pattern, or is the path of a file and also matches others.
    :raises SourceUnreadable: a folder cannot be listed.
    """
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if has_magic(part))
    above, below = "".join(f"{part}/" for part in parts[:fixed]), "/".join(parts[fixed:])
    root = f"{folder}/{above}".rstrip("/") or "/"
    hides = isinstance(fs, LocalFileSystem) and not _is_hidden(below)
    try:
        matches = re.compile(glob_translate(below)).match
        listed = _list(fs, root, shown)
    except ValueError as error:
        raise InvalidDelivery(f"{shown!r} is not a pattern: {error}") from None
    except SourceMissing as error:
        raise NothingMatches(f"no file matches {shown!r}: there is no folder {root}") from error
    files = _files(fs, listed, parts[fixed:], "", (_real_path(fs, root),), shown)
    found = sorted(path for path in files if path == below or (matches(path) and not (hides and _is_hidden(path))))
    fs.invalidate_cache()  # otherwise it tells what a file was when it was listed, also after the file has changed
    if not found:
        raise NothingMatches(
            f"no file matches {shown!r}. Check the folder on this worker, the pattern, and the task that should have "
            "written the files."
        )
    if below in found and len(found) > 1:
        raise InvalidDelivery(
            f"{shown!r} is the name of an existing file and a pattern that matches others, such as "
            f"{min(set(found) - {below})!r}. For that file alone, write each of * ? [ as [*] [?] [[]; for the "
            "pattern, rename the file."
        )
    return [above + path for path in found]


def _is_hidden(path: str) -> bool:
    return "/." in f"/{path}"


def _list(fs: Any, folder: str, shown: str) -> list[dict[str, Any]]:
    """Return what a folder holds, as fsspec describes it; not the folder's own entry."""
    with readable(f"{shown!r}: {folder}"):
        listed = fs.ls(folder, detail=True)
        if any(info["type"] == "file" and info["name"].lstrip("/") == folder.lstrip("/") for info in listed):
            # adlfs lists only this object, and leaves out what the folder of the same name holds.
            raise NotADirectoryError(f"{folder} is a file")
        return [info for info in listed if info["name"].strip("/") != folder.strip("/")]


def _files(
    fs: Any, listed: Sequence[dict[str, Any]], parts: Sequence[str], below: str, above: tuple[str, ...], shown: str
) -> Iterator[str]:
    """Yield the path below the first folder of each file in a folder, and in those that can hold a match.

    :param listed: what the folder holds.
    :param parts: of the pattern, from the one that the names in this folder must match.
    :param below: the folder's path below the first folder.
    :param above: the real paths of this folder and those above it, since a link may lead back.
    :param shown: the pattern, for errors.
    """
    rest = parts if parts[0] == "**" else parts[1:]
    for info in listed:
        path = info["name"].rstrip("/")
        name = path.rpartition("/")[2]
        if not _is_folder(fs, info):
            yield below + name
        elif rest and (fnmatchcase(name, parts[0]) or name == parts[0]):
            if rest is parts and info["type"] == "link":  # of a server, which does not say where it leads
                raise SourceUnreadable(f"{path} is a link, which may lead back: ** does not follow it. Name it.")
            if (real_path := _real_path(fs, path)) not in above:
                yield from _files(fs, _list(fs, path, shown), rest, f"{below}{name}/", (*above, real_path), shown)


def _is_folder(fs: Any, info: dict[str, Any]) -> bool:
    if info["type"] in ("file", "directory"):
        return bool(info["type"] == "directory")
    try:
        with readable(info["name"]):
            return bool(fs.info(info["name"])["type"] == "directory")  # follows the link
    except SourceMissing:
        return False


def _real_path(fs: Any, path: str) -> str:
    return os.path.realpath(path) if isinstance(fs, LocalFileSystem) else path
