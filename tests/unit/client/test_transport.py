"""One request over a real socket: what goes out, what comes back, and what every kind of breakage becomes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from outbound_transfer.client import AsyncClient, Client, Settings
from outbound_transfer.protocol import endpoints, errors
from support.raw_server import GET, ONCE, TRANSFER, answer, ask, both, header, saying, serving
from support.timeouts import TEST_TIMEOUT

# ---------------------------------------------------------------------------------------------------------- goes out


@both
@pytest.mark.parametrize(("path", "asked"), [("", "/v1"), ("/", "/v1"), ("/api", "/api/v1"), ("/a%20b/", "/a%20b/v1")])
def test_a_request_goes_below_the_address_with_the_key(kind: type, path: str, asked: str) -> None:
    with serving(saying(answer(b'{"id": "a/b", "status": "draft", "subject": "S"}'))) as server:
        ask(kind, server.url(path=path), endpoints.get_transfer("a/b"))
    (request,) = server.requests
    assert request.startswith(f"GET {asked}/transfers/a%2Fb HTTP/1.1\r\n".encode())
    assert header(request, "Authorization") == "Bearer obt_k"
    assert header(request, "Accept-Encoding") == "identity"
    assert "airflow-provider-outbound-transfer" in (header(request, "User-Agent") or "")


@both
def test_the_feed_has_a_key_of_its_own(kind: type) -> None:
    page = answer(b"", "200 OK", "Content-Type: application/x-ndjson", "X-Next-Cursor: 0", "X-Has-More: false")
    with serving(saying(page)) as server:
        ask(kind, server.url(), endpoints.read_events())
    assert header(server.requests[0], "Authorization") == "Bearer obs_k"


@both
def test_an_ipv6_address(kind: type) -> None:
    with serving(saying(answer()), host="::1") as server:
        assert ask(kind, server.url()).id == "t"


@both
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_is_not_followed_and_the_key_stays_here(kind: type, status: str) -> None:
    with serving(saying(answer())) as elsewhere:
        redirect = answer(b"", status, f"Location: {elsewhere.url()}v1/transfers/t")
        with serving(saying(redirect)) as server, pytest.raises(errors.MalformedResponse, match="not followed"):
            ask(kind, server.url())
    assert len(server.requests) == 1
    assert elsewhere.requests == []


@both
@pytest.mark.parametrize("key", ["", "a b", "a\nb", "a\r\nX-Injected: 1", "schlüssel", "\0"])
def test_an_invalid_key_is_not_sent_and_not_quoted(kind: type, key: str) -> None:
    with serving(saying(answer())) as server, pytest.raises(ValueError, match="password") as refused:
        ask(kind, server.url(), transfer_api_key=key)
    assert server.requests == []
    assert not key or key not in str(refused.value)


# --------------------------------------------------------------------------------------------------------- comes back


@both
@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "GZIP", "identity, gzip"])
def test_a_compressed_response_is_rejected(kind: type, encoding: str) -> None:
    compressed = answer(b"\x1f\x8b", "200 OK", f"Content-Encoding: {encoding}")
    with serving(saying(compressed)) as server, pytest.raises(errors.MalformedResponse, match="compressed"):
        ask(kind, server.url())


@both
@pytest.mark.parametrize("chunked", [False, True])
def test_an_endless_response_is_not_read_completely(kind: type, chunked: bool) -> None:
    sent = 0

    def endless(stream: socket.socket, request: bytes) -> None:
        nonlocal sent
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {1 << 40}"
        stream.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        piece = b"x" * 65_536
        while sent < 64_000_000:  # without end for who does not stop reading
            stream.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
            sent += len(piece)

    with serving(endless) as server, pytest.raises(errors.MalformedResponse, match="over 100,000 bytes"):
        ask(kind, server.url(), replace(GET, max_response_bytes=100_000))
    assert sent < 20_000_000


BROKEN = {
    "closed at once": b"",
    "cut in the status": b"HTTP/1.1 20",
    "cut in the headers": b"HTTP/1.1 200 OK\r\nContent-",
    "cut in the body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "cut in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no HTTP and long": b"\x00" * 50_000 + b"\r\n\r\n",
}


@both
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_response_is_a_lost_connection(kind: type, case: str) -> None:
    with serving(saying(BROKEN[case])) as server, pytest.raises(errors.ConnectionLost) as lost:
        ask(kind, server.url())
    assert lost.value.in_doubt
    assert len(str(lost.value)) < 700


@both
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_a_reset_is_a_lost_connection(kind: type, said: bytes) -> None:
    def reset(stream: socket.socket, request: bytes) -> None:
        stream.sendall(said)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stream.close()

    with serving(reset) as server, pytest.raises(errors.ConnectionLost):
        ask(kind, server.url())


@both
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_silence_is_a_timeout(kind: type, said: bytes) -> None:
    done = threading.Event()

    def silent(stream: socket.socket, request: bytes) -> None:
        stream.sendall(said)
        done.wait(TEST_TIMEOUT)

    with serving(silent) as server:
        try:
            with pytest.raises(errors.TimedOut):
                ask(kind, server.url(), timeout=0.2)
        finally:
            done.set()


@both
def test_an_unreachable_service_is_not_connected(kind: type) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(errors.NotConnected) as error:
        ask(kind, f"http://127.0.0.1:{port}/")
    assert not error.value.in_doubt
    assert f"no connection to http://127.0.0.1:{port}: " in str(error.value)
    assert "http or https" in str(error.value)


@both
def test_https_where_the_service_speaks_http_is_named(kind: type) -> None:
    with serving(saying(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")) as server:
        address = server.url().replace("http://", "https://").rstrip("/")
        with pytest.raises(errors.NotConnected) as error:
            ask(kind, f"{address}/v1-of-nobody/")
    assert f"no connection to {address}: " in str(error.value)
    assert "http or https" in str(error.value)
    assert "nobody" not in str(error.value)


@both
@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (httpx.ConnectError("x"), errors.NotConnected),
        (httpx.ConnectTimeout("x"), errors.NotConnected),
        (httpx.PoolTimeout("x"), errors.NotConnected),
        (httpx.ReadTimeout("x"), errors.TimedOut),
        (httpx.WriteTimeout("x"), errors.TimedOut),
        (httpx.ReadError("x"), errors.ConnectionLost),
        (httpx.WriteError("x"), errors.ConnectionLost),
        (httpx.CloseError("x"), errors.ConnectionLost),
        (httpx.RemoteProtocolError("x"), errors.ConnectionLost),
        (httpx.LocalProtocolError("x"), errors.ConnectionLost),
        (httpx.ProxyError("x"), errors.ConnectionLost),
        (httpx.UnsupportedProtocol("x"), errors.ConnectionLost),
        (httpx.StreamConsumed(), errors.ConnectionLost),
        (httpx.InvalidURL("x"), ValueError),
        (errors.SourceChanged("x"), errors.SourceChanged),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_error_of_the_library_has_its_class(
    monkeypatch: pytest.MonkeyPatch, kind: type, raised: Exception, becomes: type[Exception]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise raised

    monkeypatch.setattr(httpx.Client if kind is Client else httpx.AsyncClient, "stream", refuse)
    with pytest.raises(becomes) as error:
        ask(kind, "http://127.0.0.1:9/")
    assert type(error.value) is becomes or becomes is ValueError


# ---------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's context with a certificate that nobody vouches for."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    file: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *private) + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@both
def test_a_certificate_is_checked_unless_the_connection_says_otherwise(kind: type, tls: ssl.SSLContext) -> None:
    with serving(saying(answer()), tls=tls) as server:
        with pytest.raises(errors.NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
            ask(kind, server.url("https"))
        assert server.requests == [], "no key was sent"
        assert ask(kind, server.url("https"), verify=False).id == "t"


@pytest.mark.parametrize("cookie", ["session=1", "secret=京"])
def test_a_cookie_is_neither_kept_nor_sent_again(cookie: str) -> None:
    with serving(saying(answer(TRANSFER, "200 OK", f"Set-Cookie: {cookie}", "Connection: close"))) as server:
        settings = Settings(server.url(), "obt_k", timeout=5.0)
        with Client(settings, policy=ONCE) as client:
            client.perform(GET)
            client.perform(GET)

        async def perform() -> None:
            async with AsyncClient(settings, policy=ONCE) as client:
                await client.perform(GET)
                await client.perform(GET)

        asyncio.run(perform())
    assert len(server.requests) == 4
    assert not any(header(request, "Cookie") for request in server.requests)
