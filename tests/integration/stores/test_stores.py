"""Deliveries from real servers of S3, SFTP and Azure, through Airflow's object storage and a connection of Airflow."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qs, unquote

import asyncssh
import pytest
from airflow.sdk.io import store

from outbound_transfer.exceptions import SourceChanged, SourceMissing, SourceUnreadable
from support import azurite as azure_server
from support import object_storage
from support.airflow_names import AirflowFailException, BaseHook
from support.azurite import Container
from support.calls import during_upload
from support.object_storage import Bucket
from support.remote_files import MB, NAMES, delivery_maker, digest, open_files, pattern, peak_memory, stored
from support.sftp_server import HOME, PASSWORD, SftpServer, running_sftp
from support.tasks import FakeTaskInstance

#: The size of a file of many of the blocks that are read ahead.
LARGE = 96 * MB

_numbers = itertools.count()
in_azure = pytest.mark.nightly


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with object_storage.running_s3() as address:
        yield address


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azure_server.running_azurite(tmp_path_factory.mktemp("azurite")) as address:
        yield address


@pytest.fixture(scope="module")
def sftp() -> Iterator[SftpServer]:
    with running_sftp() as server:
        yield server


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", object_storage.connection_json(s3))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    bucket = Bucket(s3, f"bucket-{next(_numbers)}")
    yield bucket
    bucket.close()


@pytest.fixture
def container(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    from adlfs import AzureBlobFileSystem

    monkeypatch.setenv("AIRFLOW_CONN_WASB_DEFAULT", azure_server.connection_json(azurite))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    yield Container(azurite, f"container-{next(_numbers)}")
    AzureBlobFileSystem.clear_instance_cache()


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


@pytest.fixture(params=["bucket", "server", pytest.param("container", marks=in_azure)])
def remote(request: pytest.FixtureRequest) -> Any:
    """One of each: it has a ``uri``, and its files can be put and deleted past the provider."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def deliver(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    return delivery_maker(sandbox)


@pytest.fixture
def names_of(deliver, sandbox) -> Callable[..., list[str]]:
    return lambda *uris: sorted(stored(sandbox, deliver(*uris).run()["id"]))


@pytest.fixture
def refused(deliver, sandbox) -> Callable[..., Exception]:
    """Deliver in vain; the error. Nothing has been created."""

    def refused(*uris: str) -> Exception:
        with pytest.raises((SourceUnreadable, AirflowFailException)) as failure:
            deliver(*uris).run()
        assert sandbox.requests() == []
        return failure.value

    return refused


@pytest.mark.parametrize("way", ["uri", "glob"])
def test_files_are_delivered_under_their_very_names(remote, deliver, sandbox, way) -> None:
    contents = {name: name.encode() * 100 for name in NAMES}
    uris = [remote.put(f"in/{name}", content) for name, content in contents.items()]
    result = deliver(*(uris if way == "uri" else [f"{remote.uri}/in/*"])).run()
    assert stored(sandbox, result["id"]) == {name: digest(content) for name, content in contents.items()}


MATCHES = {
    "in/*.csv": ["a.csv", "b b.csv", "ü.csv"],
    "in/?.csv": ["a.csv", "ü.csv"],
    "in/a*": ["a.csv"],
    "in/[ab]*.csv": ["a.csv", "b b.csv"],
    "in/**/*.csv": ["a.csv", "b b.csv", "deep.csv", "ü.csv"],
    "i*/s*/*.csv": ["deep.csv"],
    "*/c.txt": ["c.txt"],
    "*.csv": ["in.csv"],
    "**/d*.csv": ["deep.csv"],
}


def test_a_glob_delivers_what_it_matches(remote, names_of) -> None:
    keys = ("in/a.csv", "in/b b.csv", "in/c.txt", "in/ü.csv", "in/sub/deep.csv", "in/as/a", "in.csv", "india/x", "ina")
    for key in keys:
        remote.put(key, key.encode())
    assert {glob: names_of(f"{remote.uri}/{glob}") for glob in MATCHES} == MATCHES


#: What is named in vain, with what the error must say of it.
MISSING = {
    "/none.csv": "does not exist",
    "/in": "is not a file",
    "/": "is not a file",
    "/in/*.pdf": "no file matches",
    "/none/*.csv": "no file matches",
    "/in/a.csv/*.csv": "no file matches",
}
MISSING_PLACES = {
    ("bucket", "s3://aws_default@no-such-bucket/a.csv"): "bucket does not exist",
    ("bucket", "s3://aws_default@no-such-bucket/in/*.csv"): "no file matches",
    ("container", "abfs://wasb_default@no-such-container/a.csv"): "does not exist",
    ("container", "abfs://wasb_default@no-such-container/*.csv"): "no file matches",
}


