"""A folder of each remote store, through Airflow's object storage and a connection of Airflow."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.sdk.io import store

from support.azurite import Container, running_azurite
from support.azurite import connection_json as azure_connection
from support.object_storage import Bucket, running_s3
from support.object_storage import connection_json as s3_connection
from support.remote_files import delivery_maker
from support.sftp_server import HOME, SftpServer, running_sftp
from support.tasks import FakeTaskInstance

_numbers = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as address:
        yield address


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", s3_connection(s3))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    bucket = Bucket(s3, f"bucket-{next(_numbers)}")
    yield bucket
    bucket.close()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_azurite(tmp_path_factory.mktemp("azurite")) as address:
        yield address


@pytest.fixture
def container(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    from adlfs import AzureBlobFileSystem

    monkeypatch.setenv("AIRFLOW_CONN_WASB_DEFAULT", azure_connection(azurite))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    yield Container(azurite, f"container-{next(_numbers)}")
    AzureBlobFileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def sftp() -> Iterator[SftpServer]:
    with running_sftp() as server:
        yield server


@pytest.fixture
def server(sftp: SftpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SftpServer]:
    from sshfs import SSHFileSystem

    monkeypatch.setenv("AIRFLOW_CONN_SFTP_DEFAULT", sftp.connection_json())
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    yield sftp
    SSHFileSystem.clear_instance_cache()
    for folder in sftp.root.iterdir():
        if folder.name != HOME:
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


@pytest.fixture(params=["bucket", "server", pytest.param("container", marks=pytest.mark.nightly)])
def remote(request: pytest.FixtureRequest) -> Any:
    """One of each: it has a ``uri``, and its files can be put and deleted past the provider."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def deliver(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    return delivery_maker(sandbox)
