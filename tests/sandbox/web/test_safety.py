"""Hostile and slow clients: rebound names, bodies and heads without end, paths that climb, a disk that fills."""

from __future__ import annotations

import base64
import hashlib
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.domain import defaults, host_checks
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


@pytest.mark.parametrize(
    ("name", "loopback", "rebindable"),
    [
        ("localhost", True, False),
        ("127.0.0.1", True, False),
        ("127.8.8.8", True, False),
        ("::1", True, False),
        ("::ffff:127.0.0.1", True, False),
        ("192.0.2.7", False, False),
        ("2001:db8::1", False, False),
        ("evil.example", False, True),
        ("localhost.evil.example", False, True),
        ("127.0.0.1.evil.example", False, True),
        ("", False, True),
        (None, False, True),
    ],
)
def test_hosts(name: str | None, loopback: bool, rebindable: bool) -> None:
    assert host_checks.is_loopback(name) is loopback
    assert host_checks.is_rebindable(name) is rebindable


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


def test_a_range_of_many_pieces_is_not_looked_at(sandbox: Sandbox) -> None:
    url = f"{sandbox.base_url}/static/app.css"
    assert httpx.get(url, headers={"Range": "bytes=0-9"}).status_code == 206
    whole = httpx.get(url, headers={"Range": "bytes=" + ",".join(f"{n}-{n}" for n in range(0, 90, 2))})
    assert (whole.status_code, len(whole.content)) == (200, int(whole.headers["content-length"]))


def test_forms_are_bounded(sandbox: Sandbox) -> None:
    big = httpx.post(f"{sandbox.base_url}/sign-in", content=b"a=" + b"x" * 10_000_000, headers=FORM)
    assert big.status_code == 413
    many = httpx.post(f"{sandbox.base_url}/sign-in", content=b"a=1&" * 1000, headers=FORM)
    assert many.status_code == 400
    for kind in ("multipart/form-data; boundary=x", "application/json", "text/plain"):
        assert (
            httpx.post(f"{sandbox.base_url}/sign-in", content=b"{}", headers={"Content-Type": kind}).status_code == 400
        )


@pytest.mark.parametrize("body", [b"\xff\xfe=\xff", b"%ff%fe=%ff", b"user=%00&password=%00", b"%ud800=%ed%a0%80"])
def test_any_bytes_are_answered(user: Any, body: bytes) -> None:
    for path in ("/sign-in", "/profile/integrations/api-keys"):
        content = b"csrf=" + user.csrf(path).encode() + b"&label=" + body + b"&user=" + body + b"&" + body
        assert user.http.post(path, content=content, headers=FORM).status_code in {200, 403}


@pytest.mark.parametrize("value", [b"\xff", b'"a\\015\\012X-A: b"', b"=", b"x" * 60_000, b"a\tb"])
def test_a_strange_cookie_is_not_sent_back(sandbox: Sandbox, value: bytes) -> None:
    page = f"{sandbox.base_url}/sign-in"
    name = next(iter(httpx.get(page).cookies)).encode()
    answer = httpx.get(page, headers=[(b"Cookie", name + b"=" + value)])
    assert answer.status_code == 200
    assert "x-a" not in answer.headers
    assert len(next(iter(answer.cookies.values()))) == 43


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


def test_a_slow_head_on_a_kept_connection(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(sandbox) as connection:
        connection.sendall(b"GET /sign-in HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(10) == b"HTTP/1.1 2"
        monkeypatch.setattr(defaults, "HEAD_TIMEOUT_SECONDS", 0.05)
        connection.sendall(b"GET /sign-in HTTP/1.1\r\n")
        assert until_closed(connection).count(b"HTTP/1.1") == 0


def test_a_long_head_is_refused(sandbox: Sandbox) -> None:
    with connect(sandbox) as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
            for _ in range(500):
                connection.sendall(b"b" * 10_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            assert until_closed(connection).startswith(b"HTTP/1.1 431")


def test_a_reader_that_stalls_is_cut_off(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, send: Any, links: Any, browser: Any
) -> None:
    monkeypatch.setattr(defaults, "WRITE_STALL_SECONDS", 0)
    send((("big.bin", b"x" * 50_000_000),))
    page = browser().get(links()["ann@example.com"]).text
    path = page.split('<a class="button quiet" href="')[1].split('"')[0]
    with connect(sandbox) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert 0 < len(until_closed(connection)) < 50_000_000


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


def test_an_upload_that_breaks_off_frees_its_space(tmp_path: Path) -> None:
    with closing(SandboxService(tmp_path, quota=QUOTA)) as service:
        upload = service.context.blobs.start_upload(7000)
        upload.write([b"x"])
        assert service.context.blobs.used == 8192
        upload.discard()
        upload.discard()
        assert service.context.blobs.used == 0


def test_passwords() -> None:
    kept = passwords.hash_secret("wörd")
    assert kept != passwords.hash_secret("wörd")
    assert passwords.verify_secret("wörd", kept)
    assert not passwords.verify_secret("word", kept)
    assert not passwords.verify_secret("wörd", None)
    assert not passwords.verify_secret("", None)
    assert passwords.normalize_answer("  In\tLISBON ") == "in lisbon"


def test_passwords_are_costly() -> None:
    """scrypt, as its own document tells: the cost is what `unspecified` says, beside the hash."""
    log_n, salt, digest = passwords.hash_secret("word").split("$")
    again = hashlib.scrypt(b"word", salt=base64.b64decode(salt), n=1 << int(log_n), r=8, p=1, dklen=32)
    assert base64.b64decode(digest) == again


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


def test_the_first_password(tmp_path: Path) -> None:
    with closing(SandboxService(tmp_path)) as service:
        generated = service.users.ensure_users(None)
        assert len(generated) == 20
    with closing(SandboxService(tmp_path)) as service:
        assert service.users.ensure_users(None) == generated
        assert service.users.ensure_users("given") == "given"
        assert service.users.ensure_users(None) is None
        service.users.sign_in(defaults.FIRST_USER, "given")


def test_a_reset_lets_the_same_people_in(tmp_path: Path) -> None:
    with closing(SandboxService(tmp_path)) as service:
        service.ensure_keys(None, None)
        password = service.ensure_users(None)
        service.reset()
        assert service.users.sign_in(defaults.FIRST_ADMINISTRATOR, password)
