"""The file systems of Airflow's object storage, and what to install for one that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_PACKAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("s3", "s3a"), "airflow-provider-outbound-transfer[s3]"),
    **dict.fromkeys(("gs", "gcs"), "airflow-provider-outbound-transfer[gcs]"),
    **dict.fromkeys(("abfs", "abfss", "adl"), "apache-airflow-providers-microsoft-azure"),
}


def filesystem_of(path: ObjectStoragePath) -> Any:
    """Return the file system of a path, as Airflow attaches it.

    :raises ModuleNotFoundError: no provider that is installed has one for the path's scheme; the text says which does.
    """
    try:
        return path.fs
    except ValueError:
        if _has_filesystem(path.protocol):
            raise
        package = _PACKAGES.get(path.protocol)
        advice = f"pip install '{package}'" if package else "install the Airflow provider that does"
        # Airflow's own text only has the scheme.
        raise ModuleNotFoundError(f"no provider that is installed reads {path.protocol}://: {advice}") from None


def _has_filesystem(scheme: str) -> bool:
    try:
        from airflow.sdk.io import has_fs
    except ImportError:  # before 3.1
        from airflow.io import has_fs  # type: ignore[attr-defined,no-redef]
    return bool(has_fs(scheme))
