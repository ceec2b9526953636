"""What the contract tests share: a sandbox of each test's own, as clients see it.

`@pytest.mark.rule` names the rule of docs/service-api.md that a test checks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support.timeouts import TEST_TIMEOUT, eventually

ANN = {"email": "ann@example.com"}
BOB = {"email": "bob@example.com"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rule(number): the rule of docs/service-api.md that the test checks")


class Api:
    """The Transfer interface and the feed over HTTP. Short calls return responses, `draft` and `sent` transfers."""

    def __init__(self, base_url: str, key: str, event_key: str) -> None:
        self.base_url = base_url
        self.key = key
        self.event_key = event_key
        self.http = client(base_url, key)

    def create(self, **fields: Any) -> httpx.Response:
        body = {"subject": "Report", "recipients": [ANN]} | fields
        return self.http.post("/v1/transfers", json={k: v for k, v in body.items() if v is not ...})

    def draft(self, **fields: Any) -> dict[str, Any]:
        response = self.create(**fields)
        assert response.status_code == 201, response.text
        return response.json()

    def attach(
        self, transfer_id: str, name: str = "a.txt", content: bytes = b"hello", **headers: str
    ) -> httpx.Response:
        headers = {"Content-Disposition": f'attachment; filename="{name}"', **headers}
        return self.http.post(f"/v1/transfers/{transfer_id}/files", content=content, headers=headers)

    def attached(self, transfer_id: str, name: str = "a.txt", content: bytes = b"hello") -> dict[str, Any]:
        response = self.attach(transfer_id, name, content)
        assert response.status_code == 201, response.text
        return response.json()

    def send(self, transfer_id: str) -> httpx.Response:
        return self.http.post(f"/v1/transfers/{transfer_id}/send")

    def sent(self, files: int = 1, **fields: Any) -> dict[str, Any]:
        transfer = self.draft(**fields)
        for number in range(files):
            self.attached(transfer["id"], f"{number}.txt")
        response = self.send(transfer["id"])
        assert response.status_code == 200, response.text
        return response.json()

    def get(self, transfer_id: str) -> dict[str, Any]:
        return self.http.get(f"/v1/transfers/{transfer_id}").json()

    def page(self, **params: Any) -> dict[str, Any]:
        response = self.http.get("/v1/transfers", params=params)
        assert response.status_code == 200, response.text
        return response.json()

    def ids(self, **params: Any) -> list[str]:
        return [transfer["id"] for transfer in self.page(**params)["data"]]

    def events(self, **params: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.event_key}"}
        return self.http.get("/v1/events", params=params, headers=headers)


def client(base_url: str, key: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(
        base_url=base_url, headers=headers, timeout=TEST_TIMEOUT, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Sandbox]:
    """A fresh sandbox, of which nothing is left afterwards: what an administrator, a recipient or time does there."""
    with running_sandbox(tmp_path / "data") as sandbox:
        yield sandbox


@pytest.fixture
def data_dir(control: Sandbox, tmp_path: Path) -> Path:
    """Where the sandbox keeps its state."""
    return tmp_path / "data"


@pytest.fixture
def api(control: Sandbox) -> Iterator[Api]:
    api = Api(control.base_url, control.transfer_api_key, control.event_api_key)
    with api.http:
        yield api


@pytest.fixture
def unlimited(control: Sandbox) -> None:
    """Lifts both rates."""
    control.patch_account(requests_per_window=1_000_000, feed_interval_seconds=0)


@pytest.fixture
def with_key(control: Sandbox) -> Iterator[Callable[..., Api]]:
    """Makes an Api with another key."""
    made: list[Api] = []

    def make(key: str) -> Api:
        made.append(Api(control.base_url, key, control.event_api_key))
        return made[-1]

    yield make
    for api in made:
        api.http.close()


class Wire:
    """A raw connection, for what no HTTP client would send."""

    def __init__(self, base_url: str, key: str) -> None:
        url = httpx.URL(base_url)
        self.socket = socket.create_connection((url.host, url.port), TEST_TIMEOUT)
        self._host = url.netloc.decode()
        self._key = key

    def request(self, method: str, path: str, *headers: str) -> None:
        lines = [
            f"{method} {path} HTTP/1.1", f"Host: {self._host}", f"Authorization: Bearer {self._key}", *headers,
            "", "",
        ]  # fmt: skip
        self.socket.sendall("\r\n".join(lines).encode("latin-1"))

    def upload(self, transfer_id: str, length: str | None, *headers: str, name: str = "a.txt") -> None:
        """The head of an upload; the body is for `socket.sendall`."""
        declared = [] if length is None else [f"Content-Length: {length}"]
        disposition = f'Content-Disposition: attachment; filename="{name}"'
        self.request("POST", f"/v1/transfers/{transfer_id}/files", disposition, *declared, *headers)

    def answer(self) -> httpx.Response:
        """The next response; RuntimeError when the connection ends before it."""
        head = self._until(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").splitlines()
        headers = [tuple(line.split(": ", 1)) for line in lines if line]
        body = self._exactly(int(dict(headers).get("content-length", 0)))
        return httpx.Response(int(status.split()[1]), headers=headers, content=body)

    def _until(self, mark: bytes) -> bytes:
        data = b""
        while not data.endswith(mark):
            data += self._exactly(1)
        return data

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                raise RuntimeError(f"the connection ended after {data!r}")
            data += chunk
        return data


@pytest.fixture
def wire(control: Sandbox) -> Iterator[Callable[[], Wire]]:
    opened: list[Wire] = []

    def make() -> Wire:
        opened.append(Wire(control.base_url, control.transfer_api_key))
        return opened[-1]

    yield make
    for connection in opened:
        connection.socket.close()


@dataclass
class Process:
    """The command, running."""

    popen: subprocess.Popen[str]
    ready: dict[str, str]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(TEST_TIMEOUT)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Any]:
    """Runs `outbound-transfer-sandbox` on a free port, as a context manager."""

    @contextmanager
    def run(*arguments: str) -> Iterator[Process]:
        ready_file = tmp_path / "ready.json"
        popen = subprocess.Popen(
            [sys.executable, "-m", "outbound_transfer_sandbox", "--port", "0", "--ready-file", ready_file, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        with popen:
            try:
                eventually(lambda: ready_file.exists() or popen.poll() is not None)
                assert popen.poll() is None, popen.communicate()
                ready = json.loads(ready_file.read_text())
                ready_file.unlink()
                yield Process(popen, ready)
            finally:
                with suppress(ProcessLookupError):
                    popen.kill()
                popen.communicate()

    return run


@pytest.fixture
def refused() -> Callable[[httpx.Response, int, str], str]:
    """Asserts that a response is an error of the documented shape; its message."""

    def check(response: httpx.Response, status: int, code: str) -> str:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert set(body) == {"error", "message"}
        assert body["error"] == code
        assert isinstance(body["message"], str)
        assert body["message"]
        return body["message"]

    return check
