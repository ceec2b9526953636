"""Files that Airflow's ObjectStoragePath reaches: an object store in memory, attached as Airflow attaches one."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from fsspec.implementations.memory import MemoryFileSystem

from outbound_transfer.files.sources import Source, resolve_files
from outbound_transfer.protocol.errors import InvalidDelivery, SourceUnreadable

NAMES = ["a.csv", "b.csv", "c.txt", "sub/d.csv", "[ab].csv", "sp ace #1?%20.csv"]


class Store(MemoryFileSystem):
    """A bucket in memory that names its objects without a leading slash, as S3 and GCS do."""

    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False

    def glob(self, path: str, **kwargs: Any) -> Any:
        return {name.lstrip("/"): info for name, info in super().glob(path, **kwargs).items()}


@pytest.fixture(params=["memory://bucket", "s3://bucket", "s3://conn@bucket"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket's address, with and without a connection in it."""
    from airflow.sdk.io import store

    monkeypatch.setattr(store, "_STORE_CACHE", {})
    protocol = request.param.partition(":")[0]
    monkeypatch.setattr(Store, "store", {})
    files = Store() if protocol == "s3" else MemoryFileSystem()
    monkeypatch.setattr(type(files), "store", {})
    store.attach(protocol, conn_id="conn" if "@" in request.param else None, fs=files)
    for name in NAMES:
        files.pipe(f"/bucket/dir/{name}", name.encode())
    request.node.files = files
    # As this version of its library writes it: memory:///bucket before universal-pathlib 0.3.
    return str(ObjectStoragePath(request.param)) if protocol == "memory" else str(request.param)


@pytest.fixture
def files(request: pytest.FixtureRequest, bucket: str) -> MemoryFileSystem:
    """The file system behind the bucket."""
    found: MemoryFileSystem = request.node.files
    return found


def content(source: Source) -> bytes:
    return b"".join(source.upload().chunks())


@pytest.mark.parametrize("name", NAMES + ["ends in?", "ends in#", "sub/?#"])
def test_an_object_is_read_under_its_own_name(bucket: str, files: MemoryFileSystem, name: str) -> None:
    # What else the name could be read as: a pattern, or a URI with an empty query or fragment.
    for other in ("a.csv", "b.csv", "ends in", "sub/"):
        files.store.pop(f"/bucket/dir/{other}", None)
    files.pipe(f"/bucket/dir/{name}", name.encode())
    (source,) = resolve_files(f"{bucket}/dir/{name}")
    assert (source.name, source.size, source.location) == (name.split("/")[-1], len(name), f"{bucket}/dir/{name}")
    assert content(source) == name.encode()
    source.check_unchanged()


def test_a_remote_pattern_never_matches_local_files(bucket: str, tmp_path: Any) -> None:
    (tmp_path / "local.csv").write_text("")
    with pytest.raises(InvalidDelivery, match="no file matches"):
        resolve_files(f"{bucket}{tmp_path}/*.csv")


def test_a_bucket_cannot_be_a_pattern() -> None:
    from airflow.sdk.io import store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_STORE_CACHE", {})
        store.attach("s3", fs=Store())
        with pytest.raises(InvalidDelivery, match=r"only what follows the first /"):
            resolve_files("s3://buck*/a.csv")


def test_an_unknown_store_is_reported() -> None:
    with pytest.raises(SourceUnreadable, match="nonsuch"):
        resolve_files("nonsuch://bucket/a.csv")


def test_a_size_that_is_not_known_is_refused(
    bucket: str, files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(files), "info", lambda self, path, **kwargs: {"name": path, "type": "file", "size": None})
    with pytest.raises(SourceUnreadable, match="unknown size"):
        resolve_files(f"{bucket}/dir/a.csv")


@pytest.mark.parametrize("control", ["\t", "\r", "\n"])
def test_a_control_character_does_not_make_a_uri_mean_another_file(bucket: str, control: str) -> None:
    assert resolve_files(f"{bucket}/dir/a.csv")
    with pytest.raises(InvalidDelivery, match="control"):
        resolve_files(f"{bucket}/dir/{control}a.csv")
