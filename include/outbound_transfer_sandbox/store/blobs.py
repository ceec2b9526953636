"""The bytes of attached files: one file on disk each, named by its id and never by the client's name."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


class Upload:
    """A file that is being received. `commit` stores it; `discard` removes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[os.write(self._fd, unwritten) :]

    def commit(self, target: Path) -> None:
        self._close()
        self._path.rename(target)

    def discard(self) -> None:
        """Remove what was written. Does nothing after `commit`."""
        if self._fd >= 0:
            self._close()
            self._path.unlink()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class BlobStore:
    """Stores files."""

    def __init__(self, directory: Path) -> None:
        self._files = directory / "files"
        self._partial = directory / "partial"
        for path in (self._files, self._partial):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove_orphans(self, known: set[str]) -> None:
        """Remove what a killed process left behind: partial uploads and files whose id is not `known`."""
        for path in self._partial.iterdir():
            path.unlink()
        for path in self._files.iterdir():
            if path.name not in known:
                path.unlink()

    def start_upload(self) -> Upload:
        return Upload(self._partial / secrets.token_hex(16))

    def commit(self, upload: Upload, file_id: str) -> None:
        upload.commit(self.path(file_id))

    def path(self, file_id: str) -> Path:
        return self._files / file_id

    def remove(self, file_ids: Iterable[str]) -> None:
        for path in map(self.path, file_ids):
            path.unlink()
