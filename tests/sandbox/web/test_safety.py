"""Hostile and slow clients: rebound names, bodies and heads without end, paths that climb."""

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
from outbound_transfer_sandbox.service.sandbox import SandboxService
from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


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


def test_forms_are_bounded(sandbox: Sandbox) -> None:
    big = httpx.post(f"{sandbox.base_url}/sign-in", content=b"a=" + b"x" * 10_000_000, headers=FORM)
    assert big.status_code == 413
    many = httpx.post(f"{sandbox.base_url}/sign-in", content=b"a=1&" * 1000, headers=FORM)
    assert many.status_code == 400
    for kind in ("multipart/form-data; boundary=x", "application/json", "text/plain"):
        assert (
            httpx.post(f"{sandbox.base_url}/sign-in", content=b"{}", headers={"Content-Type": kind}).status_code == 400
        )


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: b"
BODY = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
BODY += b"Content-Length: 100\r\n\r\na"


@pytest.mark.parametrize(("sent", "answer"), [(HEAD, b""), (BODY, b"HTTP/1.1 408")], ids=["head", "body"])
def test_a_slow_client_is_cut_off(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(defaults, "HEAD_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(defaults, "BODY_TIMEOUT_SECONDS", 0.05)
    url = httpx.URL(sandbox.base_url)
    with socket.create_connection((url.host, url.port), timeout=TEST_TIMEOUT) as connection:
        connection.sendall(sent)
        assert connection.recv(65_536)[:12] == answer


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
