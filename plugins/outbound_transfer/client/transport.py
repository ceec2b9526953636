"""One attempt of one call over httpx: the request, and its response or error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

import httpx
import msgspec

from outbound_transfer.client import errors
from outbound_transfer.client.errors import CallError, MalformedResponse
from outbound_transfer.client.models import Upload
from outbound_transfer.client.new_transfer import attachment
from outbound_transfer.client.settings import Settings
from outbound_transfer.wording import redact

T = TypeVar("T")

#: Raised by msgspec for unexpected bytes or JSON, and for JSON that is nested too deeply.
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: Statuses with far-reaching conclusions: the key is rejected, the transfer is missing, the send was already applied.
#: The service adds an error object to every error (service-api.md, R15); without it, a proxy or gateway has responded.
_CONCLUSIVE_STATUSES: Final = frozenset(range(400, 500)) - {400, 411, 413, 429}

_ADDRESS_HINT: Final = "Check the scheme (http or https), host and port of the Airflow connection."


@dataclass(frozen=True)
class Request:
    """One request: ``operation`` is its name in metrics and logs, ``max_bytes`` the largest response to read."""

    operation: str
    method: str
    path: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    upload: Upload | None = None
    is_feed: bool = False
    max_bytes: int = 16 * 1024 * 1024


class Response(NamedTuple):
    """An HTTP response. Look up ``headers`` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


#: Surrounds each attempt; within it, the status is passed to what it yields, once a complete response arrived.
AttemptHook: TypeAlias = Callable[[Request], AbstractContextManager[Callable[[int], object]]]


def send(
    client: httpx.Client, settings: Settings, request: Request, on_attempt: AttemptHook, secrets: Iterable[str]
) -> Response:
    """Make one attempt of a call; return the response, whatever its status.

    :param secrets: strings that no error may quote.
    :raises CallError: no complete response arrived, or it exceeds the limits.
    :raises InvalidSettings: the key is unusable.
    """
    upload, path = request.upload, request.path.lstrip("/")  # below the base URL's path
    headers = {"Authorization": f"Bearer {settings.key(is_feed=request.is_feed)}"}
    if upload:
        # Without a declared length httpx uses chunked encoding, which the service rejects (service-api.md, R30).
        headers |= {"Content-Length": str(upload.size), "Content-Disposition": attachment(upload.name)}
    elif request.body is not None:
        headers["Content-Type"] = "application/json"
    content = upload.chunks() if upload else request.body
    call = client.stream(request.method, path, params=request.params, headers=headers, content=content)
    with on_attempt(request) as respond:
        try:
            with call as response:
                body = _read(response, request)
            respond(response.status_code)
            return Response(response.status_code, response.headers, body)
        except (httpx.TransportError, httpx.StreamError) as error:
            failure = _failure(request.operation, error, settings.origin, secrets)
        # Not within the block above: logs show an error's context, and the library's errors quote invalid responses.
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


def _failure(operation: str, error: Exception, origin: str, secrets: Iterable[str]) -> CallError:
    reason = redact(f"{type(error).__name__} {error}", secrets)
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout():
            return errors.NotConnected(f"{operation}: no connection to {origin}: {reason}. {_ADDRESS_HINT}")
        case httpx.TimeoutException():
            return errors.NoResponse(f"{operation}: {origin} did not respond in time ({reason})")
    hint = f". {_ADDRESS_HINT}" if isinstance(error, httpx.RemoteProtocolError) else ""
    return errors.NoResponse(f"{operation}: the connection to {origin} broke: {reason}{hint}")


def decode_response(request: Request, response: Response, decode: Callable[[Response], T], secrets: Iterable[str]) -> T:
    """Return the result of a call.

    :raises CallError: for an error response (service-api.md, R48), or one that is not as documented.
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
    """Return the error for an unsuccessful response, whose texts are untrusted."""
    status, headers = response.status, response.headers
    if status // 100 == 3:
        return MalformedResponse(
            f"{request.operation}: redirects (status {status}) are not followed, "
            "because the key must not leave the connection's own address. Check the connection's host."
        )
    payload = _decode_error(response.body)
    is_documented = (status, payload.error) in errors.BY_CODE
    # A documented code stays, even if a word of it equals a secret.
    code = payload.error if is_documented else redact(payload.error, secrets)
    message = redact(payload.message or "", secrets)
    is_trusted = is_documented or request.is_feed
    if not is_trusted and status in _CONCLUSIVE_STATUSES:
        return MalformedResponse(
            f"{request.operation}: status {status} without an error code that the service documents "
            f"({code or 'none'}: {message or 'no message'}): a proxy or gateway may have responded in its place. Check "
            "the connection's host and the proxies on the way."
        )
    if request.upload:
        message = f"{request.upload.name!r}: {message}"
    elif status == 404:  # its advice is about the id
        transfer_id = redact(unquote("".join(request.path.split("/")[3:4])), secrets)
        message = f"transfer '{transfer_id}': {message or 'the service gave no message'}"
    retry_after = parse_retry_after(headers.get("retry-after"), date=headers.get("date"))
    error = errors.error_of(status, code, message, retry_after)
    error.in_doubt |= not is_trusted  # a proxy does not know whether the service has applied the call
    return error


def _decode_error(body: bytes) -> _ErrorObject:
    try:
        return msgspec.json.decode(body, type=_ErrorObject)
    except _DECODE_ERRORS:  # errors of the feed have no documented body (R49), and proxies respond with HTML
        return _ErrorObject()


def parse_retry_after(value: str | None, *, date: str | None = None) -> float | None:
    """Return the seconds of a Retry-After, 0 or more (service-api.md, R50; RFC 9110 §10.2.3); None if it is unusable.

    :param date: ``Date`` of the same response, from which an HTTP date counts: the local clock may be wrong.
    """
    number = (value or "").strip()
    if number.isascii() and number.isdecimal():
        return float(number)  # infinite if absurd, which is past any timeout
    deadline, now = parse_http_date(value), parse_http_date(date)
    return max((deadline - now).total_seconds(), 0.0) if deadline and now else None


def parse_http_date(value: str | None) -> datetime | None:
    """Parse a header such as ``Date``; None if it is missing or invalid."""
    try:
        timestamp = parsedate_to_datetime(value or "")
    except (TypeError, ValueError, OverflowError):
        return None
    # HTTP dates are in UTC (RFC 9110 §5.6.7); the library returns "-0000" without a time zone.
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
