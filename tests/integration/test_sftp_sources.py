"""Deliveries from a real SFTP server, through Airflow's object storage and a connection of Airflow."""

from __future__ import annotations

import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest
from airflow.sdk.io import store
from sshfs import SSHFileSystem

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.protocol.errors import SourceChanged, SourceMissing, SourceUnreadable
from support.remote_files import MB, NAMES, at_chunk, delivery_maker, digest, pattern, peak_memory, stored
from support.sftp_server import HOME, PASSWORD, SftpServer, running_sftp
from support.tasks import FakeTaskInstance

LARGE = 96 * MB


@pytest.fixture(scope="module")
def running() -> Iterator[SftpServer]:
    with running_sftp() as server:
        yield server


@pytest.fixture
def server(running: SftpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SftpServer]:
    monkeypatch.setenv("AIRFLOW_CONN_SFTP_DEFAULT", running.connection_json())
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    yield running
    SSHFileSystem.clear_instance_cache()
    for folder in running.root.iterdir():
        if folder.name != HOME:
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


@pytest.fixture
def deliver(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    return delivery_maker(sandbox)


def uri(path: str) -> str:
    return f"sftp://sftp_default@/{path}"


SHELL_NAMES = ("$(touch owned) `id`.csv", "-rf")


@pytest.mark.parametrize("way", ["uri", "glob"])
def test_files_are_delivered_under_their_very_names(server, deliver, sandbox, hook, way) -> None:
    contents = {name: name.encode() * 100 for name in (*NAMES, *SHELL_NAMES)}
    uris = [server.put(f"in/{name}", content) for name, content in contents.items()]

    result = deliver(*(uris if way == "uri" else [uri("in/*")])).run()

    assert stored(sandbox, hook, result["id"]) == {name: digest(content) for name, content in contents.items()}


@pytest.mark.parametrize(
    ("name", "reason"), [("tab\t.csv", "control"), ("line\n.csv", "control"), ("back\\slash.csv", "separator")]
)
def test_a_name_that_cannot_be_delivered_creates_nothing(server, deliver, sandbox, name, reason) -> None:
    server.put(f"in/{name}", b"rows")
    with pytest.raises(AirflowFailException, match=reason) as refusal:
        deliver(uri("in/*")).run()
    assert str(refusal.value).isprintable()
    assert sandbox.requests() == []


@pytest.mark.parametrize("size", [0, 1, MB - 1, MB, 5 * MB + 1])
def test_every_byte_is_delivered(server, deliver, sandbox, hook, size) -> None:
    result = deliver(server.put("in/report.bin", pattern(size))).run()
    assert stored(sandbox, hook, result["id"]) == {"report.bin": digest(pattern(size))}


def test_uploads_at_once_share_a_connection(server, deliver, sandbox, hook) -> None:
    contents = {f"{number}.bin": pattern(3 * MB + number) for number in range(6)}
    for name, content in contents.items():
        server.put(f"in/{name}", content)
    result = deliver(uri("in/*.bin")).run()
    assert stored(sandbox, hook, result["id"]) == {name: digest(content) for name, content in contents.items()}


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("in/*.csv", ["a.csv", "b b.csv", "ü.csv"]),
        ("in/?.csv", ["a.csv", "ü.csv"]),
        ("in/[ab]*.csv", ["a.csv", "b b.csv"]),
        ("in/**/*.csv", ["a.csv", "b b.csv", "deep.csv", "ü.csv"]),
        ("*/c.txt", ["c.txt"]),
        ("*.csv", ["top.csv"]),  # of the root, not of the user's home
        ("**/d*.csv", ["deep.csv"]),
    ],
)
def test_a_glob_delivers_what_it_matches(server, deliver, sandbox, hook, glob, names) -> None:
    for path in ("in/a.csv", "in/b b.csv", "in/c.txt", "in/ü.csv", "in/sub/deep.csv", "other/x", "top.csv"):
        server.put(path, path.encode())
    server.put(f"{HOME}/home.csv", b"not at the root")

    result = deliver(uri(glob)).run()

    assert sorted(stored(sandbox, hook, result["id"])) == names


def test_links_are_followed_and_may_lead_in_circles(server, deliver, sandbox, hook) -> None:
    server.put("in/a.csv", b"a")
    server.put("in/sub/b.csv", b"b")
    server.put("elsewhere/c.csv", b"c")
    for link, target in {"in/up": "..", "in/sub/self": ".", "in/also": "../in", "in/link.txt": "a.csv"}.items():
        (server.root / link).symlink_to(target)
    (server.root / "in/sub/away").symlink_to("../../elsewhere")

    assert stored(sandbox, hook, deliver(uri("in/sub/**/*.csv")).run()["id"]) == {
        "b.csv": digest(b"b"),
        "c.csv": digest(b"c"),
    }
    both = stored(sandbox, hook, deliver(uri("in/*.*")).run()["id"])
    assert both == dict.fromkeys(("a.csv", "link.txt"), digest(b"a"))


def test_a_dangling_link_is_a_missing_file(server, deliver, sandbox) -> None:
    server.put("in/a.csv", b"a")
    (server.root / "in/b.csv").symlink_to("gone.csv")
    with pytest.raises(SourceMissing, match=r"in/b\.csv is not there"):
        deliver(uri("in/*.csv")).run()
    assert sandbox.requests() == []


