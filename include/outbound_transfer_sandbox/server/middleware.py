"""ASGI middleware around the API. `server.app` decides their order."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from email.utils import formatdate

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.service.sandbox import SandboxService

_logger = logging.getLogger(__name__)

# The server itself reads and drops a body up to this size, and keeps the connection.
_SMALL_BODY = 65_536
_DRAIN_BYTES = 1 << 30
_DRAIN_SECONDS = 10.0


class HeaderMiddleware:
    """Removes long Range headers from requests, and adds a Date to responses without one.

    Starlette compares the pieces of a Range with one another, so a long one would take it long. Uvicorn's own Date is
    off because it would stand beside the Date of a planned fault.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(n, v) for n, v in scope["headers"] if n != b"range" or len(v) <= defaults.MAX_RANGE_LENGTH]

        async def add_date(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Date", formatdate(usegmt=True))
            await send(message)

        await self._app({**scope, "headers": headers}, receive, add_date)


class ExceptionLoggingMiddleware:
    """Logs unexpected exceptions, which Starlette raises again after it has sent a 500.

    If they reached the server, it would close the connection during the client's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            _logger.exception("%s %s failed", scope["method"], scope["path"])


class AutoPickupMiddleware:
    """Before each request, lets recipients pick up what `auto_pickup_seconds` says they have: no timer is needed."""

    def __init__(self, app: ASGIApp, sandbox: SandboxService) -> None:
        self._app = app
        self._sandbox = sandbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sandbox.lifecycle.pick_up_due()
        await self._app(scope, receive, send)


class RequestLogMiddleware:
    """Records each call under /v1 and the status of its response before the response is sent."""

    def __init__(self, app: ASGIApp, sandbox: SandboxService) -> None:
        self._app = app
        self._sandbox = sandbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        timestamp = self._sandbox.context.clock.now()

        async def log_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._sandbox.context.activity.add_request(
                    timestamp,
                    scope["method"],
                    scope["path"],
                    scope["query_string"].decode("latin-1"),
                    message["status"],
                    scope["state"].get("counted_for"),
                )
            await send(message)

        await self._app(scope, receive, log_response)


class DrainRequestBodyMiddleware:
    """Lets a client read a response that is sent before its large request body has been read.

    Closing the connection immediately would reset it, and the client would lose the response. So the remaining body is
    read and dropped, up to a gigabyte or ten seconds, before the connection is closed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _may_be_large(Headers(scope=scope)):
            tracker = _BodyTracker(receive, send)
            await self._app(scope, tracker.receive, tracker.send)
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


class _BodyTracker:
    """One request and its response. Knows whether the request body has been read completely."""

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
        remaining = _DRAIN_BYTES
        while self._unread and remaining > 0:
            remaining -= len((await self.receive()).get("body", b""))
