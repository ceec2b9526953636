"""The files that a pattern matches, on this machine and in any store of fsspec. What cannot be listed is an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from outbound_transfer.client.errors import InvalidDelivery, NothingMatches, SourceUnreadable

_MAGIC: Final = re.compile(r"[*?[]")

#: The beginning of the first part of a path that has a wildcard.
_FIRST_PART: Final = re.compile(r"([^/]*?[*?[])")


def has_magic(path: str) -> bool:
    """Return whether a path may be a pattern."""
    return _MAGIC.search(path) is not None


def match(fs: Any, pattern: str, shown: str) -> list[str]:
    """Return the path of each file that matches, sorted. A link that leads nowhere is a file.

    Not ``fs.glob``, which silently leaves out each folder below the first that it cannot list.

    :param pattern: a path of ``fs``; ``**`` matches folders at any depth. On this machine, wildcards skip names that
        begin with a dot.
    :param shown: the pattern as its user wrote it.
    :raises NothingMatches: no file matches.
    :raises InvalidDelivery: the text is no pattern, or is the path of a file and also matches others.
    :raises SourceUnreadable: a folder cannot be listed.
    """
    above, first, rest = _FIRST_PART.split(pattern, maxsplit=1)
    root, below = above[:-1] or "/", first + rest
    try:
        matches = re.compile(glob_translate(below)).match
    except ValueError as error:
        raise InvalidDelivery(f"{shown!r} is not a pattern: {error}") from None
    files = _find(fs, root, below, shown)
    shows_hidden = not isinstance(fs, LocalFileSystem) or _is_hidden(below)
    found = {path for path in files if path == below or (matches(path) and (shows_hidden or not _is_hidden(path)))}
    if not found:
        raise NothingMatches(
            f"no file matches {shown!r}. Check the folder on this worker, the pattern, and the task that should have "
            "written the files."
        )
    if below in found and len(found) > 1:
        raise InvalidDelivery(
            f"{shown!r} is the name of an existing file and a pattern that matches others, such as "
            f"{files[min(found - {below})]!r}. For that file alone, write each of * ? [ as [*] [?] [[]; for the "
            "pattern, rename the file."
        )
    return sorted(files[path] for path in found)


def _is_hidden(path: str) -> bool:
    return "/." in f"/{path}"


def _find(fs: Any, root: str, below: str, shown: str) -> dict[str, str]:
    """Return the path of each file that may match, by its path below ``root``."""
    fs.invalidate_cache()
    try:
        return dict(_files(fs, root, below.split("/")))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NothingMatches(f"no file matches {shown!r}: there is no folder {root}") from error
    except SourceUnreadable as error:
        raise SourceUnreadable(f"{shown!r}: {error}") from error


def _files(
    fs: Any, folder: str, parts: Sequence[str], below: str = "", above: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the files of each folder that can hold a match: their paths below the first folder, and their paths.

    :param above: the real paths of the folders above, since a link may lead back.
    """
    is_any_depth, above = parts[0] == "**", (*above, _real_path(fs, folder))
    for info in _list(fs, folder, is_root=not below):
        path = info["name"].rstrip("/")
        name = path.rpartition("/")[2]
        if not _is_folder(fs, info):
            yield below + name, info["name"]
        elif is_any_depth or (len(parts) > 1 and (fnmatchcase(name, parts[0]) or name == parts[0])):
            if is_any_depth and info["type"] != "directory" and not isinstance(fs, LocalFileSystem):
                raise SourceUnreadable(f"{path} is a link, which may lead back: ** does not follow it. Name it.")
            if _real_path(fs, path) not in above:
                yield from _files(fs, path, parts if is_any_depth else parts[1:], f"{below}{name}/", above)


def _real_path(fs: Any, path: str) -> str:
    return os.path.realpath(path) if isinstance(fs, LocalFileSystem) else path


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
