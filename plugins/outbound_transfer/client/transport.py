"""Sends one request over httpx and returns its raw response, without retries and without interpretation."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx

from outbound_transfer import __version__
from outbound_transfer.client.settings import Settings
from outbound_transfer.protocol.content_disposition import attachment
from outbound_transfer.protocol.errors import (
    CallError,
    ConnectionLost,
    InvalidSettings,
    MalformedResponse,
    NotConnected,
    TimedOut,
)
from outbound_transfer.protocol.messages import Call, Response
from outbound_transfer.protocol.redaction import redact

_HEADERS: Final = {
    "Accept": "application/json, application/x-ndjson",
    # Bodies are read as they are on the wire, so that a small response cannot decompress into a huge one.
    "Accept-Encoding": "identity",
    "User-Agent": f"airflow-provider-outbound-transfer/{__version__}",
}

_HTTP_ERRORS: Final = (httpx.TransportError, httpx.StreamError, httpx.InvalidURL)

#: A server of the other scheme refuses the TLS handshake, or responds with bytes that are not HTTP.
_ADDRESS_HINT: Final = "Are scheme (http or https), host and port of the Airflow connection right?"


def client_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
    return {
        "base_url": settings.base_url,
        "timeout": settings.timeout,
        "verify": settings.verify and _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        "headers": _HEADERS,
        # The service uses none (service-api.md, R6); one that a response sets would be sent with each later call.
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),
        "follow_redirects": False,
    }


@lru_cache(maxsize=1)
def _tls_context(*_environment: str | None) -> ssl.SSLContext:
    """Return what httpx makes for each client: to read the certificates takes longer than a call.

    :param _environment: what it depends on.
    """
    return httpx.create_ssl_context()


def send(client: httpx.Client, settings: Settings, call: Call[Any], secrets: Iterable[str] = ()) -> Response:
    """Make one attempt of a call.

    :param secrets: texts that no error may quote, besides the keys and the secrets of the call.
    :return: the response, whatever its status.
    :raises CallError: no complete response arrived, or it exceeds the call's limits.
    :raises InvalidSettings: the key or the address is unusable.
    """
    content = call.upload.body() if call.upload else call.body
    secrets_of_call = _secrets_of(settings, call, secrets)
    try:
        with client.stream(content=content, **_request(settings, call)) as http_response:
            _check_encoding(http_response)
            body = bytearray()
            for chunk in http_response.iter_raw():
                _append(body, chunk, call)
            return _to_response(http_response, body, secrets_of_call)
    except _HTTP_ERRORS as error:
        failure = _translate_error(call, error, settings, secrets_of_call)
    raise failure


async def send_async(
    client: httpx.AsyncClient, settings: Settings, call: Call[Any], secrets: Iterable[str] = ()
) -> Response:
    """Make one attempt of a call that uploads nothing, like :func:`send`, without blocking the event loop."""
    assert call.upload is None, "its source would block the event loop"
    secrets_of_call = _secrets_of(settings, call, secrets)
    try:
        async with client.stream(content=call.body, **_request(settings, call)) as http_response:
            _check_encoding(http_response)
            body = bytearray()
            async for chunk in http_response.aiter_raw():
                _append(body, chunk, call)
            return _to_response(http_response, body, secrets_of_call)
    except _HTTP_ERRORS as error:
        failure = _translate_error(call, error, settings, secrets_of_call)
    raise failure


def _secrets_of(settings: Settings, call: Call[Any], secrets: Iterable[str]) -> tuple[str, ...]:
    """Return what no error of a call may quote: both keys, as a peer may have seen either, and the secrets."""
    return (*filter(None, (settings.transfer_api_key, settings.event_api_key)), *call.secrets, *secrets)


def _request(settings: Settings, call: Call[Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {settings.key(call.api)}"}
    if call.upload:
        # Without a declared length httpx uses chunked encoding, which the service rejects (service-api.md, R30).
        headers["Content-Length"] = str(call.upload.size)
        headers["Content-Disposition"] = attachment(call.upload.name)
    elif call.body is not None:
        headers["Content-Type"] = "application/json"
    # A relative path keeps the path of the base URL.
    return {"method": call.method, "url": call.path.lstrip("/"), "params": dict(call.params), "headers": headers}


def _translate_error(
    call: Call[Any], error: Exception, settings: Settings, secrets: Iterable[str]
) -> CallError | InvalidSettings:
    """Return our error for one of the HTTP library.

    The caller raises it outside of its ``except`` block: logs show the context of an error too, and the library's
    errors quote the bytes of invalid responses.
    """
    operation, reason = call.operation.value, redact(f"{type(error).__name__} {error}", secrets)
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NotConnected(f"{operation}: no connection to {settings.origin}: {reason}. {_ADDRESS_HINT}")
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{operation}: {settings.origin} did not respond in time ({reason})")
    if isinstance(error, httpx.InvalidURL):
        return InvalidSettings(f"the connection's address is unusable: {reason}")
    hint = f". {_ADDRESS_HINT}" if isinstance(error, httpx.RemoteProtocolError) else ""
    return ConnectionLost(f"{operation}: the connection to {settings.origin} broke: {reason}{hint}")


def _check_encoding(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise MalformedResponse("the response is compressed, although no compression was requested")


def _append(body: bytearray, chunk: bytes, call: Call[Any]) -> None:
    body += chunk
    if len(body) > call.max_response_bytes:
        raise MalformedResponse(f"{call.operation.value}: the response is over {call.max_response_bytes:,} bytes")


def _to_response(response: httpx.Response, body: bytearray, secrets: tuple[str, ...]) -> Response:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status_code, headers, bytes(body), secrets=secrets)
