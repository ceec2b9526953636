"""Where requests go, and where a key never goes."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outbound_transfer.exceptions import InvalidDelivery, InvalidSettings, MalformedResponse, NotConnected
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from support.raw_server import header, serving
from support.wire import EVENT_KEY, TRANSFER_KEY, Wire, refusal, said, transfer

PAGE = said(b"", "200 OK", "Content-Type: application/x-ndjson", "X-Next-Cursor: 0", "X-Has-More: false")


def test_each_interface_gets_its_own_key_and_no_other(wire: Callable[..., Wire]) -> None:
    service = wire(transfer(), PAGE)
    service.hook.get_transfer("t")
    service.hook.read_events()
    keys = [header(request, "Authorization") for request in service.server.requests]
    assert keys == [f"Bearer {TRANSFER_KEY}", f"Bearer {EVENT_KEY}"]
    assert "airflow-provider-outbound-transfer" in (header(service.server.requests[0], "User-Agent") or "")


def test_a_service_with_an_ipv6_address_is_reached(wire: Callable[..., Wire]) -> None:
    assert wire(transfer(), host="::1").hook.get_transfer("t").id == "t"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_takes_the_key_nowhere(wire: Callable[..., Wire], status: str) -> None:
    with serving(lambda stream, _: stream.sendall(transfer())) as elsewhere:
        service = wire(said(b"", status, f"Location: {elsewhere.url()}v1/transfers/t"))
        with pytest.raises(MalformedResponse, match="not followed"):
            service.hook.get_transfer("t")
    assert elsewhere.requests == []


@pytest.mark.parametrize("cookie", ["session=1; Path=/", "secret=京"])
def test_a_cookie_is_not_sent_back(wire: Callable[..., Wire], cookie: str) -> None:
    service = wire(said({"id": "t", "status": "draft", "subject": "S"}, "200 OK", f"Set-Cookie: {cookie}"))
    for _ in range(2):
        service.hook.get_transfer("t")
    assert [header(request, "Cookie") for request in service.server.requests] == [None, None]


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "a\r\nX-Injected: 1", "schlüssel", "\0"])
def test_an_invalid_key_is_neither_sent_nor_shown(wire: Callable[..., Wire], key: str) -> None:
    service = wire(transfer(), password=key)
    with pytest.raises(InvalidSettings, match="password") as refused:
        service.hook.get_transfer("t")
    assert service.server.requests == []
    assert not key or key not in str(refused.value)


def test_https_to_a_service_that_speaks_http_asks_for_the_scheme(wire: Callable[..., Wire]) -> None:
    with pytest.raises(NotConnected, match="http or https"):
        wire(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", scheme="https").hook.get_transfer("t")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that only a company of its own vouches for."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private) + signed)
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_an_unknown_certificate_gets_no_key_unless_the_connection_allows_it(wire, tls) -> None:
    service = wire(transfer(), tls=tls)
    with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
        service.hook.get_transfer("t")
    assert service.server.requests == []
    assert wire(transfer(), tls=tls, verify=False).hook.get_transfer("t").id == "t"


def test_the_certificates_of_a_company_are_trusted_by_their_file(wire, tls, certificate, connect, monkeypatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    service = wire(transfer(), tls=tls)
    connect(service.server.url("https").replace("127.0.0.1", "localhost"))
    assert service.hook.get_transfer("t").id == "t"


def test_a_proxy_of_the_environment_is_used(wire, connect, monkeypatch) -> None:
    proxy = wire(transfer())
    monkeypatch.setenv("HTTP_PROXY", proxy.server.url())
    connect("http://transfers.example.com")
    assert proxy.hook.get_transfer("t").id == "t"
    assert proxy.lines == ["GET http://transfers.example.com/v1/transfers/t HTTP/1.1"]


BY_ID: dict[str, Callable[[OutboundTransferHook, Any], object]] = {
    "get": lambda hook, given: hook.get_transfer(given),
    "list files": lambda hook, given: hook.list_files(given),
    "get file": lambda hook, given: hook.get_file("t", given),
    "remove": lambda hook, given: hook.remove_file("t", given),
    "discard": lambda hook, given: hook.discard_transfer(given),
    "send": lambda hook, given: hook.send_transfer(given),
}


@pytest.mark.parametrize("method", BY_ID)
@pytest.mark.parametrize("wrong", ["", ".", "..", "...", None, 7, b"t", "\ud800"], ids=repr)
def test_an_invalid_id_sends_no_request(wire: Callable[..., Wire], method: str, wrong: Any) -> None:
    service = wire(transfer())
    with pytest.raises(InvalidDelivery, match="not an id"):
        BY_ID[method](service.hook, wrong)
    assert service.server.requests == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
@example("../keys?a#b")
@example("a/b\\c d\r\nX-Injected: 1")
def test_no_id_leads_to_another_path(wire: Callable[..., Wire], some_id: str) -> None:
    service = wire(refusal(400, "invalid_request"))
    with pytest.raises(Exception, match="not an id|invalid_request"):
        service.hook.get_file(some_id, some_id)
    for line in service.lines:
        method, path, _ = line.split(" ")
        assert (method, path.split("/")[:3], path.split("/")[4:5]) == ("GET", ["", "v1", "transfers"], ["files"])
        assert path.count("/") == 5
        assert not {"?", "#", "\\"} & set(path)
