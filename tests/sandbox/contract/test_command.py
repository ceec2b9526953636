"""The command `outbound-transfer-sandbox`: start, stop, and what survives both."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.__main__ import main
from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT, eventually

DISPOSITION = {"Content-Disposition": "attachment; filename=a.txt"}


def connect(ready: dict[str, str]) -> httpx.Client:
    return httpx.Client(
        base_url=ready["base_url"],
        headers={"Authorization": f"Bearer {ready['transfer_api_key']}"},
        timeout=TEST_TIMEOUT,
    )


def draft(http: httpx.Client) -> str:
    body = {"subject": "x", "recipients": [{"email": "ann@example.com"}]}
    return str(http.post("/v1/transfers", json=body).json()["id"])


def test_it_says_how_to_reach_it_and_the_connection_for_airflow(command: Callable[..., Any]) -> None:
    with command("--transfer-key", "it's-a-$key") as process:
        assert set(process.ready) == {"base_url", "transfer_api_key", "event_api_key"}
        with connect(process.ready) as http:
            assert http.get("/v1/transfers").status_code == 200
        assert process.stop() == 0
        output = process.popen.stdout.read()
    for value in process.ready.values():
        assert value in output
    assert "removed at exit" in output
    address, (export,) = process.ready["base_url"], [line for line in output.splitlines() if line.startswith("export ")]

    (_, assigned) = shlex.split(export)
    connection = json.loads(assigned.removeprefix("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT="))
    assert f"{connection['host']}:{connection['port']}" == address
    assert connection["password"] == "it's-a-$key"
    assert connection["extra"] == {"event_api_key": process.ready["event_api_key"]}

    start = output.index("airflow connections add")
    added = shlex.split(output[start : output.index("\n\n", start)].replace("\\\n", ""))
    assert added[added.index("--conn-password") + 1] == "it's-a-$key"
    assert json.loads(added[added.index("--conn-extra") + 1]) == connection["extra"]


@contextmanager
def uploading(ready: dict[str, str], transfer: str, content: bytes) -> Iterator[None]:
    """An upload of which only the beginning has come."""
    address = httpx.URL(ready["base_url"])
    with socket.create_connection((address.host, address.port)) as upload:
        head = f"POST /v1/transfers/{transfer}/files HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n"
        head += f"Authorization: Bearer {ready['transfer_api_key']}\r\n"
        upload.sendall(f"{head}Content-Disposition: attachment; filename=a\r\n\r\n".encode() + content)
        yield


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly_with_work_in_hand(command: Callable[..., Any], tmp_path: Path, number: int) -> None:
    with command() as process, connect(process.ready) as http:
        transfer = draft(http)
        with uploading(process.ready, transfer, b"x" * 100_000):
            http.get("/v1/transfers")
            assert process.stop(number) == 0
        assert process.popen.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


def test_the_ready_file_and_the_data_are_private(tmp_path: Path) -> None:
    ready, data = tmp_path / "ready.json", tmp_path / "data"
    arguments = [
        sys.executable,
        "-m",
        "outbound_transfer_sandbox",
        "--port",
        "0",
        "--ready-file",
        ready,
        "--data",
        data,
    ]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        eventually(lambda: ready.exists() or process.poll() is not None)
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (ready, data, data / "seed")]
        process.terminate()
    assert modes == [0o600, 0o700, 0o600]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_state_survives_a_restart(command: Callable[..., Any], tmp_path: Path, number: int) -> None:
    data = ("--data", str(tmp_path / "data"))
    with command(*data) as process, connect(process.ready) as http:
        control = _control(process.ready)
        control.patch_account(requests_per_window=8, delivery_window_days=5)
        control.advance_clock(1_000_000)
        other = control.new_key("bob@example.com")
        sent, kept = draft(http), draft(http)
        for transfer in (sent, kept):
            http.post(f"/v1/transfers/{transfer}/files", content=b"hello", headers=DISPOSITION)
        before = http.post(f"/v1/transfers/{sent}/send").json()
        file = http.get(f"/v1/transfers/{kept}/files").json()["data"][0]["id"]
        events = _events(process.ready)
        logs = control.ledger(), control.requests(), control.feed_calls()
        state = control.state()
        control.close()
        process.stop(number)
    first = process.ready
    with command(*data) as process, connect(first | {"base_url": process.ready["base_url"]}) as http:
        assert process.ready["transfer_api_key"] == first["transfer_api_key"]
        assert process.ready["event_api_key"] == first["event_api_key"]
        control = _control(process.ready)
        assert (control.ledger(), control.requests(), control.feed_calls()) == logs
        assert control.state()["account"] == state["account"]
        assert control.state()["clock"] >= state["clock"]
        assert http.get(f"/v1/transfers/{sent}").json() == before
        assert control.stored_content(kept, file) == b"hello"
        assert http.get("/v1/transfers").json()["data"][0]["id"] == sent
        assert http.get("/v1/transfers").status_code == 429
        assert _events(process.ready).status_code == 429
        control.advance_clock(60)
        assert _events(process.ready).content == events.content
        assert http.get("/v1/transfers", headers={"Authorization": f"Bearer {other}"}).json()["data"] == []
        control.close()


def _control(ready: dict[str, str]) -> Sandbox:
    return Sandbox(ready["base_url"], ready["transfer_api_key"], ready["event_api_key"])


def _events(ready: dict[str, str]) -> httpx.Response:
    return httpx.get(f"{ready['base_url']}/v1/events", headers={"Authorization": f"Bearer {ready['event_api_key']}"})


def test_a_kill_during_an_upload_leaves_no_file(command: Callable[..., Any], tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    partial = tmp_path / "data" / "partial"
    with command(*data) as process, connect(process.ready) as http:
        transfer = draft(http)
        with uploading(process.ready, transfer, b"x" * 4_000_000):
            eventually(lambda: list(partial.iterdir()))
            process.stop(signal.SIGKILL)
    (tmp_path / "data" / "files" / "fi_without_record").write_bytes(b"x")
    with command(*data) as process, connect(process.ready) as http:
        assert http.get(f"/v1/transfers/{transfer}/files").json() == {"data": []}
        assert list(partial.iterdir()) == list((tmp_path / "data" / "files").iterdir()) == []


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outbound_transfer_sandbox", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT, check=False)


def status_of(*arguments: str) -> int:
    """Run the command in this process, where it is refused before it runs; return its exit code."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_port_or_data_that_another_uses(command: Callable[..., Any], tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    with command(*data) as process:
        port = str(httpx.URL(process.ready["base_url"]).port)
        for said, arguments in ((port, ("--port", port)), ("in use", ("--port", "0", *data))):
            result = run(*arguments)
            assert (result.returncode, result.stdout) == (2, "")
            assert len(result.stderr.splitlines()) == 1
            assert said in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "-1"), ("--port", "x"), ("--host", "256.0.0.1"), ("--host", "no.such.host.invalid"),
        ("--transfer-key", "two words"), ("--event-key", ""), ("--data", "/dev/null/x"), ("--nonsense",),
        ("--password", ""),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--port", "0", *arguments) == 2
    assert "outbound-transfer-sandbox: " in capsys.readouterr().err
