"""Deliveries from a real S3 server, through Airflow's object storage and a connection of Airflow."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from outbound_transfer.exceptions import SourceUnreadable
from support.airflow_names import AirflowFailException, BaseHook
from support.calls import during_upload
from support.object_storage import ACCESS_KEY, SECRET_KEY, connection_json, refusing_keys
from support.remote_files import MB, digest, open_files, pattern, stored

#: An object of many of the blocks that are read ahead.
LARGE = 96 * MB


def test_uploads_at_once_read_objects_and_no_connection(bucket, deliver, sandbox, hook, monkeypatch) -> None:
    """Before Airflow 3.2, a thread that reads a connection may take a response that the task's own waits for."""
    contents = {f"{number}.bin": pattern(9 * MB + number) for number in range(6)}
    uris = [bucket.put(f"in/{name}", content) for name, content in contents.items()]
    get_connection, read, chunked = BaseHook.get_connection, set[int](), set[int]()

    def connection(conn_id: str) -> Any:
        read.add(threading.get_ident())
        return get_connection(conn_id)

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(connection))
    with ExitStack() as uploads:
        for name in contents:
            uploads.enter_context(during_upload(name, 1, lambda: chunked.add(threading.get_ident())))
        result = deliver(*uris).run()

    assert stored(sandbox, result["id"]) == {name: digest(content) for name, content in contents.items()}
    assert len(chunked) > 1, "or nothing was read at once"
    assert read == {threading.get_ident()}


def test_an_object_with_the_name_of_a_folder_is_found(bucket, deliver, sandbox, hook) -> None:
    for key in ("in/a", "in/a/b", "in/ab/c"):
        bucket.put(key, key.encode())
    assert stored(sandbox, deliver(f"{bucket.uri}/in/*").run()["id"]) == {"a": digest(b"in/a")}
    assert sorted(stored(sandbox, deliver(f"{bucket.uri}/in/a*").run()["id"])) == ["a"]
    assert sorted(stored(sandbox, deliver(f"{bucket.uri}/in/a*/*").run()["id"])) == ["b", "c"]


def test_a_folders_own_marker_is_not_a_file(bucket, deliver, sandbox, hook) -> None:
    for key in ("in/", "in/a", "in/sub/"):  # as a web console makes folders
        bucket.put(key, b"")
    for glob in ("in/*", "in/**", "**/*", "i*/*"):
        assert sorted(stored(sandbox, deliver(f"{bucket.uri}/{glob}").run()["id"])) == ["a"]


@pytest.mark.slow
def test_a_large_object_streams_without_a_temporary_copy(bucket, deliver, sandbox, hook, monkeypatch, tmp_path) -> None:
    content = pattern(LARGE)
    uri = bucket.put("large.bin", content)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    looks: list[tuple[list[str], list[str]]] = []

    def look() -> None:
        looks.append((os.listdir(tmp_path), open_files(str(tmp_path))))

    with during_upload("large.bin", LARGE // 2, look):
        result = deliver(uri).run()

    assert stored(sandbox, result["id"]) == {"large.bin": digest(content)}
    assert looks == [([], [])]


#: What is named in vain, with what the error must say of it.
MISSING = {
    "s3://aws_default@{bucket}/in/": "is not a file",
    "s3://aws_default@{bucket}": "is not a file",
    "s3://aws_default@no-such-bucket/a.csv": "bucket does not exist",
    "s3://aws_default@no-such-bucket/*.csv": "no file matches",
    "s3://aws_default@no-such-bucket/in/*.csv": "no file matches",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_is_named_before_anything_is_created(bucket, deliver, sandbox, path) -> None:
    bucket.put("in/a.csv", b"rows")
    missing = path.format(bucket=bucket.name)

    with pytest.raises((SourceUnreadable, AirflowFailException)) as failure:
        deliver(f"{bucket.uri}/in/a.csv", missing).run()

    assert missing.rstrip("/") in str(failure.value)
    assert MISSING[path] in str(failure.value)
    assert sandbox.requests() == []


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where connections are refused."""
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("path", ["in/a.csv", "in/*.csv"])
@pytest.mark.parametrize("trouble", ["keys refused", "not reached"])
def test_an_unavailable_store_is_reported_without_its_keys(
    bucket, s3, nobody, deliver, sandbox, monkeypatch, capfd, path, trouble
) -> None:
    bucket.put("in/a.csv", b"rows")
    if trouble == "not reached":
        away = connection_json(nobody, config_kwargs={"retries": {"max_attempts": 0}})
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", away)
    uri = f"{bucket.uri}/{path}"

    with refusing_keys(s3), pytest.raises(SourceUnreadable) as failure:
        deliver(uri).run()

    assert uri in str(failure.value)
    refused = "Forbidden" if path == "in/a.csv" else "The AWS Access Key Id you provided does not exist"
    assert (refused if trouble == "keys refused" else "Could not connect") in str(failure.value)
    told = "".join(traceback.format_exception(failure.value)) + "".join(capfd.readouterr())
    assert ACCESS_KEY not in told
    assert SECRET_KEY not in told
    assert sandbox.requests() == []
