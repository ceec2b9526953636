"""Hostile and slow clients: rebound names, bodies and heads without end, paths that climb, a disk that fills."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import Clock
from outbound_transfer_sandbox.server.app import create_app
from outbound_transfer_sandbox.service import passwords
from outbound_transfer_sandbox.service.sandbox import SandboxService
from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT

QUOTA = 1_048_576
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def connect(sandbox: Sandbox) -> socket.socket:
    url = httpx.URL(sandbox.base_url)
    return socket.create_connection((url.host, url.port), timeout=TEST_TIMEOUT)


def until_closed(connection: socket.socket) -> bytes:
    """All that comes before the other side closes or resets."""
    data = b""
    try:
        while chunk := connection.recv(65_536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("path", ["/sign-in", "/transfers", "/pickup/x", "/pickup/x/files/y"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8085", "127.0.0.1.evil.example", "[::1", ""])
def test_a_rebound_name_gets_nothing(sandbox: Sandbox, path: str, host: str) -> None:
    answer = httpx.get(sandbox.base_url + path, headers={"Host": host})
    assert answer.status_code in {400, 421}
    assert "set-cookie" not in answer.headers
    assert httpx.get(f"{sandbox.base_url}/_sandbox/state", headers={"Host": host}).status_code in {400, 403}


async def test_trusted_names(tmp_path: Path) -> None:
    with closing(SandboxService(tmp_path)) as service:
        transport = httpx.ASGITransport(create_app(service, ["Sandbox.internal"]), client=("192.0.2.9", 5))
        async with httpx.AsyncClient(transport=_with_state(transport)) as http:
            for name, status in [("sandbox.internal", 200), ("192.0.2.1:8085", 200), ("other.internal", 421)]:
                assert (await http.get(f"http://{name}/sign-in")).status_code == status
            assert (await http.get("http://192.0.2.1/_sandbox/state")).status_code == 403


def _with_state(transport: httpx.ASGITransport) -> httpx.ASGITransport:
    """As a server calls the application: with a state of each request's own."""
    app = transport.app

    async def stated(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {}}, receive, send)

    transport.app = stated
    return transport


@pytest.mark.parametrize(
    "path",
    ["/static/../pages.py", "/static/..%2fpages.py", "/static/%2e%2e/guard.py", "/static//etc/passwd", "/static/"],
)
def test_static_files_are_in_their_folder(sandbox: Sandbox, path: str) -> None:
    with connect(sandbox) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert until_closed(connection).startswith((b"HTTP/1.1 404", b"HTTP/1.1 401"))


def test_forms_are_bounded(sandbox: Sandbox) -> None:
    big = httpx.post(f"{sandbox.base_url}/sign-in", content=b"a=" + b"x" * 10_000_000, headers=FORM)
    assert big.status_code == 413
    many = httpx.post(f"{sandbox.base_url}/sign-in", content=b"a=1&" * 1000, headers=FORM)
    assert many.status_code == 400
    for kind in ("multipart/form-data; boundary=x", "application/json", "text/plain"):
        assert (
            httpx.post(f"{sandbox.base_url}/sign-in", content=b"{}", headers={"Content-Type": kind}).status_code == 400
        )


@pytest.mark.parametrize(
    ("path", "kind"), [("/sign-in", "application/x-www-form-urlencoded"), ("/v1/transfers", "application/json")]
)
def test_a_slow_body_is_cut_off(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, path: str, kind: str) -> None:
    monkeypatch.setattr(defaults, "BODY_TIMEOUT_SECONDS", 0.05)
    with connect(sandbox) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {sandbox.transfer_api_key}\r\n"
        connection.sendall(f"{head}Content-Type: {kind}\r\nContent-Length: 100\r\n\r\na".encode())
        assert until_closed(connection).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: b"])
def test_a_slow_head_is_cut_off(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(defaults, "HEAD_TIMEOUT_SECONDS", 0.05)
    with connect(sandbox) as connection:
        connection.sendall(sent)
        assert until_closed(connection) == b""


def api(service: SandboxService) -> httpx.AsyncClient:
    key, _ = service.ensure_keys("a-key", None)
    transport = _with_state(httpx.ASGITransport(create_app(service)))
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


async def attach(http: httpx.AsyncClient, draft: str, name: str, size: int) -> httpx.Response:
    headers = {"Content-Disposition": f"attachment; filename={name}"}
    return await http.post(f"{draft}/files", content=b"x" * size, headers=headers)


async def new_draft(http: httpx.AsyncClient) -> str:
    body = {"subject": "x", "recipients": [{"email": "ann@example.com"}]}
    return (await http.post("/v1/transfers", json=body)).headers["Location"]


async def test_the_quota(tmp_path: Path) -> None:
    with closing(SandboxService(tmp_path, quota=QUOTA)) as service:
        async with api(service) as http:
            draft = await new_draft(http)
            half = (QUOTA * 3 // 4 - service.context.db.size()) // 2
            first = await attach(http, draft, "a", half)
            assert first.status_code == 201
            full = await attach(http, draft, "b", half)
            assert (full.status_code, full.json()["error"]) == (503, "service_unavailable")
            assert (await attach(http, draft, "a", half)).status_code == 200
            assert (await attach(http, draft, "b", half // 2)).status_code == 201
            assert (await http.delete(first.headers["Location"])).status_code == 204
            assert (await attach(http, draft, "c", half)).status_code == 201
    with closing(SandboxService(tmp_path, quota=QUOTA)) as service:
        assert half * 1.5 <= service.context.blobs.used < half * 1.5 + 10_000
        async with api(service) as http:
            assert (await http.delete(draft)).status_code == 204
            assert (await attach(http, await new_draft(http), "a", half + half // 2)).status_code == 201


def test_passwords() -> None:
    kept = passwords.hash_secret("wörd")
    assert kept != passwords.hash_secret("wörd")
    assert passwords.verify_secret("wörd", kept)
    assert not passwords.verify_secret("word", kept)
    assert not passwords.verify_secret("wörd", None)
    assert not passwords.verify_secret("", None)
    assert passwords.normalize_answer("  In\tLISBON ") == "in lisbon"


def test_a_session_lasts_twelve_hours_of_real_time(tmp_path: Path) -> None:
    time = [1_000_000.0]
    with closing(SandboxService(tmp_path)) as service:
        service.context.clock = Clock(0, lambda: time[0])
        assert service.users.ensure_users("secret") == "secret"
        token = service.users.sign_in(defaults.FIRST_ADMINISTRATOR, "secret")
        time[0] += 12 * 3600
        assert service.users.find_signed_in(token).administrator
        time[0] += 1
        assert service.users.find_signed_in(token) is None
