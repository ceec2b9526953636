"""One request over httpx and its bare answer: no retry, no meaning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from outbound_transfer import __version__
from outbound_transfer.client.settings import InvalidSettings, Settings
from outbound_transfer.protocol.content_disposition import attachment
from outbound_transfer.protocol.errors import ConnectionLost, MalformedAnswer, NotConnected, TimedOut
from outbound_transfer.protocol.exchange import Answer, Call, Upload

_HEADERS: Final = {
    "Accept": "application/json, application/x-ndjson",
    # Answers are read as they came on the wire, so a small answer cannot unpack into a large one.
    "Accept-Encoding": "identity",
    "User-Agent": f"airflow-provider-outbound-transfer/{__version__}",
}


def client_options(settings: Settings) -> dict[str, Any]:
    """The arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
    return {
        "base_url": settings.base_url,
        "timeout": settings.timeout,
        "verify": settings.verify,
        "headers": _HEADERS,
        "follow_redirects": False,
    }


def exchange(client: httpx.Client, settings: Settings, call: Call[Any]) -> Answer:
    """Ask ``call`` once.

    :raises CallError: no whole answer came.
    """
    content = call.upload.body() if call.upload else call.body
    with _errors_of(call), client.stream(content=content, **_request(settings, call)) as response:
        _check_encoding(response)
        body = bytearray()
        for chunk in response.iter_raw():
            _append(body, chunk, call)
    return _answer(response, body, settings.key(call.api))


async def exchange_async(client: httpx.AsyncClient, settings: Settings, call: Call[Any]) -> Answer:
    """The same without blocking the event loop."""
    content = _off_the_loop(call.upload) if call.upload else call.body
    with _errors_of(call):
        async with client.stream(content=content, **_request(settings, call)) as response:
            _check_encoding(response)
            body = bytearray()
            async for chunk in response.aiter_raw():
                _append(body, chunk, call)
    return _answer(response, body, settings.key(call.api))


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


@contextmanager
def _errors_of(call: Call[Any]) -> Iterator[None]:
    what = call.operation.value
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise NotConnected(f"{what}: no connection to the service: {_said(error)}") from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"{what}: the service did not answer in time ({_said(error)})") from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise ConnectionLost(f"{what}: the connection broke: {_said(error)}") from error
    except httpx.InvalidURL as error:
        raise InvalidSettings(f"the connection's address cannot be used: {_said(error)}") from error


def _said(error: Exception) -> str:
    # What is no HTTP is quoted in the error, however long it is.
    return f"{type(error).__name__} {error}".strip()[:300]


def _check_encoding(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise MalformedAnswer("the answer is compressed, which was not asked for")


def _append(body: bytearray, chunk: bytes, call: Call[Any]) -> None:
    body += chunk
    if len(body) > call.max_answer:
        raise MalformedAnswer(f"{call.operation.value}: the answer is over {call.max_answer:,} bytes")


def _answer(response: httpx.Response, body: bytearray, key: str) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, bytes(body), secrets=(key,))
