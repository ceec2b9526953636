"""A raw server on a real socket, which may break every rule."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.timeouts import TEST_TIMEOUT

TRANSFER = b'{"id":"t","status":"new","subject":"S"}'


def answer(body: bytes = TRANSFER, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Server:
    """A raw server on loopback: ``handle`` gets each connection, with the request's headers or a TLS handshake."""

    handle: Callable[[socket.socket, bytes], None]
    listener: socket.socket
    requests: list[bytes] = field(default_factory=list)

    def url(self, scheme: str = "http", path: str = "/") -> str:
        host, port = self.listener.getsockname()[:2]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"

    def serve(self, tls: ssl.SSLContext | None) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            try:
                with tls.wrap_socket(connection, server_side=True) if tls else connection as stream:
                    stream.settimeout(TEST_TIMEOUT)
                    self._one(stream)
            except OSError:
                pass

    def _one(self, stream: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request and not request.startswith(b"\x16\x03"):
            chunk = stream.recv(65_536)
            if not chunk:
                return
            request += chunk
        self.requests.append(request)
        self.handle(stream, request)


@contextmanager
def serving(
    handle: Callable[[socket.socket, bytes], None], *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[Server]:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        server = Server(handle, listener)
        thread = threading.Thread(target=server.serve, args=(tls,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def header(request: bytes, name: str) -> str | None:
    found = re.search(rf"^{name}: (.*?)\r$".encode(), request, re.IGNORECASE | re.MULTILINE)
    return found[1].decode() if found else None


def with_body(stream: socket.socket, request: bytes) -> bytes:
    length = int(header(request, "Content-Length") or 0)
    while len(request.partition(b"\r\n\r\n")[2]) < length:
        request += stream.recv(1 << 20)
    return request


def read_body(stream: socket.socket, request: bytes) -> int:
    """Read a request to its end, or until it breaks off; how long its body was."""
    length, got = int(header(request, "Content-Length") or 0), len(request.partition(b"\r\n\r\n")[2])
    while got < length and (chunk := stream.recv(1 << 20)):
        got += len(chunk)
    return got
