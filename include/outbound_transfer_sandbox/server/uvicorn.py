"""Uvicorn, changed for the service's errors for broken requests and for resetting connections.

The protocol overrides methods that uvicorn does not document, so pyproject.toml bounds uvicorn's version. The contract
tests of broken requests and the tests of slow clients pin what the overrides do.
"""

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

from outbound_transfer_sandbox.domain import defaults

# How long a stop waits for running requests.
_GRACE_SECONDS = 0.5


class SandboxHttpProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP protocol with the service's errors for broken framing.

    It disconnects clients whose request head is too slow or too long, or that do not read the response, and stores its
    transport in the scope for planned faults.
    """

    _head_deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _head_size: int | None = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timeout()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_head = self._head_size is not None
        super().data_received(data)
        if was_head and self._head_size is not None:
            self._head_size += len(data)
            if self._head_size > defaults.MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, "invalid_request", "The request head is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport
        self._start_head_timeout()

    def on_headers_complete(self) -> None:
        self._cancel_head_timeout()
        super().on_headers_complete()

    def _start_head_timeout(self) -> None:
        self._cancel_head_timeout()
        self._head_size = 0
        self._head_deadline = self.loop.call_later(defaults.HEAD_TIMEOUT_SECONDS, self.transport.abort)

    def _cancel_head_timeout(self) -> None:
        self._head_size = None
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(defaults.WRITE_STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # Bytes after a complete request, left by a Content-Length that is too small. Answer that request first.
            cycle.keep_alive = False
            self._cancel_head_timeout()
            return
        reason = str(sys.exc_info()[1] or msg)
        status, code = (411, "length_required") if "Content-Length" in reason else (400, "invalid_request")
        self._refuse(status, code, f"Not HTTP: {reason}")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._cancel_head_timeout()
        body = msgspec.json.encode({"error": code, "message": message})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """End the request and keep the connection open: the client may still read the response."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.more_body = cycle.keep_alive = False
        cycle.message_event.set()
        return True


class Server(uvicorn.Server):
    """A server that stops immediately, exits with 0 on a signal and can run in a thread.

    It calls `on_ready` when it accepts connections.
    """

    def __init__(self, app: ASGIApp, on_ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=SandboxHttpProtocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="error",
                proxy_headers=False,
                server_header=False,
                date_header=False,  # `HeaderMiddleware` adds it
                timeout_keep_alive=75,  # longer than clients keep idle connections: they close first
            )
        )
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop the server. Thread-safe."""
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
        # The protocols notice the closed connections in one turn of the loop and end their requests in the next ones.
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
    """Return a listening socket; port 0 selects a free port. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((address[0], port), family=family, backlog=2048)


def base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 an address to connect to, not to bind
    return f"http://[{host}]:{port}" if re.search(":", host) else f"http://{host}:{port}"
