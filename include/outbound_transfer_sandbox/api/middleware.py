"""ASGI layers around the API. Planned faults (`faults`) stand between `EarlyAnswers` and `RequestLog`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from email.utils import formatdate

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.service.sandbox import Sandbox

_logger = logging.getLogger(__name__)

# A body up to this size is left to the server, which reads and drops it and keeps the connection.
_SMALL_BODY = 65_536
_DRAIN_BYTES = 1 << 30
_DRAIN_SECONDS = 10.0


class Edge:
    """What holds for every request and answer: no long Range is looked at, and every answer has a Date.

    Libraries compare the pieces of a Range with one another; whoever wants many of them gets the whole file. The server
    itself would send its Date beside that of a planned fault.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        short = [(n, v) for n, v in scope["headers"] if n != b"range" or len(v) <= unspecified.MAX_RANGE]

        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Date", formatdate(usegmt=True))
            await send(message)

        await self._app({**scope, "headers": short}, receive, dated)


class Contained:
    """Logs an unexpected exception, which Starlette answers with 500 and then raises again.

    Raised any further, it would make the server close the connection under the client's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            _logger.exception("%s %s failed", scope["method"], scope["path"])


class RequestLog:
    """Records each call under /v1 with the status of its answer, before the answer goes out."""

    def __init__(self, app: ASGIApp, sandbox: Sandbox) -> None:
        self._app = app
        self._sandbox = sandbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        at = self._sandbox.context.clock.now()

        async def logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._sandbox.context.journal.add_request(
                    at,
                    scope["method"],
                    scope["path"],
                    scope["query_string"].decode("latin-1"),
                    message["status"],
                    scope["state"].get("counted_for"),
                )
            await send(message)

        await self._app(scope, receive, logged)


class EarlyAnswers:
    """Lets a client read an answer that goes out before its large body has come in.

    Closing at once would reset the connection and lose the answer, so the rest of the body is read and dropped for a
    while, up to a gigabyte or ten seconds, and the connection is closed then.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _may_be_large(Headers(scope=scope)):
            exchange = _Exchange(receive, send)
            await self._app(scope, exchange.receive, exchange.send)
        else:
            await self._app(scope, receive, send)


def _may_be_large(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    return (
        "transfer-encoding" in headers
        or "expect" in headers
        or not length.isdecimal()
        or int(length[:20]) > _SMALL_BODY
    )


class _Exchange:
    """One request and its answer; knows whether the body has been read to its end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._unread = True

    async def receive(self) -> Message:
        message = await self._receive()
        self._unread = self._unread and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self._unread and message["type"] == "http.response.start":
            MutableHeaders(scope=message)["Connection"] = "close"
        if self._unread and message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            message = {"type": "http.response.body"}
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._drain(), _DRAIN_SECONDS)
        await self._send(message)

    async def _drain(self) -> None:
        rest = _DRAIN_BYTES
        while self._unread and rest > 0:
            rest -= len((await self.receive()).get("body", b""))
