"""One call and its answer, in the hands of a layer that interferes: captured, altered, cut off."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbound_transfer_sandbox import unspecified

_DRAIN_PAUSE = 0.001


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def with_body(self, body: bytes) -> Answer:
        """The same with another body, and the length of that one declared."""
        return replace(self, body=body).with_header("content-length", str(len(body)))

    def with_header(self, name: str, value: str | None) -> Answer:
        """The same with a header changed, or removed where `value` is None."""
        headers = MutableHeaders(raw=list(self.headers))
        if value is None:
            del headers[name]
        else:
            headers[name] = value
        return replace(self, headers=headers.raw)


class Exchange:
    """A call on its way to `app`. It needs the server's transport in `scope["state"]` only to reset the connection."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send

    @property
    def call(self) -> dict[str, str]:
        return {"method": self._scope["method"], "path": self._scope["path"]}

    @property
    def record(self) -> dict[str, str]:
        """The call as it is accounted for: so much of its path as the request log keeps."""
        return {**self.call, "path": self._scope["path"][: unspecified.LOGGED_TEXT]}

    async def proceed(self) -> None:
        """Lets the call through as if nobody were here."""
        await self._app(self._scope, self._receive, self._send)

    async def take_body(self) -> None:
        """Has the whole request in memory, so that it takes effect though its sender is gone by then."""
        messages = [await self._receive()]
        while messages[-1].get("more_body", False):
            messages.append(await self._receive())
        self._receive = _replayed(iter(messages), self._receive)

    async def read(self, count: int) -> None:
        """Reads at least `count` bytes of the request, or all that come, and drops them."""
        while count > 0:
            message = await self._receive()
            count -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    async def answer(self) -> Answer:
        """Lets the call take effect and keeps its answer back."""
        kept = Answer(500)
        body = bytearray()

        async def keep(message: Message) -> None:
            nonlocal kept
            if message["type"] == "http.response.start":
                kept = Answer(message["status"], list(message.get("headers", [])))
            else:
                body.extend(message.get("body", b""))

        await self._app(self._scope, self._receive, keep)
        return replace(kept, body=bytes(body))

    async def reply(self, answer: Answer) -> None:
        await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await self._send({"type": "http.response.body", "body": answer.body})

    async def begin_reply(self, answer: Answer, count: int) -> None:
        """The head and the first `count` bytes of the body."""
        await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await self._send({"type": "http.response.body", "body": answer.body[:count], "more_body": True})

    async def hang_up_with(self, data: bytes) -> None:
        """Writes what need be no HTTP, and ends the connection in good order."""
        transport: asyncio.Transport = self._scope["state"]["transport"]
        transport.write(data)
        transport.close()
        await self._disconnected()

    async def reset(self) -> None:
        """Breaks the connection with a TCP RST, after what was written has gone out."""
        transport: asyncio.Transport = self._scope["state"]["transport"]
        while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(_DRAIN_PAUSE)
        if not transport.is_closing():
            # Lingering for no time makes the kernel reset the connection instead of ending it in good order.
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
        await self._disconnected()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _replayed(messages: Iterator[Message], rest: Receive) -> Receive:
    async def receive() -> Message:
        message = next(messages, None)
        return await rest() if message is None else message

    return receive


def raw_headers(headers: Iterable[tuple[str, str | None]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them; those without a value are left out."""
    return [(name.encode(), value.encode("latin-1")) for name, value in headers if value is not None]
