"""The files that a pattern matches, on this machine and in any store of fsspec. What cannot be listed is an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from outbound_transfer.protocol.errors import InvalidDelivery, NothingMatches, SourceUnreadable

_MAGIC: Final = re.compile(r"[*?[]")


def has_magic(path: str) -> bool:
    """Return whether a path may be a pattern."""
    return _MAGIC.search(path) is not None


def match(fs: Any, pattern: str, shown: str) -> list[dict[str, Any]]:
    """Return fsspec's ``info`` of each file that matches, sorted by path. A link that leads nowhere is a file.

    Not ``fs.glob``, which silently leaves out each folder below the first that it cannot list.

    :param pattern: a path of ``fs``; ``**`` matches folders at any depth. On this machine, wildcards skip names that
        begin with a dot.
    :param shown: the pattern as its user wrote it.
    :raises NothingMatches: no file matches.
    :raises InvalidDelivery: the text is no pattern, or is the path of a file and also matches others.
    :raises SourceUnreadable: a folder cannot be listed.
    """
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if has_magic(part))
    root, below = "/".join(parts[:fixed]) or "/", parts[fixed:]
    try:
        matches = re.compile(glob_translate("/".join(below))).match
    except ValueError as error:
        raise InvalidDelivery(f"{shown!r} is not a pattern: {error}") from None
    skips_hidden = isinstance(fs, LocalFileSystem) and not any(part.startswith(".") for part in below)
    fs.invalidate_cache()
    try:
        above = (os.path.realpath(root),) if isinstance(fs, LocalFileSystem) else (root,)
        files = list(_files(fs, root, below, above=above))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NothingMatches(f"no file matches {shown!r}: there is no folder {root}") from error
    except SourceUnreadable as error:
        raise SourceUnreadable(f"{shown!r}: {error}") from error
    found = {
        info["name"]: info
        for path, info in files
        if path == below or (matches("/".join(path)) and not (skips_hidden and any(part[:1] == "." for part in path)))
    }
    literal = [info["name"] for path, info in files if path == below]
    if not found:
        raise NothingMatches(
            f"no file matches {shown!r}. Check the folder on this worker, the pattern, and the task that should have "
            "written the files."
        )
    if literal and len(found) > 1:
        raise InvalidDelivery(
            f"{shown!r} is the name of an existing file and a pattern that matches others, such as "
            f"{min(found.keys() - literal)!r}. For that file alone, write each of * ? [ as [*] [?] [[]; for the "
            "pattern, rename the file."
        )
    return [found[name] for name in sorted(found)]


def _files(
    fs: Any, folder: str, parts: Sequence[str], below: tuple[str, ...] = (), above: tuple[str, ...] = ()
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the files of each folder that can hold a match: their path below the first folder, and their info.

    :param above: the real paths of the folders above, since a link may lead back.
    """
    for info in _list(fs, folder, is_root=not below):
        name = info["name"].rstrip("/").rpartition("/")[2]
        if not _is_folder(fs, info):
            yield [*below, name], info
        elif parts[0] == "**" or (len(parts) > 1 and (fnmatchcase(name, parts[0]) or name == parts[0])):
            is_local = isinstance(fs, LocalFileSystem)
            if parts[0] == "**" and info["type"] != "directory" and not is_local:
                raise SourceUnreadable(
                    f"{info['name']} is a link, which may lead back: ** does not follow it. Name it."
                )
            real = os.path.realpath(info["name"]) if is_local else info["name"]
            if real not in above:
                rest = parts if parts[0] == "**" else parts[1:]
                yield from _files(fs, info["name"].rstrip("/"), rest, (*below, name), (*above, real))


def _list(fs: Any, folder: str, *, is_root: bool) -> list[dict[str, Any]]:
    try:
        listed = fs.ls(folder, detail=True)
        own = [info for info in listed if info["name"].strip("/") == folder.strip("/")]
        if any(info["type"] == "file" and not info["name"].endswith("/") for info in own):
            # adlfs lists only this object, and leaves out what the folder of the same name holds.
            raise NotADirectoryError(f"{folder} is a file")
        return [info for info in listed if info not in own]
    except Exception as error:  # each store's library has its own errors
        if is_root and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
        raise SourceUnreadable(
            f"{folder} cannot be listed, so the files that match are not known: {type(error).__name__} {error}"
        ) from error


def _is_folder(fs: Any, info: dict[str, Any]) -> bool:
    if info["type"] in ("file", "directory"):
        return bool(info["type"] == "directory")
    try:
        return bool(fs.info(info["name"])["type"] == "directory")  # follows the link
    except FileNotFoundError:
        return False
    except Exception as error:  # each store's library has its own errors
        raise SourceUnreadable(f"{info['name']} cannot be read: {type(error).__name__} {error}") from error
