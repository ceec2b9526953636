"""The file systems of Airflow's object storage, and what to install for one that is missing."""

from __future__ import annotations

from collections.abc import Mapping
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