def test_a_missing_file_is_named_before_anything_is_created(remote, request, refused) -> None:
    there = remote.put("in/a.csv", b"rows")
    places = {uri: said for (kind, uri), said in MISSING_PLACES.items() if kind in request.node.name}
    for missing, said in ({f"{remote.uri}{path}": said for path, said in MISSING.items()} | places).items():
        told = str(refused(there, missing))
        assert missing.rstrip("/") in told
        assert said in told


CHANGES: dict[str, Callable[[Any, int], object]] = {
    "same size": lambda remote, size: remote.put("in/b.bin", b"Y" * size),
    "longer": lambda remote, size: remote.put("in/b.bin", b"Y" * (size + 1)),
    "shorter": lambda remote, size: remote.put("in/b.bin", b"Y" * (size - 1)),
    "empty": lambda remote, size: remote.put("in/b.bin", b""),
    "deleted": lambda remote, size: remote.delete("in/b.bin"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("size", "chunk"),
    [
        pytest.param(3 * MB, 0, id="between find and read"),
        pytest.param(3 * MB, 3, id="at the last bytes"),
        pytest.param(20 * MB, 1, id="between two requests"),  # for what has not been read ahead
    ],
)
def test_a_file_that_changes_is_not_sent(remote, deliver, sandbox, change, size, chunk) -> None:
    remote.put("in/a.bin", b"A" * 1000)
    for files in ([f"{remote.uri}/in/a.bin", f"{remote.uri}/in/b.bin"], [f"{remote.uri}/in/*"]):
        remote.put("in/b.bin", b"B" * size)
        changing = during_upload("b.bin", chunk * MB, lambda: CHANGES[change](remote, size))
        with changing, pytest.raises(SourceChanged):
            deliver(*files).run()
        if change != "deleted":
            remote.delete("in/b.bin")
    sandbox.assert_nothing_sent()


def test_a_large_file_needs_little_memory_and_no_temporary_copy(
    remote, deliver, sandbox, monkeypatch, tmp_path
) -> None:
    content = random.Random(0).randbytes(LARGE)
    expected, large = digest(content), remote.put("in/large.bin", content)
    del content
    deliver(remote.put("in/small.bin", b"x")).run()  # imports, connections and buffers of the first delivery
    ti, looks = deliver(large), list[Any]()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def look() -> None:
        looks.append((os.listdir(tmp_path), open_files(str(tmp_path))))

    with peak_memory() as peak, during_upload("large.bin", LARGE // 2, look):
        result = ti.run()
    assert peak[0] < LARGE / 2
    assert looks == [([], [])]
    assert stored(sandbox, result["id"]) == {"large.bin": expected}


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


KEY = azure_server.KEY
AWAY = {"config_kwargs": {"retries": {"max_attempts": 0}}}
SSH_KEY = asyncssh.generate_private_key("ssh-rsa", key_size=2048).export_private_key().decode()

#: By kind and trouble, what a connection has in the place of its secret; what the error must say.
TROUBLES: dict[tuple[str, str], tuple[Any, str]] = {
    ("bucket", "keys refused"): ({}, "Forbidden|The AWS Access Key Id you provided does not exist"),
    ("bucket", "not reached"): (AWAY, "Could not connect"),
    ("server", "password"): ({"password": "another-secret-password"}, "Permission denied"),
    ("server", "key in the extra"): ({"extra": {"private_key": SSH_KEY}}, "the connection failed"),
    ("server", "no key file"): ({"extra": {"key_file": "/none"}}, "No such file"),
    ("server", "not reached"): ({"port": 1}, "the connection failed: Conn"),
    ("container", "wrong key"): (f"AccountKey={KEY.replace('E', 'F', 1)}", ""),
    ("container", "half a key"): (f"AccountKey={KEY[:41]}", ""),
    ("container", "signature for another container"): ("", ""),
}


@pytest.mark.parametrize(
    ("kind", "trouble"), [pytest.param(*key, marks=[in_azure] * (key[0] == "container")) for key in TROUBLES]
)
def test_a_failed_login_shows_no_secret_and_is_not_reported_as_a_missing_file(
    request, refused, monkeypatch, capfd, caplog, nobody, kind, trouble
) -> None:
    remote, (wrong, said) = request.getfixturevalue(kind), TROUBLES[kind, trouble]
    remote.put("in/a.csv", b"rows")
    secrets = [object_storage.ACCESS_KEY, object_storage.SECRET_KEY, PASSWORD, "another-secret-password", KEY[1:41]]
    secrets += SSH_KEY.split()[5:-5]
    with ExitStack() as stack:
        if trouble == "keys refused":
            stack.enter_context(object_storage.refusing_keys(request.getfixturevalue("s3")))
        elif kind == "bucket":
            monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", object_storage.connection_json(nobody, **wrong))
        elif kind == "server":
            monkeypatch.setenv("AIRFLOW_CONN_SFTP_DEFAULT", remote.connection_json(**wrong))
        else:
            token = Container(remote.address, f"{remote.name}-2").sas_token("rl")
            secrets += parse_qs(token)["sig"]
            login = azure_server.connection_json(remote.address, wrong or f"SharedAccessSignature={token}")
            monkeypatch.setenv("AIRFLOW_CONN_WASB_DEFAULT", login)
        for path in ("in/a.csv", "in/*.csv"):
            failure = refused(f"{remote.uri}/{path}")
            assert isinstance(failure, SourceUnreadable)
            assert not isinstance(failure, SourceMissing), "it is the server that was not reached"
            assert re.search(said, str(failure))
            told = "".join(traceback.format_exception(failure)) + "".join(capfd.readouterr()) + caplog.text
            assert [secret for secret in secrets if secret in unquote(told)] == []


def test_uploads_at_once_read_objects_and_no_connection(bucket, deliver, sandbox, monkeypatch) -> None:
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


def test_an_object_named_like_a_folder_is_found_and_a_folder_marker_is_not_a_file(bucket, names_of) -> None:
    for key in ("in/a", "in/a/b", "in/ab/c"):
        bucket.put(key, key.encode())
    matches = {"in/*": ["a"], "in/a*": ["a"], "in/a*/*": ["b", "c"]}
    assert {glob: names_of(f"{bucket.uri}/{glob}") for glob in matches} == matches
    for key in ("web/", "web/d", "web/sub/"):  # as a web console makes folders
        bucket.put(key, b"")
    for glob in ("web/*", "web/**", "**/d", "w*/*"):
        assert names_of(f"{bucket.uri}/{glob}") == ["d"]


@in_azure
def test_a_folder_with_the_name_of_a_blob_is_not_left_out(container, names_of) -> None:
    for key in ("in/a", "in/a/b", "in/ab/c"):
        container.put(key, key.encode())
    assert names_of(f"{container.uri}/in/a*") == ["a"]
    for glob, names in {"in/a*/*": ["b", "c"], "in/**": ["a", "b", "c"], "**/b": ["b"]}.items():
        try:
            assert names_of(f"{container.uri}/{glob}") == names
        except SourceUnreadable as error:  # not before adlfs 2026.8
            assert "in/a is a file" in str(error)


def test_links_are_followed_but_not_by_a_pattern_of_any_depth(server, refused, names_of) -> None:
    for name in ("in/a.csv", "in/sub/b.csv", "elsewhere/c.csv"):
        server.put(name, name.encode())
    for link, target in {"in/up": "..", "in/sub/self": ".", "in/also": "../in", "in/link.txt": "a.csv"}.items():
        (server.root / link).symlink_to(target)
    (server.root / "in/sub/away").symlink_to("../../elsewhere")
    assert "is a link, which may lead back" in str(refused(f"{server.uri}/in/sub/**/*.csv"))
    assert names_of(f"{server.uri}/in/sub/*/*.csv") == ["b.csv", "c.csv"]
    assert names_of(f"{server.uri}/in/*.*") == ["a.csv", "link.txt"]


@pytest.mark.parametrize(
    ("path", "closed"),
    [("*/*.csv", "in"), *((path, "in/closed") for path in ("in/**/*.csv", "in/closed/*.csv", "in/closed/b.csv"))],
)
def test_an_unreadable_file_is_not_reported_as_missing_but_a_dangling_link_is(server, refused, path, closed) -> None:
    for name in ("in/a.csv", "in/closed/b.csv", "in/c.csv"):
        server.put(name, b"rows")
    (server.root / closed).chmod(0)
    try:
        failure = refused(f"{server.uri}/{path}")
    finally:
        (server.root / closed).chmod(0o755)
    assert "Permission denied" in str(failure)
    assert not isinstance(failure, SourceMissing)
    (server.root / "in/b.csv").symlink_to("gone.csv")
    failure = refused(f"{server.uri}/in/*.csv")
    assert isinstance(failure, SourceMissing)
    assert "in/b.csv does not exist" in str(failure)


def test_a_glob_begins_at_the_root_and_not_in_the_users_home_and_a_key_file_logs_in(
    server, names_of, monkeypatch, tmp_path
) -> None:
    (tmp_path / "key").write_bytes(server.client_key)
    login = server.connection_json(password=None, extra={"key_file": str(tmp_path / "key")})
    monkeypatch.setenv("AIRFLOW_CONN_SFTP_DEFAULT", login)
    server.put("top.csv", b"top")
    server.put(f"{HOME}/home.csv", b"not at the root")
    assert names_of(f"{server.uri}/*.csv") == ["top.csv"]
