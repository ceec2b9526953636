"""Deliveries from a real SFTP server, through Airflow's object storage and a connection of Airflow."""

from __future__ import annotations

import os
import traceback

import asyncssh
import pytest

from outbound_transfer.exceptions import SourceChanged, SourceMissing, SourceUnreadable
from support.calls import during_upload
from support.remote_files import MB, digest, stored
from support.sftp_server import HOME, PASSWORD, SftpServer


def uri(path: str) -> str:
    return f"sftp://sftp_default@/{path}"


def test_links_are_followed_but_not_by_a_pattern_of_any_depth(server, deliver, sandbox, hook) -> None:
    server.put("in/a.csv", b"a")
    server.put("in/sub/b.csv", b"b")
    server.put("elsewhere/c.csv", b"c")
    for link, target in {"in/up": "..", "in/sub/self": ".", "in/also": "../in", "in/link.txt": "a.csv"}.items():
        (server.root / link).symlink_to(target)
    (server.root / "in/sub/away").symlink_to("../../elsewhere")

    with pytest.raises(SourceUnreadable, match=r"is a link, which may lead back"):
        deliver(uri("in/sub/**/*.csv")).run()
    assert sandbox.requests() == []
    assert stored(sandbox, deliver(uri("in/sub/*/*.csv")).run()["id"]) == {
        "b.csv": digest(b"b"),
        "c.csv": digest(b"c"),
    }
    both = stored(sandbox, deliver(uri("in/*.*")).run()["id"])
    assert both == dict.fromkeys(("a.csv", "link.txt"), digest(b"a"))


def test_a_dangling_link_is_a_missing_file(server, deliver, sandbox) -> None:
    server.put("in/a.csv", b"a")
    (server.root / "in/b.csv").symlink_to("gone.csv")
    with pytest.raises(SourceMissing, match=r"in/b\.csv is not there"):
        deliver(uri("in/*.csv")).run()
    assert sandbox.requests() == []


@pytest.mark.parametrize(
    ("path", "closed"),
    [
        ("in/*.csv", "in"),
        ("*/*.csv", "in"),
        ("in/**/*.csv", "in/closed"),
        ("in/closed/*.csv", "in/closed"),
        ("in/closed/b.csv", "in/closed"),
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


def test_a_file_that_may_be_seen_and_not_read_is_not_sent(server, deliver, sandbox) -> None:
    source = server.put("in/c.csv", b"rows")
    (server.root / "in/c.csv").chmod(0)
    with pytest.raises(SourceUnreadable, match="Permission denied") as failure:
        deliver(source).run()
    assert not isinstance(failure.value, SourceMissing)
    sandbox.assert_nothing_sent()


def test_a_glob_begins_at_the_root_and_not_in_the_users_home(server, deliver, sandbox, hook) -> None:
    server.put("top.csv", b"top")
    server.put(f"{HOME}/home.csv", b"not at the root")
    assert sorted(stored(sandbox, deliver(uri("*.csv")).run()["id"])) == ["top.csv"]


def test_a_file_that_is_replaced_is_not_sent(server, deliver, sandbox) -> None:
    source = server.put("in/b.bin", b"B" * MB)
    server.put("in/new.bin", b"Y" * MB)
    os.utime(server.root / "in/new.bin", (2, 2))
    replacing = during_upload("b.bin", 1, lambda: (server.root / "in/new.bin").replace(server.root / "in/b.bin"))
    with replacing, pytest.raises(SourceChanged):
        deliver(source).run()
    assert sandbox.ledger() == []


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
    assert stored(sandbox, result["id"]) == {"a.csv": digest(b"rows")}
