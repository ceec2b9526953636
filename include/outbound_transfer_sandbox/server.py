"""uvicorn, set up so that what service.md says about broken requests reaches the client."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from . import unspecified

# What a stop leaves to running requests; an upload that needs longer is cut off.
_GRACE_SECONDS = 0.5


class Protocol(HttpToolsProtocol):
    """Differs from uvicorn's own where a request breaks the framing; lends its transport to planned faults.

    Cuts off clients that are too slow with a request's head, too long with it, or do not take the answer.
    """

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _head_size: int | None = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_head = self._head_size is not None
        super().data_received(data)
        if was_head and self._head_size is not None:
            self._head_size += len(data)
            if self._head_size > unspecified.MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, "invalid_request", "The request's head is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._expect_no_head()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._expect_no_head()
        self._head_size = 0
        self._deadline = self.loop.call_later(unspecified.HEAD_SECONDS, self.transport.abort)

    def _expect_no_head(self) -> None:
        self._head_size = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(unspecified.STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # Bytes after a complete request, as a too small Content-Length leaves them: that request is answered still.
            cycle.keep_alive = False
            self._expect_no_head()
            return
        reason = str(sys.exc_info()[1] or msg)
        status, code = (411, "length_required") if "Content-Length" in reason else (400, "invalid_request")
        self._refuse(status, code, f"Not HTTP: {reason}")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._expect_no_head()
        body = msgspec.json.encode({"error": code, "message": message})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has stopped sending may still read: the request ends here, and its answer goes out."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.more_body = cycle.keep_alive = False
        cycle.message_event.set()
        return True


class Server(uvicorn.Server):
    """Stops at once, exits 0 on a signal, and can run in a thread. `on_ready` is called when it accepts connections."""

    def __init__(self, app: ASGIApp, on_ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="error",
                proxy_headers=False,
                server_header=False,
                date_header=False,  # `Edge` adds it
                timeout_keep_alive=75,  # longer than clients keep idle connections, so that they close first
            )
        )
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Thread-safe."""
        if self._loop is None:
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._on_ready()

    async def main_loop(self) -> None:
        while not self._stopping.is_set():
            await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 inherited
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_GRACE_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # One turn for the protocols to learn of it, one for their requests to end.
        for _ in range(5):
            await asyncio.sleep(0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 inherited
        self.stop()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((address[0], port), family=family, backlog=2048)


def base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 where to reach it, not where to bind
    return f"http://[{host}]:{port}" if re.search(":", host) else f"http://{host}:{port}"
