"""The same files as different kinds of input: by their paths, by their content, in one archive."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

from outbound_transfer.delivery.content import ContentWriter
from outbound_transfer_sandbox.testing import Sandbox

ARCHIVE = "all.zip"


def as_paths(paths: Sequence[Path]) -> dict[str, Any]:
    return {"files": [str(path) for path in paths]}


def as_contents(paths: Sequence[Path]) -> dict[str, Any]:
    """Each in another form, which reads the file when a try needs its content."""
    forms: list[Callable[[Path], Any]] = [
        lambda path: partial(path.open, "rb"),
        lambda path: path.read_bytes,
        lambda path: ContentWriter(partial(_copy, path)),
    ]
    return {
        "files": [{"name": path.name, "content": forms[number % len(forms)](path)} for number, path in enumerate(paths)]
    }


def as_archive(paths: Sequence[Path]) -> dict[str, Any]:
    """Paths and contents alternately, in one ZIP file."""
    files = [as_contents([path])["files"][0] if number % 2 else str(path) for number, path in enumerate(paths)]
    return {"files": files, "archive": ARCHIVE}


#: How a delivery may be given its files, by name.
INPUTS: dict[str, Callable[[Sequence[Path]], dict[str, Any]]] = {
    "paths": as_paths,
    "contents": as_contents,
    "archive": as_archive,
}


def stored_digests(sandbox: Sandbox, transfer_id: str, files: Sequence[dict[str, Any]]) -> dict[str, str]:
    """SHA-256 by name of the files of a transfer, or of those in its archive."""
    digests = {}
    for file in files:
        if file["name"] != ARCHIVE:
            digests[file["name"]] = sandbox.stored_file(transfer_id, file["id"])["sha256"]
            continue
        with ZipFile(io.BytesIO(sandbox.stored_content(transfer_id, file["id"]))) as archive:
            digests |= {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    return digests


def _copy(path: Path, file: BinaryIO) -> None:
    with path.open("rb") as opened:
        shutil.copyfileobj(opened, file)
