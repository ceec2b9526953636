"""What ``files`` names: paths, URIs, patterns of either, and contents; and the files that they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unicodedata import normalize
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem

from outbound_transfer.airflow_compat.object_storage import filesystem_of
from outbound_transfer.client.content_disposition import check_name
from outbound_transfer.client.errors import InvalidDelivery, NothingMatches, OutboundTransferError, SourceMissing
from outbound_transfer.client.wording import hint_at_pair
from outbound_transfer.files.content import Content
from outbound_transfer.files.match import has_magic, match
from outbound_transfer.files.sources import Source, local_source, object_source, readable

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    from outbound_transfer.files.content import Spool

#: A path, a URI or a pattern of either; a mapping ``{"path": …, "name": …}`` that renames one file; or a mapping
#: ``{"name": …, "content": …}`` for a file that exists nowhere (see :class:`.Content`).
FileSpec: TypeAlias = "str | os.PathLike[str] | ObjectStoragePath | Mapping[str, Any]"

#: A file as a mapping with ``path`` and perhaps ``name``, or with ``name`` and ``content``.
ParsedSpec: TypeAlias = dict[str, Any]

_KEYS: Final = ({"path"}, {"path", "name"}, {"name", "content"})

_PATH: Final = re.compile("[^\\0]+")
_FILE_URI: Final = re.compile("file:(//(localhost)?(?=/))?", re.IGNORECASE)
_ENCODED_WILDCARD: Final = re.compile("%(2A|3F|5B)", re.IGNORECASE)
_OBJECT_URI: Final = re.compile("(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
#: Control characters are refused, as the library drops them silently, and would read another file.
_STORE_AND_KEY: Final = re.compile(r"(?P<store>[^:]+://[^/*?[\t\r\n]*)(/(?P<key>[^\t\r\n]*))?")

#: Says why a delivery without files fails.
NO_FILES: Final = (
    "files is empty: a transfer without files cannot be sent. If it comes from a task, check what that returned."
)


def parse_files(files: FileSpec | Iterable[FileSpec] | None) -> list[ParsedSpec]:
    """Convert ``files`` to a list of mappings. No file is read, no content produced.

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
        raise InvalidDelivery(
            f'a file given as a mapping needs "path", and may have "name"; or it has "name" and "content"; not {given}'
        )
    name = spec.get("name", "the file's own")
    if not isinstance(name, str | None):
        raise InvalidDelivery(f"the name of a file is text, not {type(name).__name__}")
    if not name:
        raise InvalidDelivery(
            "the name of a file must not be empty; a template without a value is. A file with a path keeps its own "
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
    raise InvalidDelivery(f"a file is a path, a URI or a mapping, not {shown}{hint_at_pair(given)}")


def resolve_files(specs: Sequence[ParsedSpec], spool: Spool, missing: list[OutboundTransferError]) -> list[Source]:
    """Find every file that was named, and produce every content. No file is opened.

    :param specs: of :func:`parse_files`.
    :param spool: holds the contents, and must stay open for as long as the sources are read.
    :param missing: takes the errors of files that are not there and of patterns that match nothing.
    :raises InvalidDelivery: no file is named, a text may be a name or a pattern, a content is none, or two files have
        the same name.
    :raises SourceUnreadable: a file cannot be read or is no file, or a folder of a pattern could not be listed.
    """
    sources: list[Source] = []
    for spec in specs:
        try:
            sources += _resolve(spec, spool)
        except (SourceMissing, NothingMatches) as error:
            missing.append(error)
    if not sources and not missing:
        raise InvalidDelivery(NO_FILES)
    reject_duplicate_names(sources)
    return sources


def _resolve(spec: ParsedSpec, spool: Spool) -> list[Source]:
    name = spec.get("name", "")
    if "content" in spec:
        return [spool.hold(name, partial(spec["content"].write_to, name=name))]
    path = spec["path"]
    sources = _find_objects(path, name) if _OBJECT_URI.match(path) else _find_local(path, name)
    if name and len(sources) > 1:
        raise InvalidDelivery(f"{path!r} matches {len(sources)} files, which cannot all be named {name!r}")
    return sources


def _find_local(given: str, name: str) -> list[Source]:
    path, is_pattern = given, has_magic(given)
    if uri := _FILE_URI.match(given):
        path = given[uri.end() :]
        path = unquote(_ENCODED_WILDCARD.sub(r"[%\1]", path) if is_pattern else path)
    if not is_pattern:
        return [local_source(path, name)]
    absolute = os.path.join(Path.cwd(), path)  # noqa: PTH118  # Path would resolve "//" and "."
    return [local_source(f"/{file}", name) for file in match(LocalFileSystem(), "", absolute[1:], given)]


def _find_objects(uri: str, name: str) -> list[Source]:
    from airflow.sdk import ObjectStoragePath

    parts = _STORE_AND_KEY.fullmatch(uri)
    if not parts:
        raise InvalidDelivery(
            f"{uri!r}: only what follows the first / may be a pattern, and a URI must not contain control characters"
        )
    key = parts["key"] or ""
    with readable(uri):
        # Not built from the whole URI, which would lose an empty query or fragment: "a?" would mean "a".
        root = ObjectStoragePath(f"{parts['store']}/")
        fs = filesystem_of(root)
        fs.invalidate_cache()
        keys = match(fs, root.path.rstrip("/"), key, uri) if has_magic(key) else [key]
        return [object_source(root / each, name) for each in keys]


def reject_duplicate_names(sources: Sequence[Source]) -> None:
    """:raises InvalidDelivery: two files have one name."""
    # The service keeps the first file of a name and responds 200 to the second (service-api.md, R32). Two forms of one
    # accent look the same, and are one name on macOS.
    by_name: dict[str, Source] = {}
    for source in sources:
        if (other := by_name.setdefault(normalize("NFC", source.name), source)) is not source:
            raise InvalidDelivery(
                f"two files have one name, {source.name!r}, and the service would keep only the first: {other}; "
                f'{source}. Set "name" on one of them; if a path and a pattern match the same file, list it only once.'
            )
