"""Many small calls on a few kept connections, at so little cost that the server is what is measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import uvloop

CONNECTIONS = 8
TICKS_PER_SECOND = 100


class Call(NamedTuple):
    """One request; `expect` is the status of its answer."""

    method: str
    path: str
    expect: int
    body: bytes = b""
    headers: str = ""

    def encode(self, authorization: str) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: localhost\r\n{authorization}{self.headers}"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


class Result(NamedTuple):
    """`per_second` by the clock, `per_core` by each second of processor time that the server took."""

    per_second: float
    per_core: float
    answers: list[bytes]


def measure(base_url: str, key: str | None, pid: int, calls: Iterable[Call]) -> Result:
    """Makes all `calls`; raises AssertionError at the first answer with another status."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    prepared = [(call.encode(authorization), call.expect) for call in calls]
    used, started = cpu_seconds(pid), time.perf_counter()
    answers = uvloop.run(_make(base_url, iter(prepared)))
    seconds, used = time.perf_counter() - started, cpu_seconds(pid) - used
    return Result(len(prepared) / seconds, len(prepared) / max(used, 1 / TICKS_PER_SECOND), answers)


def cpu_seconds(pid: int) -> float:
    """Processor time of the process so far, of user and system."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_SECOND


async def _make(base_url: str, calls: Iterator[tuple[bytes, int]]) -> list[bytes]:
    url = urlsplit(base_url)
    loop = asyncio.get_running_loop()
    answers: list[bytes] = []
    opened = [
        await loop.create_connection(lambda: _Connection(calls, answers, loop.create_future()), url.hostname, url.port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(connection.done for _, connection in opened))
    for transport, _ in opened:
        transport.close()
    return answers


class _Connection(asyncio.Protocol):
    """Takes the next call whenever an answer is complete."""

    def __init__(self, calls: Iterator[tuple[bytes, int]], answers: list[bytes], done: asyncio.Future[None]) -> None:
        self.done = done
        self._calls = calls
        self._answers = answers
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._next()

    def _next(self) -> None:
        request, self._expect = next(self._calls, (b"", 0))
        if request:
            self._transport.write(request)
        elif not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, mark, body = self._buffer.partition(b"\r\n\r\n")
        if not mark or len(body) < _length(head):
            return
        self._buffer = b""
        if head[9:12] != b"%d" % self._expect:
            self.done.set_exception(AssertionError(f"expected {self._expect}: {head!r} {body[:500]!r}"))
            return
        self._answers.append(body)
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


def _length(head: bytes) -> int:
    found = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return int(found or 0)


def ids(answers: Iterable[bytes]) -> list[str]:
    return [json.loads(answer)["id"] for answer in answers]
