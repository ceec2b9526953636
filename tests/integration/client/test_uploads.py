"""An upload over a real socket: its exact length and name, never in memory as a whole, and never another file."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from outbound_transfer.exceptions import FileTooLarge, SourceChanged
from support.provider import Upload
from support.raw_server import header
from support.wire import Wire, read_body, refusal, said

STORED = said({"id": "f", "name": "x", "size": 1}, "201 Created")


def upload_of(*chunks: bytes, size: int | None = None) -> Upload:
    return Upload("ü.bin", sum(map(len, chunks)) if size is None else size, lambda: iter(chunks))


@pytest.mark.parametrize("sizes", [(), (65_536, 934_465), (0, 2, 0, 2, 0)])
def test_an_upload_declares_its_very_length_and_name(wire: Callable[..., Wire], sizes: tuple[int, ...]) -> None:
    read: list[int] = []

    def attach(stream: socket.socket, request: bytes) -> None:
        read.append(read_body(stream, request))
        stream.sendall(STORED)

    service = wire(attach)
    service.hook.attach_file("t", upload_of(*(b"u" * size for size in sizes)))
    (request,) = service.server.requests
    assert service.lines == ["POST /v1/transfers/t/files HTTP/1.1"]
    assert read == [sum(sizes)]
    assert header(request, "Content-Length") == str(sum(sizes))
    assert header(request, "Transfer-Encoding") is None
    assert header(request, "Content-Disposition") == "attachment; filename=\"u.bin\"; filename*=UTF-8''%C3%BC.bin"


def test_an_upload_is_read_as_it_is_sent_and_never_held_as_a_whole(wire: Callable[..., Wire]) -> None:
    produced, seen = list[int](), list[int]()

    def chunks() -> Iterator[bytes]:
        for _ in range(1_024):
            produced.append(65_536)
            yield b"u" * 65_536

    def attach(stream: socket.socket, request: bytes) -> None:
        before = 0
        while not before or sum(produced) != before:  # until no more comes
            before = sum(produced)
            threading.Event().wait(0.2)
        seen.append(before)
        read_body(stream, request)
        stream.sendall(STORED)

    wire(attach).hook.attach_file("t", Upload("large.bin", 1_024 * 65_536, chunks))
    assert sum(produced) == 1_024 * 65_536
    assert 0 < seen[0] < sum(produced) / 2, "only what the sockets' buffers hold was read ahead"


@pytest.mark.parametrize("drains", [True, False])
def test_an_answer_before_the_end_of_an_upload_is_heard(wire: Callable[..., Wire], drains: bool) -> None:
    def early(stream: socket.socket, request: bytes) -> None:
        stream.sendall(refusal(413, "file_too_large"))
        if drains:
            read_body(stream, request)

    service = wire(early)
    with pytest.raises(FileTooLarge):
        service.hook.attach_file("t", upload_of(*[b"u" * (1 << 20)] * 16))
    assert len(service.lines) == 1


def test_an_upload_that_is_refused_for_its_rate_begins_again_with_its_first_byte(wire: Callable[..., Wire]) -> None:
    read: list[int] = []

    def limit(stream: socket.socket, request: bytes) -> None:
        stream.sendall(refusal(429, "rate_limited", "words", "Retry-After: 1"))
        read_body(stream, request)

    def attach(stream: socket.socket, request: bytes) -> None:
        read.append(read_body(stream, request))
        stream.sendall(STORED)

    wire(limit, attach).hook.attach_file("t", upload_of(*[b"u" * (1 << 20)] * 4))
    assert read == [4 << 20]


@pytest.mark.parametrize("really", [3, 5])
def test_a_file_of_another_length_than_declared_is_never_stored(wire: Callable[..., Wire], really: int) -> None:
    whole: list[bytes] = []

    def attach(stream: socket.socket, request: bytes) -> None:
        body = request.partition(b"\r\n\r\n")[2]
        while len(body) < 4 and (chunk := stream.recv(100)):
            body += chunk
        if len(body) >= 4:
            whole.append(body)
            stream.sendall(STORED)

    with pytest.raises(SourceChanged, match=r"'ü\.bin' is (longer|shorter) than the 4 bytes"):
        wire(attach).hook.attach_file("t", upload_of(b"x" * really, size=4))
    assert whole == []
