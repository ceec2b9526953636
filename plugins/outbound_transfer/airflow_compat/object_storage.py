"""The file systems of Airflow's object storage: what to install for one that is missing, and writing to them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_PACKAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("s3", "s3a"), "airflow-provider-outbound-transfer[s3]"),
    **dict.fromkeys(("gs", "gcs"), "airflow-provider-outbound-transfer[gcs]"),
    **dict.fromkeys(("abfs", "abfss", "adl", "msgd"), "airflow-provider-outbound-transfer[azure]"),
    **dict.fromkeys(("sftp", "ssh"), "airflow-provider-outbound-transfer[sftp]"),
}


def filesystem_of(path: ObjectStoragePath) -> Any:
    """Return the file system of a path, as Airflow attaches it.

    :raises ModuleNotFoundError: no provider that is installed has one for the path's scheme; the text says which does.
    :raises ConnectionError: the server cannot be reached, or refuses the login.
    """
    try:
        return path.fs
    except OSError as error:
        # Its text may quote a private key of the connection's extra, which the library of SFTP opens as a file.
        raise ConnectionError(f"the connection failed: {error.strerror or error}") from None
    except ValueError:
        from airflow.sdk.io import has_fs

        if has_fs(path.protocol):
            raise
        package = _PACKAGES.get(path.protocol)
        advice = f"pip install '{package}'" if package else "install the Airflow provider that does"
        # Airflow's own text only has the scheme.
        raise ModuleNotFoundError(f"no provider that is installed reads {path.protocol}://: {advice}") from None


def write_whole(path: str, content: bytes) -> None:
    """Write a file or an object, so that nobody reads a part of it: they read the one before, or this one.

    An object store shows an object when all of it is there. A local file, and one on a server of SFTP, gets its name
    then; folders that are missing are created.

    :param path: a URI of Airflow's object storage, or an absolute path.
    :raises Exception: what the library of the store raises.
    """
    from airflow.sdk import ObjectStoragePath
    from fsspec.implementations.local import LocalFileSystem

    target = ObjectStoragePath(path)
    fs = filesystem_of(target)
    if not (isinstance(fs, LocalFileSystem) or _is_sftp(fs)):
        fs.pipe_file(target.path, content)
        return
    folder = target.path.rpartition("/")[0]
    temporary = f"{folder}/.{uuid.uuid4().hex}"
    fs.makedirs(folder, exist_ok=True)
    try:
        fs.pipe_file(temporary, content)
        fs.mv(temporary, target.path)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise


def _is_sftp(filesystem: Any) -> bool:
    return hasattr(getattr(filesystem, "client", None), "start_sftp_client")
