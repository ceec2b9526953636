"""An upload over a real socket: declared exactly, streamed, and early responses are read (service-api.md, R30)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outbound_transfer.client import Client
from outbound_transfer.protocol import endpoints, errors
from outbound_transfer.protocol.messages import Call, Upload
from support.raw_server import answer, ask, header, read_body, saying, serving


def upload_of(size: int, produced: list[int] | None = None) -> Call[Any]:
    """An attach call whose body is made while it is sent."""

    def chunks() -> Iterator[bytes]:
        for start in range(0, size, 65_536):
            chunk = b"u" * min(65_536, size - start)
            if produced is not None:
                produced.append(len(chunk))
            yield chunk

    return endpoints.attach_file("t", Upload("ü.bin", size, chunks))


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_001])
def test_an_upload_declares_its_length_and_its_name(size: int) -> None:
    read: list[int] = []

    def attach(stream: socket.socket, request: bytes) -> None:
        read.append(read_body(stream, request))
        stream.sendall(answer(b'{"id":"f","name":"x","size":1}', "201 Created"))

    with serving(attach) as server:
        assert ask(Client, server.url(), upload_of(size)).is_new
    (request,) = server.requests
    assert read == [size]
    assert header(request, "Content-Length") == str(size)
    assert header(request, "Transfer-Encoding") is None
    assert header(request, "Content-Disposition") == "attachment; filename=\"u.bin\"; filename*=UTF-8''%C3%BC.bin"


def test_an_upload_is_read_as_it_is_sent() -> None:
    produced: list[int] = []
    seen: list[int] = []

    def attach(stream: socket.socket, request: bytes) -> None:
        seen.append(_stable_count(produced))
        read_body(stream, request)
        stream.sendall(answer(b'{"id":"f","name":"x","size":1}', "201 Created"))

    size = 64 * 1024 * 1024
    with serving(attach) as server:
        ask(Client, server.url(), upload_of(size, produced))
    assert sum(produced) == size
    assert 0 < seen[0] < size / 2, "only what the sockets' buffers hold was read ahead"


def _stable_count(produced: list[int]) -> int:
    """How much there is once there is some, and no more comes."""
    before = 0
    while not before or sum(produced) != before:
        before = sum(produced)
        threading.Event().wait(0.3)
    return before


EARLY = {"413 Too Large": errors.FileTooLarge, "409 Conflict": errors.Conflict, "429 Slow Down": errors.RateLimited}


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("status", EARLY)
def test_a_response_before_the_end_of_an_upload_is_read(drain: bool, status: str) -> None:
    def early(stream: socket.socket, request: bytes) -> None:
        stream.sendall(answer(b'{"error": "new_code"}', status, "Connection: close"))
        if drain:
            read_body(stream, request)

    with serving(early) as server, pytest.raises(EARLY[status]):
        ask(Client, server.url(), upload_of(16 * 1024 * 1024))


@pytest.mark.parametrize("really", [3, 5])
def test_a_body_of_another_length_than_declared_fails(really: int) -> None:
    call = endpoints.attach_file("t", Upload("a", 4, lambda: iter([b"x" * really])))
    stored = saying(answer(b'{"id":"f","name":"a","size":4}'))
    with serving(stored) as server, pytest.raises(errors.SourceChanged, match="'a' is not the 4 bytes"):
        ask(Client, server.url(), call)


def test_an_empty_chunk_does_not_end_an_upload() -> None:
    def attach(stream: socket.socket, request: bytes) -> None:
        stream.sendall(answer(b'{"id":"f","name":"a","size":%d}' % read_body(stream, request), "201 Created"))

    call = endpoints.attach_file("t", Upload("a", 4, lambda: iter([b"", b"xx", b"", b"xx", b""])))
    with serving(attach) as server:
        assert ask(Client, server.url(), call).file.size == 4


def test_an_upload_that_fails_in_the_source_is_the_sources_error() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x"
        raise errors.SourceChanged("it shrank")

    def wait(stream: socket.socket, request: bytes) -> None:
        assert stream.recv(1_000) in (b"x", b"")

    with serving(wait) as server, pytest.raises(errors.SourceChanged, match="it shrank"):
        ask(Client, server.url(), endpoints.attach_file("t", Upload("a", 4, chunks)))
