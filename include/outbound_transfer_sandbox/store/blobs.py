"""The bytes of files, one file on disk each, named by the file's id. No name that a client gave reaches the disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


class Upload:
    """Bytes on their way in. They become a blob with `keep`, or nothing at all with `discard`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def keep(self, target: Path) -> None:
        self._close()
        self._path.rename(target)

    def discard(self) -> None:
        """Removes what was written; does nothing after `keep`."""
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Blobs:
    def __init__(self, directory: Path) -> None:
        self._kept = directory / "files"
        self._partial = directory / "partial"
        for path in (self._kept, self._partial):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def sweep(self, known: set[str]) -> None:
        """Removes what a killed process left: partial uploads and blobs without a record."""
        for path in self._partial.iterdir():
            path.unlink()
        for path in self._kept.iterdir():
            if path.name not in known:
                path.unlink()

    def begin(self) -> Upload:
        return Upload(self._partial / secrets.token_hex(16))

    def keep(self, upload: Upload, file_id: str) -> None:
        upload.keep(self.path(file_id))

    def path(self, file_id: str) -> Path:
        return self._kept / file_id

    def remove(self, file_ids: Iterable[str]) -> None:
        for file_id in file_ids:
            self.path(file_id).unlink(missing_ok=True)
