"""A call on its way to the application, and its response, as a fault handles them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLL_INTERVAL_SECONDS = 0.001
_MAX_RECORDED_PATH = 1_000  # characters, as in the request log


@dataclass(frozen=True)
class CapturedResponse:
    """A complete response."""

    status: int
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def with_body(self, body: bytes) -> CapturedResponse:
        """Return a copy with another body and its Content-Length."""
        return replace(self, body=body).with_header("content-length", str(len(body)))

    def with_header(self, name: str, value: str | None) -> CapturedResponse:
        """Return a copy with the header changed, or removed if `value` is None."""
        headers = MutableHeaders(raw=list(self.headers))
        if value is None:
            del headers[name]
        else:
            headers[name] = value
        return replace(self, headers=headers.raw)


class InterceptedCall:
    """A call on its way to `app`. Closing its connection needs the server's transport in `scope["state"]`."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send

    @property
    def target(self) -> dict[str, str]:
        return {"method": self._scope["method"], "path": self._scope["path"]}

    @property
    def logged_call(self) -> dict[str, str]:
        """Return the call as the queue records it, its path cut as in the request log."""
        return {**self.target, "path": self._scope["path"][:_MAX_RECORDED_PATH]}

    async def forward(self) -> None:
        """Pass the call on unchanged."""
        await self._app(self._scope, self._receive, self._send)

    async def buffer_request(self) -> None:
        """Read the whole request into memory, so that it can be applied after its sender has disconnected."""
        messages = [await self._receive()]
        while messages[-1].get("more_body", False):
            messages.append(await self._receive())
        self._receive = _replay(iter(messages), self._receive)

    async def discard_request(self, count: int) -> None:
        """Read and drop at least `count` bytes of the request, or all of it if it is shorter."""
        while count > 0:
            message = await self._receive()
            count -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    async def capture(self) -> CapturedResponse:
        """Let the service apply the call, and return its response instead of sending it."""
        captured = CapturedResponse(500)
        body = bytearray()

        async def capture_message(message: Message) -> None:
            nonlocal captured
            if message["type"] == "http.response.start":
                captured = CapturedResponse(message["status"], list(message.get("headers", [])))
            else:
                body.extend(message.get("body", b""))

        await self._app(self._scope, self._receive, capture_message)
        return replace(captured, body=bytes(body))

    async def send_response(self, response: CapturedResponse) -> None:
        await self._send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await self._send({"type": "http.response.body", "body": response.body})

    async def send_partial_response(self, response: CapturedResponse, count: int) -> None:
        """Send the head and the first `count` bytes of the body."""
        await self._send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await self._send({"type": "http.response.body", "body": response.body[:count], "more_body": True})

    async def close_with(self, data: bytes) -> None:
        """Write `data`, which need not be HTTP, and close the connection in order."""
        transport: asyncio.Transport = self._scope["state"]["transport"]
        transport.write(data)
        transport.close()
        await self._wait_for_disconnect()

    async def reset(self) -> None:
        """Reset the connection (TCP RST) once all written data has been sent."""
        transport: asyncio.Transport = self._scope["state"]["transport"]
        while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110 the transport has no event for it
            await asyncio.sleep(_POLL_INTERVAL_SECONDS)
        if not transport.is_closing():
            # With a linger time of 0 the kernel resets the connection instead of closing it in order.
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
        await self._wait_for_disconnect()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _replay(messages: Iterator[Message], receive_more: Receive) -> Receive:
    async def receive() -> Message:
        message = next(messages, None)
        return await receive_more() if message is None else message

    return receive


def raw_headers(headers: Iterable[tuple[str, str | None]]) -> list[tuple[bytes, bytes]]:
    """Encode headers for ASGI, leaving out those without a value."""
    return [(name.encode(), value.encode("latin-1")) for name, value in headers if value is not None]
