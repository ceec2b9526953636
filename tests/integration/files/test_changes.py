"""A file that changes before it is sent ends the delivery: no part of it, and no mixture, is ever sent."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.exceptions import SourceChanged
from outbound_transfer_sandbox.testing import Sandbox
from support.raw_server import serving
from support.remote_files import open_files
from support.timeouts import eventually
from support.wire import read_body, said, transfer

SIZE = 32 << 20


def rewrite(path: Path, content: bytes) -> None:
    """Write with a time stamp that differs, however coarse the clock of the file system is."""
    path.write_bytes(content)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_000))


def replace_by_another(path: Path) -> None:
    stamp, other = path.stat(), path.with_suffix(".other")
    other.write_bytes(b"y" * stamp.st_size)
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": lambda path: rewrite(path, b"x" * (path.stat().st_size + 1)),
    "shrinks": lambda path: rewrite(path, b"x" * (path.stat().st_size - 1)),
    "is emptied": lambda path: rewrite(path, b""),
    "is rewritten": lambda path: rewrite(path, b"y" * path.stat().st_size),
    "is replaced": replace_by_another,
    "vanishes": Path.unlink,
    "becomes a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "moment", [("before", "/v1/transfers"), ("after", "*/files")], ids=["before it is read", "after it is uploaded"]
)
def test_a_file_that_changes_is_not_sent(
    deliver: Callable[..., Any], sandbox: Sandbox, tmp_path: Path, change: str, moment: tuple[str, str]
) -> None:
    (path := tmp_path / "f").write_bytes(b"x" * 100_000)
    effect, held = moment
    sandbox.plan_faults({"kind": "hold", "effect": effect, "method": "POST", "path": held})

    def act() -> None:
        eventually(lambda: sandbox.faults()[0]["state"] == "held")
        CHANGES[change](path)
        sandbox.release_held_calls()

    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(SourceChanged, match=r"changed|vanished|longer|shorter"):
        deliver(path)
    thread.join()
    sandbox.assert_nothing_sent()
    assert open_files(str(tmp_path)) == []


def test_a_link_that_leads_elsewhere_is_not_sent(deliver: Callable[..., Any], sandbox: Sandbox, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(name.encode())
    (link := tmp_path / "current").symlink_to(tmp_path / "old")
    sandbox.plan_faults({"kind": "hold", "method": "POST", "path": "/v1/transfers"})

    def act() -> None:
        eventually(lambda: sandbox.faults()[0]["state"] == "held")
        link.unlink()
        link.symlink_to(tmp_path / "new")
        sandbox.release_held_calls()

    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(SourceChanged):
        deliver(link)
    thread.join()
    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_never_arrives_whole(
    deliver: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    with (path := tmp_path / "f").open("wb") as file:
        file.truncate(SIZE)
    sent: list[str] = []

    def serve(stream: socket.socket, request: bytes) -> None:
        """A service that stores what arrives, and during whose first read the file changes."""
        method, target, _ = request.decode(errors="replace").split(" ", 2)
        if (method, target) == ("POST", "/v1/transfers/t/files"):
            CHANGES[change](path)
            read_body(stream, request)
            stream.sendall(said({"id": "f", "name": "f", "size": SIZE}, "201 Created"))
        elif method == "DELETE":
            stream.sendall(said(b"", "204 No Content"))
        else:
            sent.append(target) if target.endswith("/send") else read_body(stream, request)
            fields = {"status": "draft", "recipients": [{"email": "ann@example.com"}], "files": []}
            stream.sendall(
                transfer(**fields) if method == "GET" else transfer(**fields).replace(b"200 OK", b"201 Created")
            )

    with serving(serve) as server:
        connection = {"conn_type": "outbound_transfer", "host": server.url(), "password": "obt_key"}
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(connection))
        with pytest.raises(SourceChanged):
            deliver(path)
    assert sent == []
    assert open_files(str(tmp_path)) == []
