"""One request over httpx and its bare answer: no retry, no meaning."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import httpx

from outbound_transfer import __version__
from outbound_transfer.client.settings import InvalidSettings, Settings
from outbound_transfer.client.wire_log import no_secrets_logged
from outbound_transfer.protocol.content_disposition import attachment
from outbound_transfer.protocol.errors import CallError, ConnectionLost, MalformedAnswer, NotConnected, TimedOut
from outbound_transfer.protocol.exchange import Answer, Call, Upload
from outbound_transfer.protocol.redaction import clean

_HEADERS: Final = {
    "Accept": "application/json, application/x-ndjson",
    # Answers are read as they came on the wire, so a small answer cannot unpack into a large one.
    "Accept-Encoding": "identity",
    "User-Agent": f"airflow-provider-outbound-transfer/{__version__}",
}

_HTTP_ERRORS: Final = (httpx.TransportError, httpx.StreamError, httpx.InvalidURL)

#: What the library says of an answer without quoting it.
_OWN_WORDS: Final = re.compile(
    r"Server disconnected without sending a response\.|"
    r"peer closed connection without sending complete message body \((received \d+ bytes, expected \d+|[a-z ]+)\)"
)


def client_options(settings: Settings) -> dict[str, Any]:
    """The arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
    return {
        "base_url": settings.base_url,
        "timeout": settings.timeout,
        "verify": settings.verify,
        "headers": _HEADERS,
        "follow_redirects": False,
    }


def exchange(client: httpx.Client, settings: Settings, call: Call[Any], secrets: Iterable[str] = ()) -> Answer:
    """Ask ``call`` once.

    :param secrets: what no error and no log may quote, beside the keys and the call's own.
    :raises CallError: no whole answer came.
    """
    content = call.upload.body() if call.upload else call.body
    known = _known(settings, call, secrets)
    try:
        with no_secrets_logged(known), client.stream(content=content, **_request(settings, call)) as response:
            _check_encoding(response)
            body = bytearray()
            for chunk in response.iter_raw():
                _append(body, chunk, call)
            return _answer(response, body, known)
    except _HTTP_ERRORS as error:
        failure = _failure(call, error, known)
    raise failure


async def exchange_async(
    client: httpx.AsyncClient, settings: Settings, call: Call[Any], secrets: Iterable[str] = ()
) -> Answer:
    """The same without blocking the event loop."""
    content = _off_the_loop(call.upload) if call.upload else call.body
    known = _known(settings, call, secrets)
    try:
        with no_secrets_logged(known):
            async with client.stream(content=content, **_request(settings, call)) as response:
                _check_encoding(response)
                body = bytearray()
                async for chunk in response.aiter_raw():
                    _append(body, chunk, call)
                return _answer(response, body, known)
    except _HTTP_ERRORS as error:
        failure = _failure(call, error, known)
    raise failure


def _known(settings: Settings, call: Call[Any], secrets: Iterable[str]) -> tuple[str, ...]:
    """All that no error and no log may quote: both keys, as who mirrors one may have seen the other."""
    return (*filter(None, (settings.transfer_api_key, settings.event_api_key)), *call.secrets, *secrets)


def _request(settings: Settings, call: Call[Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {settings.key(call.api)}"}
    if call.upload:
        # A declared length keeps httpx from chunked encoding, which the service refuses (411).
        headers["Content-Length"] = str(call.upload.size)
        headers["Content-Disposition"] = attachment(call.upload.name)
    elif call.body is not None:
        headers["Content-Type"] = "application/json"
    # A relative path keeps what the base URL has before /v1.
    return {"method": call.method, "url": call.path.lstrip("/"), "params": dict(call.params), "headers": headers}


async def _off_the_loop(upload: Upload) -> AsyncIterator[bytes]:
    chunks = upload.body()
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def _failure(call: Call[Any], error: Exception, secrets: Iterable[str]) -> CallError | InvalidSettings:
    """The error of ours for one of the library's. It is raised outside of the ``except`` block.

    For a log shows an error's context too, and the library's errors quote the bytes of an answer that is no HTTP.
    """
    what, said = call.operation.value, clean(f"{type(error).__name__} {_said(error)}", secrets)
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NotConnected(f"{what}: no connection to the service: {said}")
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{what}: the service did not answer in time ({said})")
    if isinstance(error, httpx.InvalidURL):
        return InvalidSettings(f"the connection's address cannot be used: {said}")
    return ConnectionLost(f"{what}: the connection broke: {said}")


def _said(error: Exception) -> str:
    """An error's text where it is the operating system's or the library's own; what quotes the peer is left out."""
    text = str(error)
    if not isinstance(error, httpx.ProtocolError | httpx.ProxyError) or _OWN_WORDS.fullmatch(text):
        return text
    return "(the answer is no HTTP; it is not quoted, as it may hold what is secret)"


def _check_encoding(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise MalformedAnswer("the answer is compressed, which was not asked for")


def _append(body: bytearray, chunk: bytes, call: Call[Any]) -> None:
    body += chunk
    if len(body) > call.max_answer:
        raise MalformedAnswer(f"{call.operation.value}: the answer is over {call.max_answer:,} bytes")


def _answer(response: httpx.Response, body: bytearray, secrets: tuple[str, ...]) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, bytes(body), secrets=secrets)
