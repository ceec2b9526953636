"""Objects in a folder of any file system of Airflow, each created once; local files are never seen half written."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from outbound_transfer.airflow_compat.object_storage import filesystem_of
from outbound_transfer.lake.object_errors import UnreliableStorage
from outbound_transfer.warehouse.errors import InvalidName

#: Where local files are written before they get their name; loaders skip folders with an underscore.
_TEMPORARY: Final = "_tmp"

#: Seconds after which such a file is one of a process that was killed.
_TEMPORARY_AGE: Final = 3_600.0


class ObjectStore:
    """A folder of objects.

    :param fs: a file system of fsspec.
    :param root: the folder, as ``fs`` names it.
    """

    def __init__(self, fs: Any, root: str) -> None:
        self.fs, self.root = fs, root

    def path(self, name: str) -> str:
        """Return an object's path, as the file system and errors name it."""
        return f"{self.root}/{name}"

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """Return an object's bytes from ``start`` to ``stop``; None if there is no such object.

        :param start: if it is negative, the last bytes are returned.
        """
        path = self.path(name)
        try:
            return self._read(path, start, stop)
        except FileNotFoundError:
            return None
        except PermissionError:
            raise
        except OSError:
            if start is None:
                raise
        with suppress(FileNotFoundError):  # S3 refuses a range of an object that is empty
            return self._read(path, None, None)
        return None

    def _read(self, path: str, start: int | None, stop: int | None) -> bytes:
        return bytes(self.fs.cat_file(path, start=start, end=stop))

    def create(self, name: str, content: bytes) -> None:
        """Create an object, whole or not at all.

        :raises FileExistsError: there is an object of this name. It is left as it is.
        """
        self.fs.pipe_file(self.path(name), content, mode="create")

    def replace(self, name: str, content: bytes) -> None:
        """Create an object, or replace it."""
        self.fs.pipe_file(self.path(name), content)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        with suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    def list_names(self, folder: str = "") -> list[str]:
        """Return the names of what is in a folder, sorted, those of folders with a slash after them.

        None are returned if there is no such folder.
        """
        path = self.path(folder).rstrip("/")
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return sorted(_entry_name(each) for each in found)

    def clean_up(self) -> None:
        """Delete what processes that were killed left behind."""

    def check_create(self) -> None:
        """Check that the storage refuses to create an object that exists.

        :raises UnreliableStorage: it overwrites the object.
        """
        name = f"_probe/{uuid.uuid4().hex}"
        self.create(name, b"first")
        try:
            is_refused = self._refuses(name)
            if not is_refused or self.read(name) != b"first":
                raise UnreliableStorage(
                    f"the storage of {self.root} overwrites an object that is to be created only if it is not there, "
                    "so two readers of the feed could not be kept apart. Use S3 (or what supports If-None-Match), "
                    "Google Cloud Storage, Azure Blob Storage, or a local file system with hard links"
                )
        finally:
            self.delete(name)

    def _refuses(self, name: str) -> bool:
        try:
            self.create(name, b"second")
        except FileExistsError:
            return True
        return False


def _entry_name(entry: dict[str, Any]) -> str:
    name = str(entry["name"]).rstrip("/").rpartition("/")[2]
    return f"{name}/" if entry["type"] == "directory" else name


class LocalStore(ObjectStore):
    """A folder of local files. A file gets its name when it is complete, by a hard link, which replaces nothing."""

    def create(self, name: str, content: bytes) -> None:
        temporary, path = self._write(content), self.path(name)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError as error:
            raise UnreliableStorage(
                f"{self.root}: a file cannot be given its name by a hard link ({error.strerror}), so that a reader "
                "could see it half written. Use a file system with hard links"
            ) from error
        finally:
            os.unlink(temporary)  # noqa: PTH108  # tests count the calls of `os`
        _sync_folder(Path(path).parent)

    def replace(self, name: str, content: bytes) -> None:
        temporary, path = self._write(content), Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, path)  # noqa: PTH105

    def clean_up(self) -> None:
        oldest = time.time() - _TEMPORARY_AGE
        for file in Path(self.root, _TEMPORARY).glob("*"):
            with suppress(FileNotFoundError):  # its writer has just finished
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _write(self, content: bytes) -> str:
        folder = Path(self.root, _TEMPORARY)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / uuid.uuid4().hex
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = error.filename or str(temporary)  # of a full disk, the error names no file
            temporary.unlink(missing_ok=True)
            raise
        return str(temporary)


def _sync_folder(folder: Path) -> None:
    """Write the folder's new entry to the disk: after a power failure, the page is there if its hint is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(path: str) -> ObjectStore:
    """Return the folder at a path of Airflow's object storage.

    :param path: for example ``s3://conn@bucket/folder``, or an absolute local path.
    :raises InvalidName: it is not such a path.
    """
    from airflow.sdk import ObjectStoragePath

    _check_path(path)
    try:
        root = ObjectStoragePath(path.rstrip("/"))
        fs = filesystem_of(root)
    except (ValueError, ImportError) as error:
        raise InvalidName(f"the path is not one of Airflow's object storage: {error}") from None
    store = LocalStore if "file" in _protocols(fs) else ObjectStore
    return store(fs, root.path.rstrip("/"))


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _check_path(path: str) -> None:
    """Check that a path names one folder, in the same way for every loader.

    :raises InvalidName: it does not.
    """
    _, scheme, rest = path.rpartition("://")
    parts = rest.strip("/").split("/")
    if not scheme and not path.startswith("/"):
        raise InvalidName("the path must be absolute, or begin with a scheme, such as s3://conn@bucket/folder")
    if any(unquote(part) in ("", ".", "..") for part in parts):
        raise InvalidName("the path must name a folder, and none of its parts may be empty, '.' or '..'")
    if any(not char.isprintable() or char in "*?[]{}#%\\" for char in rest):
        raise InvalidName("the path has a character that loaders take for a pattern or an escape: *?[]{}#% or a \\")
