"""The files that ``files`` names: by paths, URIs, patterns of either, and contents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from outbound_transfer.client import errors
from outbound_transfer.client.new_transfer import check_name
from outbound_transfer.files.content import Content, Spool
from outbound_transfer.files.sources import Source, local_source, object_source, readable, reject_duplicate_names

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

#: A path, a URI or a pattern of either; a mapping ``{"path": …, "name": …}`` that renames one file; or a mapping
#: ``{"name": …, "content": …}`` for a file that does not exist yet (see :class:`.Content`).
FileSpec: TypeAlias = "str | os.PathLike[str] | ObjectStoragePath | Mapping[str, Any]"

ParsedSpec: TypeAlias = dict[str, Any]  # with these keys

_KEYS: Final = ({"path"}, {"path", "name"}, {"name", "content"})

_PATH: Final = re.compile("[^\\0]+")
_MAGIC: Final = re.compile(r"[*?[]")
_FILE_URI: Final = re.compile("file:(//(localhost)?(?=/))?", re.IGNORECASE)
_ENCODED_WILDCARD: Final = re.compile("%(2A|3F|5B)", re.IGNORECASE)
_OBJECT_URI: Final = re.compile("(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
#: Control characters are refused, as the library drops them silently, and would read another file.
_STORE_AND_KEY: Final = re.compile(r"(?P<store>[^:]+://[^/*?[\t\r\n]*)(/(?P<key>[^\t\r\n]*))?")
#: The folders of a pattern before the first wildcard, and the rest.
_FIXED_AND_REST: Final = re.compile(r"((?:[^*?[/]*/)*)(.*)", re.DOTALL)

#: The provider's extras, and the schemes that each reads.
_EXTRAS: Final = {"s3": "s3 s3a", "gcs": "gs gcs", "azure": "abfs abfss adl msgd", "sftp": "sftp ssh"}

#: Says why a delivery without files fails.
NO_FILES: Final = (
    "files is empty: a transfer without files cannot be sent. If it comes from a task, check what it returned."
)


def parse_files(files: FileSpec | Iterable[FileSpec] | None) -> list[ParsedSpec]:
    """Convert ``files`` to a list of mappings. No file is read, and no content is produced.

    A set is sorted. A generator is consumed: continue with the result, which this function returns unchanged.

    :param files: one file or several; None and "" mean no file.
    :raises InvalidDelivery: an element is not a file, or the service would change a name.
    """
    if isinstance(files, str | bytes | bytearray | Mapping) or not isinstance(files, Iterable):
        files = [files] if files else []
    return list(map(_parse, sorted(files, key=str) if isinstance(files, Set) else files))


def _parse(spec: Any) -> ParsedSpec:
    if not isinstance(spec, Mapping):
        return {"path": _path_text(spec)}
    if set(spec) not in _KEYS:
        given = ", ".join(map("{!r:.50}".format, sorted(spec, key=str)[:5]))
        raise errors.InvalidDelivery(
            f'a file given as a mapping needs "path" and may have "name", or needs "name" and "content"; not {given}'
        )
    name = spec.get("name", "the file's own")
    if not isinstance(name, str | None):
        raise errors.InvalidDelivery(f"the name of a file must be a string, not {type(name).__name__}")
    if not name:
        raise errors.InvalidDelivery(
            "the name of a file must not be empty; check its template. A file with a path keeps its own "
            'name if "name" is left out'
        )
    check_name(name)
    if "content" in spec:
        return {"name": name, "content": Content.of(name, spec["content"])}
    return {**spec, "path": _path_text(spec["path"])}


def _path_text(given: Any) -> str:
    path = given
    if hasattr(given, "protocol"):  # an ObjectStoragePath, whose text is a URI, in which "%41" would be read as "A"
        path = given.path if given.protocol in ("", "file", "local") else str(given)
    elif isinstance(given, os.PathLike):
        path = os.fspath(given)
    if isinstance(path, str) and _PATH.fullmatch(path):
        return path
    # What was given may be content, which no error quotes.
    kind = type(getattr(given, "value", given)).__name__
    shown = {"str": "empty text, or text with a null character"}.get(kind, kind)
    raise errors.InvalidDelivery(f"a file must be a path, a URI or a mapping, not {shown}")


def resolve_files(
    specs: Sequence[ParsedSpec], spool: Spool, missing: list[errors.OutboundTransferError]
) -> list[Source]:
    """Find every file that was named, and produce every content. No file is opened.

    :param missing: gets the errors of files that do not exist and of patterns that match nothing.
    :raises InvalidDelivery: no file is named, a string is both a name and a pattern, or two files share a name.
    :raises SourceUnreadable: a file cannot be read or is not a file, or a folder of a pattern could not be listed.
    """
    sources: list[Source] = []
    for spec in specs:
        try:
            sources += _resolve(spec, spool)
        except (errors.SourceMissing, errors.NothingMatches) as error:
            missing.append(error)
    if not sources and not missing:
        raise errors.InvalidDelivery(NO_FILES)
    reject_duplicate_names(sources)
    return sources


def _resolve(spec: ParsedSpec, spool: Spool) -> list[Source]:
    name = spec.get("name", "")
    if "content" in spec:
        return [spool.hold(name, partial(spec["content"].write_to, name=name))]
    path = spec["path"]
    sources = _find_objects(path, name) if _OBJECT_URI.match(path) else _find_local(path, name)
    if name and len(sources) > 1:
        raise errors.InvalidDelivery(f"{path!r} matches {len(sources)} files, which cannot all be named {name!r}")
    return sources


def _find_local(given: str, name: str) -> list[Source]:
    path, is_pattern = given, _MAGIC.search(given)
    if uri := _FILE_URI.match(given):
        path = given[uri.end() :]
        path = unquote(_ENCODED_WILDCARD.sub(r"[%\1]", path) if is_pattern else path)
    if not is_pattern:
        return [local_source(path, name)]
    absolute = os.path.join(Path.cwd(), path)  # noqa: PTH118  # Path would resolve "//" and "."
    return [local_source(f"/{file}", name) for file in _match(LocalFileSystem(), "", absolute[1:], given)]


def _find_objects(uri: str, name: str) -> list[Source]:
    from airflow.sdk import ObjectStoragePath

    parts = _STORE_AND_KEY.fullmatch(uri)
    if not parts:
        raise errors.InvalidDelivery(
            f"{uri!r}: only what follows the first / may be a pattern, and a URI must not contain control characters"
        )
    key = parts["key"] or ""
    with readable(uri):
        # Not built from the whole URI, which would lose an empty query or fragment: "a?" would mean "a".
        root = ObjectStoragePath(f"{parts['store']}/")
        fs = _filesystem_of(root)
        fs.invalidate_cache()
        keys = _match(fs, root.path.rstrip("/"), key, uri) if _MAGIC.search(key) else [key]
        return [object_source(root / each, name) for each in keys]


def _filesystem_of(path: ObjectStoragePath) -> Any:
    """Return the file system of a path, as Airflow attaches it; a ModuleNotFoundError says what to install."""
    try:
        return path.fs
    except OSError as error:
        # Its text may quote a private key of the connection's extra, which the library of SFTP opens as a file.
        raise ConnectionError(f"the connection failed: {error.strerror or error}") from None
    except ValueError:
        from airflow.sdk.io import has_fs

        if has_fs(path.protocol):
            raise
        extras = [extra for extra, schemes in _EXTRAS.items() if path.protocol in schemes.split()]
        install = [f"pip install 'airflow-provider-outbound-transfer[{extra}]'" for extra in extras]
        advice = install[0] if install else "install the Airflow provider for it"
        raise ModuleNotFoundError(f"no installed provider reads {path.protocol}://: {advice}") from None


def _match(fs: Any, folder: str, pattern: str, shown: str) -> list[str]:
    """Return the path below ``folder`` of each file that matches, sorted. A broken link counts as a file.

    Not ``fs.glob``, which silently leaves out each folder below the first that it cannot list. On this machine,
    wildcards skip names that begin with a dot.
    """
    above, below = _FIXED_AND_REST.fullmatch(pattern).groups()  # type: ignore[union-attr]  # any text matches
    try:
        is_match = re.compile(glob_translate(below)).match
    except ValueError as error:
        raise errors.InvalidDelivery(f"{shown!r} is not a pattern: {error}") from None
    hides = isinstance(fs, LocalFileSystem) and "/." not in f"/{below}"
    found = sorted(
        path
        for path in _list_files(fs, f"{folder}/{above}".rstrip("/") or "/", below.split("/"), shown)
        if path == below or (is_match(path) and not (hides and "/." in f"/{path}"))
    )
    fs.invalidate_cache()  # otherwise it returns the listed state of a file even after the file has changed
    if below in found and len(found) > 1:
        raise errors.InvalidDelivery(
            f"{shown!r} is the name of an existing file and a pattern that matches others, such as "
            f"{min(set(found) - {below})!r}. For that file alone, write each of * ? [ as [*] [?] [[]; for the "
            "pattern, rename the file."
        )
    if not found:
        raise errors.NothingMatches(
            f"no file matches {shown!r}. Check the folder on this worker, the pattern, and the task that should have "
            "written the files."
        )
    return [above + path for path in found]


def _list_files(fs: Any, root: str, parts: Sequence[str], shown: str) -> Iterator[str]:
    """Yield the path below ``root`` of each file in the folders that can hold a match of the pattern's parts."""

    def walk(listed: Iterable[dict[str, Any]], parts: Sequence[str], below: str, above: Set[str]) -> Iterator[str]:
        # above: the real paths of the folders down to this one, since a link may lead back
        rest = parts if parts[0] == "**" else parts[1:]
        for info in listed:
            path = info["name"].rstrip("/")
            name = path.rpartition("/")[2]
            if not _is_folder(fs, info):
                yield below + name
            elif rest and (fnmatchcase(name, parts[0]) or name == parts[0]):
                if rest is parts and info["type"] == "link":  # on a server, which does not say where it leads
                    raise errors.SourceUnreadable(
                        f"{path} is a link, which may lead back: ** does not follow it. Name it in the pattern."
                    )
                if (real_path := _real_path(fs, path)) not in above:
                    yield from walk(_list(fs, path, shown), rest, f"{below}{name}/", above | {real_path})

    try:
        listed = _list(fs, root, shown)
    except errors.SourceMissing:
        return iter(())
    return walk(listed, parts, "", {_real_path(fs, root)})


def _list(fs: Any, folder: str, shown: str) -> list[dict[str, Any]]:
    """Return a folder's contents as fsspec describes them, without the folder's own entry."""
    with readable(f"{shown!r}: {folder}"):
        listed = fs.ls(folder, detail=True)
        if any(info["type"] == "file" and info["name"].lstrip("/") == folder.lstrip("/") for info in listed):
            # adlfs lists only this object, and leaves out what the folder of the same name holds.
            raise NotADirectoryError(f"{folder} is a file")
        return [info for info in listed if info["name"].strip("/") != folder.strip("/")]


def _is_folder(fs: Any, info: dict[str, Any]) -> bool:
    if info["type"] in ("file", "directory"):
        return bool(info["type"] == "directory")
    try:
        with readable(info["name"]):
            return bool(fs.info(info["name"])["type"] == "directory")  # follows the link
    except errors.SourceMissing:
        return False


def _real_path(fs: Any, path: str) -> str:
    return os.path.realpath(path) if isinstance(fs, LocalFileSystem) else path