#: What is named in vain, with what the error must say of it.
MISSING = {
    "in/none.csv": "is not there",
    "in": "is not a file",
    "": "is not a file",
    "in/*.pdf": "no file matches",
    "none/*.csv": "there is no folder sftp://sftp_default@/none",
    "in/a.csv/*.csv": "there is no folder sftp://sftp_default@/in/a.csv",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_is_named_before_anything_is_created(server, deliver, sandbox, path) -> None:
    there = server.put("in/a.csv", b"rows")
    with pytest.raises((SourceUnreadable, AirflowFailException)) as failure:
        deliver(there, uri(path)).run()
    assert uri(path) in str(failure.value)
    assert MISSING[path] in str(failure.value)
    assert sandbox.requests() == []


@pytest.mark.parametrize(
    ("path", "closed"),
    [
        ("in/*.csv", "in"),
        ("*/*.csv", "in"),
        ("in/**/*.csv", "in/closed"),
        ("in/closed/*.csv", "in/closed"),
        ("in/closed/b.csv", "in/closed"),
        ("in/c.csv", "in/c.csv"),
    ],
)
def test_what_may_not_be_read_is_not_a_missing_file(server, deliver, sandbox, path, closed) -> None:
    for name in ("in/a.csv", "in/closed/b.csv", "in/c.csv"):
        server.put(name, b"rows")
    closed = server.root / closed
    closed.chmod(0)
    try:
        with pytest.raises(SourceUnreadable, match="Permission denied") as failure:
            deliver(uri(path)).run()
    finally:
        closed.chmod(0o755)
    assert not isinstance(failure.value, SourceMissing)
    assert sandbox.requests() == []


CHANGES: dict[str, Callable[[Path], object]] = {
    "same size": lambda file: file.write_bytes(b"Y" * file.stat().st_size),
    "longer": lambda file: file.write_bytes(b"Y" * (file.stat().st_size + 1)),
    "shorter": lambda file: file.write_bytes(b"Y" * (file.stat().st_size - 1)),
    "replaced": lambda file: (
        file.with_suffix(".new").write_bytes(b"Y" * file.stat().st_size) and file.with_suffix(".new").replace(file)
    ),
    "deleted": lambda file: file.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("chunk", [0, 1, 3], ids=["between find and read", "at the first bytes", "at the last bytes"])
def test_a_file_that_changes_is_not_sent(server, deliver, sandbox, hook, monkeypatch, change, chunk) -> None:
    uris = [server.put("in/a.bin", b"A" * 1000), server.put("in/b.bin", b"B" * (3 * MB))]
    file = server.root / "in/b.bin"
    os.utime(file, (1, 1))  # SFTP tells times in seconds
    at_chunk(monkeypatch, "b.bin", chunk, lambda: CHANGES[change](file))
    ti = deliver(*uris)

    with pytest.raises(SourceChanged):
        ti.run()

    assert sandbox.ledger() == []
    assert "b.bin" not in stored(sandbox, hook, ti.xcoms["transfer_id"])


def _logged_in_with(monkeypatch: pytest.MonkeyPatch, server: SftpServer, **changed: object) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SFTP_DEFAULT", server.connection_json(**changed))


@pytest.mark.parametrize("path", ["in/a.csv", "in/*.csv"])
@pytest.mark.parametrize("trouble", ["password", "key in the extra", "no key file", "nobody there"])
def test_a_login_that_fails_shows_no_secret(
    server, deliver, sandbox, monkeypatch, capfd, caplog, path, trouble, tmp_path
) -> None:
    server.put("in/a.csv", b"rows")
    key = asyncssh.generate_private_key("ssh-rsa", key_size=2048).export_private_key().decode()
    changed, said = {
        "password": ({"password": "another-secret-password"}, "Permission denied"),
        "key in the extra": ({"extra": {"private_key": key}}, "the connection failed"),
        "no key file": ({"extra": {"key_file": str(tmp_path / "none")}}, "No such file"),
        "nobody there": ({"port": 1}, "the connection failed: Conn"),
    }[trouble]
    _logged_in_with(monkeypatch, server, **changed)

    with pytest.raises(SourceUnreadable, match=said) as failure:
        deliver(uri(path)).run()

    assert not isinstance(failure.value, SourceMissing), "it is the server that was not reached, no file that is gone"
    told = "".join(traceback.format_exception(failure.value)) + "".join(capfd.readouterr()) + caplog.text
    for secret in (PASSWORD, "another-secret-password", *key.split()[5:-5]):
        assert secret not in told
    assert sandbox.requests() == []


def test_a_key_file_logs_in(server, deliver, sandbox, hook, monkeypatch, tmp_path) -> None:
    (tmp_path / "key").write_bytes(server.client_key)
    _logged_in_with(monkeypatch, server, password=None, extra={"key_file": str(tmp_path / "key")})
    result = deliver(server.put("in/a.csv", b"rows")).run()
    assert stored(sandbox, hook, result["id"]) == {"a.csv": digest(b"rows")}


@pytest.mark.slow
def test_a_large_file_needs_little_memory(server, deliver, sandbox, hook) -> None:
    content = random.Random(0).randbytes(LARGE)
    expected, large = digest(content), server.put("in/large.bin", content)
    del content
    deliver(server.put("in/small.bin", b"x")).run()  # imports, connections and buffers of the first delivery
    ti = deliver(large)

    with peak_memory() as peak:
        result = ti.run()

    print(f"memory: {peak[0] / MB:.0f} MB more than before for a file of {LARGE // MB} MB")
    assert peak[0] < LARGE / 2
    assert stored(sandbox, hook, result["id"]) == {"large.bin": expected}
