"""Objects in a folder of any file system of Airflow, each created once; local files are never seen half written."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from outbound_transfer.airflow_compat.object_storage import filesystem_of
from outbound_transfer.warehouse.errors import InvalidName, UnsupportedWarehouse
from outbound_transfer.warehouse.naming import check_path

#: Where local files are written before they get their name; loaders skip folders with an underscore.
_TEMPORARY: Final = "_tmp"


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

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None if there is no such object."""
        try:
            return bytes(self.fs.cat_file(self.path(name)))
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> None:
        """Create an object, whole or not at all.

        :raises FileExistsError: there is an object of this name. It is left as it is.
        """
        self.fs.pipe_file(self.path(name), content, mode="create")

    def replace(self, name: str, content: bytes) -> None:
        """Replace an object, whole or not at all."""
        self.fs.pipe_file(self.path(name), content)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        with suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    def list_names(self, folder: str = "") -> list[str]:
        """Return the names of what is in a folder, sorted; none if there is no such folder."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.path(folder).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def check_create(self) -> None:
        """Check that the storage refuses to create an object that exists.

        :raises UnsupportedWarehouse: it overwrites the object.
        """
        name = f"_probe/{uuid.uuid4().hex}"
        self.create(name, b"first")
        try:
            self.create(name, b"second")
        except FileExistsError:
            return
        finally:
            self.delete(name)
        raise UnsupportedWarehouse(
            f"the storage of {self.root} overwrites an object that is to be created only if it is not there, so two "
            "readers of the feed could not be kept apart. Use S3 (or what supports If-None-Match), Google Cloud "
            "Storage, Azure Blob Storage, or a local file system with hard links"
        )


class LocalStore(ObjectStore):
    """A folder of local files. A file gets its name when it is complete, by a hard link, which replaces nothing."""

    def create(self, name: str, content: bytes) -> None:
        self._put(name, content, os.link)

    def replace(self, name: str, content: bytes) -> None:
        self._put(name, content, os.replace)

    def _put(self, name: str, content: bytes, publish: Callable[[Path, Path], None]) -> None:
        path, temporary = Path(self.path(name)), Path(self.root, _TEMPORARY, uuid.uuid4().hex)
        for folder in (path.parent, temporary.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def open_store(path: str) -> ObjectStore:
    """Return the folder at a path of Airflow's object storage.

    :param path: for example ``s3://conn@bucket/folder``, or an absolute local path.
    :raises InvalidName: it is not such a path.
    """
    from airflow.sdk import ObjectStoragePath
    from fsspec.implementations.local import LocalFileSystem

    check_path(path)
    try:
        root = ObjectStoragePath(path.rstrip("/"))
        fs = filesystem_of(root)
    except (ValueError, ImportError) as error:
        raise InvalidName(f"the path is not one of Airflow's object storage: {error}") from None
    store = LocalStore if isinstance(fs, LocalFileSystem) else ObjectStore
    return store(fs, root.path.rstrip("/"))
