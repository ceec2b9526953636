"""The bytes of files, one file on disk each, named by the file's id. No name that a client gave reaches the disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

# The smallest piece that file systems give: a million files of one byte take a million of these.
_BLOCK = 4096


def on_disk(size: int) -> int:
    """The space that a file of `size` bytes takes, an empty one too, which has a name and a record."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


class Upload:
    """Bytes on their way in. They become a blob with `keep`, or nothing at all with `discard`."""

    def __init__(self, path: Path, release: Callable[[], None]) -> None:
        """`release` is called once when it becomes nothing."""
        self._path = path
        self._release = release
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def keep(self, target: Path) -> None:
        self._close()
        self._path.rename(target)

    def discard(self) -> None:
        """Removes what was written; does nothing after `keep`."""
        if self._fd >= 0:
            self._close()
            self._path.unlink()
            self._release()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Blobs:
    """`used` is the space of all blobs and of the uploads that have begun, as declared (see `on_disk`)."""

    def __init__(self, directory: Path) -> None:
        self.used = 0
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
            else:
                self.used += on_disk(path.stat().st_size)

    def begin(self, size: int) -> Upload:
        """An upload of `size` bytes."""
        upload = Upload(self._partial / secrets.token_hex(16), lambda: self._free(size))
        self.used += on_disk(size)
        return upload

    def _free(self, size: int) -> None:
        self.used -= on_disk(size)

    def keep(self, upload: Upload, file_id: str) -> None:
        upload.keep(self.path(file_id))

    def path(self, file_id: str) -> Path:
        return self._kept / file_id

    def remove(self, file_ids: Iterable[str]) -> None:
        for path in map(self.path, file_ids):
            self._free(path.stat().st_size)
            path.unlink()
