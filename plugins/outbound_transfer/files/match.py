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
from outbound_transfer.files.sources import encodable, readable

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
    root, search = f"{folder}/{above}".rstrip("/") or "/", _Search(fs, shown)
    fs.invalidate_cache()
    try:
        matches = re.compile(glob_translate(below)).match
        listed = search.list(root)
    except ValueError as error:
        raise InvalidDelivery(f"{shown!r} is not a pattern: {error}") from None
    except SourceMissing as error:
        raise NothingMatches(f"no file matches {shown!r}: there is no folder {encodable(root)}") from error
    files = search.files(listed, parts[fixed:], "", (search.real_path(root),))
    hides = search.is_local and not _is_hidden(below)
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


class _Search:
    """Lists the folders of one file system.

    :param shown: the pattern, for messages.
    """

    def __init__(self, fs: Any, shown: str) -> None:
        self.fs, self.shown = fs, shown
        self.is_local = isinstance(fs, LocalFileSystem)

    def list(self, folder: str) -> list[dict[str, Any]]:
        """Return what a folder holds, as fsspec describes it; not the folder's own entry."""
        with readable(f"{self.shown!r}: {folder}"):
            listed = self.fs.ls(folder, detail=True)
            own = [info for info in listed if info["name"].strip("/") == folder.strip("/")]
            if any(info["type"] == "file" and not info["name"].endswith("/") for info in own):
                # adlfs lists only this object, and leaves out what the folder of the same name holds.
                raise NotADirectoryError(f"{folder} is a file")
            return [info for info in listed if info not in own]

    def files(
        self, listed: Sequence[dict[str, Any]], parts: Sequence[str], below: str, above: tuple[str, ...]
    ) -> Iterator[str]:
        """Yield the path below the first folder of each file in a folder, and in those that can hold a match.

        :param listed: what the folder holds.
        :param parts: of the pattern, from the one that the names in this folder must match.
        :param below: the folder's path below the first folder.
        :param above: the real paths of this folder and those above it, since a link may lead back.
        """
        is_any_depth = parts[0] == "**"
        rest = parts if is_any_depth else parts[1:]
        for info in listed:
            path = info["name"].rstrip("/")
            name = path.rpartition("/")[2]
            if not self._is_folder(info):
                yield below + name
            elif rest and (fnmatchcase(name, parts[0]) or name == parts[0]):
                if is_any_depth and info["type"] == "link":  # of a server, which does not say where it leads
                    raise SourceUnreadable(
                        encodable(f"{path} is a link, which may lead back: ** does not follow it. Name it.")
                    )
                if (real_path := self.real_path(path)) not in above:
                    yield from self.files(self.list(path), rest, f"{below}{name}/", (*above, real_path))

    def real_path(self, path: str) -> str:
        """Return where a path leads on this machine."""
        return os.path.realpath(path) if self.is_local else path

    def _is_folder(self, info: dict[str, Any]) -> bool:
        if info["type"] in ("file", "directory"):
            return bool(info["type"] == "directory")
        try:
            with readable(f"{self.shown!r}: {info['name']}"):
                return bool(self.fs.info(info["name"])["type"] == "directory")  # follows the link
        except SourceMissing:
            return False
