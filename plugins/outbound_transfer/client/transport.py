"""One attempt of one call over httpx: the request, and its response or error."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec

from outbound_transfer import __version__
from outbound_transfer.client.content_disposition import attachment
from outbound_transfer.client.errors import (
    CODES,
    CallError,
    InvalidSettings,
    MalformedResponse,
    NoResponse,
    NotConnected,
    error_of,
)
from outbound_transfer.client.retry import parse_retry_after
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.wording import redact

if TYPE_CHECKING:
    from outbound_transfer.client.models import Upload

T = TypeVar("T")

#: Maximum size of a response body, unless the request sets another.
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024

_HEADERS: Final = {
    "Accept": "application/json, application/x-ndjson",
    # Bodies are read as they are on the wire, so that a small response cannot decompress into a huge one.
    "Accept-Encoding": "identity",
    "User-Agent": f"airflow-provider-outbound-transfer/{__version__}",
}

#: Variables of the environment that name certificates.
_TLS_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")

#: Raised by msgspec for unexpected bytes or JSON, and for JSON that is nested too deeply.
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: Statuses with far-reaching conclusions: the key is rejected, the transfer is missing, the send was already applied.
#: The service adds an error object to every error (service-api.md, R15); without it, a proxy or gateway has responded.
_CONCLUSIVE_STATUSES: Final = frozenset(range(400, 500)) - {400, 411, 413, 429}

#: A server of the other scheme refuses the TLS handshake, or responds with bytes that are not HTTP.
_ADDRESS_HINT: Final = "Are scheme (http or https), host and port of the Airflow connection right?"


@dataclass(frozen=True)
class Request:
    """One request.

    :ivar operation: the endpoint's name, as in metrics and logs.
    :ivar path: below the connection's address; starts with ``/v1``.
    :ivar is_feed: whether it is one of the event feed, which has a key of its own (service-api.md, R9).
    :ivar max_bytes: a larger response raises :class:`.MalformedResponse`.
    """

    operation: str
    method: str
    path: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    upload: Upload | None = None
    is_feed: bool = False
    max_bytes: int = MAX_RESPONSE_BYTES


class Response(NamedTuple):
    """An HTTP response. ``headers`` are found by name in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


#: Surrounds each attempt; within it, the status is passed to what it yields, once a complete response arrived.
AttemptHook: TypeAlias = Callable[[Request], AbstractContextManager[Callable[[int], object]]]


def open_client(settings: Settings) -> httpx.Client:
    """Return an HTTP client for the account; no connection is made yet.

    :raises InvalidSettings: a variable of the environment is unusable.
    """
    url = httpx.URL(settings.base_url)
    try:
        verify = settings.verify and url.scheme != "http" and _tls_context(*map(os.environ.get, _TLS_VARIABLES))
    except OSError as error:
        variable = next(filter(os.environ.get, _TLS_VARIABLES), _TLS_VARIABLES[0])
        raise InvalidSettings(
            f"the environment variable {variable} names certificates that cannot be read: {error.strerror or error}"
        ) from None
    proxies = {} if proxy_bypass(url.netloc.decode()) else getproxies()
    proxy = proxies.get(url.scheme, proxies.get("all"))
    try:
        return httpx.Client(
            base_url=url,
            timeout=settings.timeout,
            verify=verify,
            headers=_HEADERS,
            # The service uses none (service-api.md, R6); one that a response sets would be sent with each later call.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            proxy=proxy if proxy is None or "://" in proxy else f"http://{proxy}",
            # httpx refuses a NO_PROXY with ranges of IPv6, and proxies of other schemes that it has no package for.
            trust_env=False,
        )
    except (ValueError, ImportError, httpx.InvalidURL):
        raise InvalidSettings(
            "a proxy variable of the environment (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) is no address of a proxy, such "
            "as http://proxy.example.com:3128"
        ) from None


@lru_cache(maxsize=1)
def _tls_context(*_environment: str | None) -> ssl.SSLContext:
    """Return what all clients of a process share: to load the certificates takes longer than a call.

    :param _environment: the variables that it depends on.
    """
    return httpx.create_ssl_context()


