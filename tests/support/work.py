"""How much work the sandbox does for a request, counted and not timed: the same on any machine, however busy."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from uvicorn.server import ServerState

from outbound_transfer_sandbox.server.app import create_app
from outbound_transfer_sandbox.server.uvicorn import SandboxHttpProtocol, Server
from outbound_transfer_sandbox.service.sandbox import SandboxService


def work(task: Callable[[], Any]) -> int:
    """Calls made by `task`, those of a text's own methods and of regular expressions by the characters before them."""
    done = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal done
        done += 1
        if event == "c_call":
            done += _characters(frame, called)

    sys.setprofile(count)
    try:
        task()
    finally:
        sys.setprofile(None)
    return done


def _characters(frame: FrameType, called: Any) -> int:
    owner = getattr(called, "__self__", None)
    if isinstance(owner, bytearray) and called.__name__ in ("append", "extend"):
        return 0  # what is there already is not looked at
    if isinstance(owner, (str, bytes, bytearray)):
        return len(owner)
    if isinstance(owner, re.Pattern):  # what it searches is not seen: at most the longest text at hand
        return max((len(text) for text in frame.f_locals.values() if isinstance(text, (str, bytes))), default=0)
    return 0


def grows_faster_than(task: Callable[[int], Any], size: int) -> bool:
    """Whether the work of `task(n)` grows faster than n between `size` and four times as much."""
    task(size)  # loads what is loaded once
    first, second, third = (work(lambda n=n: task(n)) for n in (size, 2 * size, 4 * size))
    # Of work that grows with n these are 1 to 2, of work that grows with its square 1 to 4.
    return third - second > 3 * max(second - first, 0) + 60 * size


class Wire(asyncio.Transport):
    """A connection of this machine without a socket: the server's end of it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8085)})
        self.answer = bytearray()
        self.closed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.answer += data

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Machine:
    """The whole sandbox, from the bytes of a request to those of its answer, in this thread."""

    def __init__(self, service: SandboxService) -> None:
        self._loop = asyncio.new_event_loop()
        self._config = Server(create_app(service)).config
        self._config.load()

    def close(self) -> None:
        self._loop.close()

    def answer(self, request: bytes) -> bytes:
        """All that is answered to a request that has `Connection: close`, or breaks the framing."""
        return self._loop.run_until_complete(self._exchange(request))

    async def _exchange(self, request: bytes) -> bytes:
        protocol, wire = SandboxHttpProtocol(config=self._config, server_state=ServerState(), app_state={}), Wire()
        protocol.connection_made(wire)
        protocol.data_received(request)
        if not wire.is_closing():
            protocol.eof_received()
            await wire.closed.wait()
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        return bytes(wire.answer)
