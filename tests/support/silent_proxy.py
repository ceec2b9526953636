"""A TCP proxy before a database that can go silent: it keeps its connections and forwards nothing more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.timeouts import TEST_TIMEOUT


class SilentProxy:
    """Forwards connections, until it goes silent at a text that a client sends.

    :ivar is_silent: set once it has gone silent.
    :ivar round_trips: number of times that a client has sent something and waited for the server, on all connections.
    """

    def __init__(self, target: str | tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._text, self._is_delivered = b"", False
        self._is_open = True
        self.is_silent = threading.Event()
        self.round_trips = 0
        self._start(self._accept)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def silence(self, text: bytes, *, is_delivered: bool) -> None:
        """Go silent on the connection on which a client sends the text next.

        :param is_delivered: whether the server still gets it.
        """
        self._text, self._is_delivered = text, is_delivered

    def heal(self) -> None:
        """Forward new connections; those that are silent stay so."""
        self._text = b""
        self.is_silent.clear()

    def close(self) -> None:
        self._is_open = False
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TEST_TIMEOUT)
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            self._sockets += [client, server]
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                continue
            silent, waits = threading.Event(), threading.Event()
            self._start(self._forward_requests, client, server, silent, waits)
            self._start(self._forward_responses, server, client, silent, waits)

    def _forward_requests(
        self, client: socket.socket, server: socket.socket, silent: threading.Event, waits: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                if silent.is_set():
                    continue
                self.round_trips += not waits.is_set()
                waits.set()
                if self._text and self._text in data:
                    if self._is_delivered:
                        server.sendall(data)
                    silent.set()
                    self.is_silent.set()
                else:
                    server.sendall(data)
            if not silent.is_set():
                server.shutdown(socket.SHUT_WR)

    def _forward_responses(
        self, server: socket.socket, client: socket.socket, silent: threading.Event, waits: threading.Event
    ) -> None:
        with suppress(OSError):
            while (data := server.recv(65_536)) and not silent.is_set():
                waits.clear()
                client.sendall(data)
            if not silent.is_set():
                client.shutdown(socket.SHUT_WR)


@contextmanager
def silent_proxy(target: str | tuple[str, int]) -> Iterator[SilentProxy]:
    """A proxy on a free port of loopback, closed at the end.

    :param target: the server's socket file, or its host and port.
    """
    proxy = SilentProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