def send(
    client: httpx.Client, settings: Settings, request: Request, on_attempt: AttemptHook, secrets: Iterable[str]
) -> Response:
    """Make one attempt of a call.

    :param secrets: texts that no error may quote.
    :return: the response, whatever its status.
    :raises CallError: no complete response arrived, or it exceeds the limits.
    :raises InvalidSettings: the key is unusable.
    """
    upload = request.upload
    headers = {"Authorization": f"Bearer {settings.key(is_feed=request.is_feed)}"}
    if upload:
        # Without a declared length httpx uses chunked encoding, which the service rejects (service-api.md, R30).
        headers |= {"Content-Length": str(upload.size), "Content-Disposition": attachment(upload.name)}
    elif request.body is not None:
        headers["Content-Type"] = "application/json"
    content, path = upload.chunks() if upload else request.body, request.path.lstrip("/")  # below the base URL's path
    call = client.stream(request.method, path, params=request.params, headers=headers, content=content)
    with on_attempt(request) as respond:
        try:
            with call as response:
                body = _read(response, request)
            respond(response.status_code)
            return Response(response.status_code, response.headers, body)
        except (httpx.TransportError, httpx.StreamError) as error:
            failure = _failure(request, error, settings, secrets)
        # Not within the block above: logs show the context of an error too, and the library's quote invalid responses.
        raise failure


def _read(response: httpx.Response, request: Request) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise MalformedResponse("the response is compressed, although no compression was requested")
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > request.max_bytes:
            raise MalformedResponse(f"{request.operation}: the response is over {request.max_bytes:,} bytes")
    return bytes(body)


def _failure(request: Request, error: Exception, settings: Settings, secrets: Iterable[str]) -> CallError:
    operation, origin = request.operation, settings.origin
    reason = redact(f"{type(error).__name__} {error}", secrets)
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout():
            return NotConnected(f"{operation}: no connection to {origin}: {reason}. {_ADDRESS_HINT}")
        case httpx.TimeoutException():
            return NoResponse(f"{operation}: {origin} did not respond in time ({reason})")
    hint = f". {_ADDRESS_HINT}" if isinstance(error, httpx.RemoteProtocolError) else ""
    return NoResponse(f"{operation}: the connection to {origin} broke: {reason}{hint}")


def decode_response(request: Request, response: Response, decode: Callable[[Response], T], secrets: Iterable[str]) -> T:
    """Return the result of a call.

    :raises ServiceError: an error response, as the class of its code and status (service-api.md, R48).
    :raises MalformedResponse: a successful status with an undocumented body or headers.
    """
    if not 200 <= response.status < 300:
        raise _error_from(request, response, secrets)
    try:
        return decode(response)
    except MalformedResponse as error:
        failure = error
    except _DECODE_ERRORS as error:
        failure = MalformedResponse(f"{request.operation}: the response is not as documented: {error}")
    failure.__context__ = None  # the original error holds bytes of the response
    raise failure


class _ErrorObject(msgspec.Struct):
    error: str = ""
    message: str | None = None


def _error_from(request: Request, response: Response, secrets: Iterable[str]) -> CallError:
    """Return the error for an unsuccessful response. Its texts are untrusted, so they are shortened and redacted."""
    status, headers = response.status, response.headers
    if status // 100 == 3:
        return MalformedResponse(
            f"{request.operation}: redirects (status {status}) are not followed, "
            "because the key must not leave the connection's own address. Check the connection's host."
        )
    try:
        payload = msgspec.json.decode(response.body, type=_ErrorObject)
    except _DECODE_ERRORS:
        payload = _ErrorObject()  # errors of the feed have no documented body (R49), and proxies respond with HTML
    is_of_a_proxy = not payload.error and not request.is_feed
    if is_of_a_proxy and status in _CONCLUSIVE_STATUSES:
        return MalformedResponse(
            f"{request.operation}: status {status} without the service's error object: "
            "a proxy or gateway responded in its place. Check the connection's host and the proxies on the way."
        )
    # A documented code stays, even if a word of it equals a secret.
    code = payload.error if payload.error in CODES else redact(payload.error, secrets)
    message = redact(payload.message or "", secrets)
    if request.upload:
        message = f"{request.upload.name!r}: {message}"
    elif status == 404:  # its advice is about the id
        transfer_id = redact(unquote("".join(request.path.split("/")[3:4])), secrets)
        message = f"transfer '{transfer_id}': {message or 'the service gave no message'}"
    error = error_of(status, code, message, parse_retry_after(headers.get("retry-after"), date=headers.get("date")))
    error.in_doubt |= is_of_a_proxy  # which cannot know whether the service applied the call
    return error
