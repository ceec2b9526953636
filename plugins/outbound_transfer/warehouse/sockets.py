"""The sockets of open connections: a server that no longer responds must not hold a thread for hours.

Without limits of their own, connections notice after two hours that a server has lost its power or its network.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from contextlib import suppress
from typing import Any, Final

#: Seconds without any data after which a server is probed, unless the warehouse has a timeout.
IDLE_SECONDS: Final = 30.0

#: Number of probes without a response after which a connection is lost.
_PROBES: Final = 3


class OpenSockets:
    """Duplicates of the sockets of open connections. By these, another thread can break the connections.

    Duplicates, as a driver may close a socket at any time, and its number may be another socket's then.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_shut_down = False

    def add(self, connection: Any, idle_seconds: float) -> None:
        """Let the kernel probe a connection's server, if the driver has a ``fileno()``.

        :param idle_seconds: after how long without data.
        :raises ConnectionAbortedError: :meth:`shut_down` was called before.
        """
        with self._lock:
            if self._is_shut_down:
                raise ConnectionAbortedError("the database is not waited for any more")
            duplicate = _duplicate_socket(connection)
            if duplicate is not None:
                self._sockets[id(connection)] = duplicate
                limit_silence(duplicate, idle_seconds)

    def remove(self, connection: Any) -> None:
        """Forget a connection before it is closed."""
        with self._lock:
            if (duplicate := self._sockets.pop(id(connection), None)) is not None:
                duplicate.close()

    def shut_down(self) -> None:
        """Break the open connections, and all that are added later. What waits for a response gets an error."""
        with self._lock:
            self._is_shut_down = True
            for duplicate in self._sockets.values():
                with suppress(OSError):  # it is broken
                    duplicate.shutdown(socket.SHUT_RDWR)


def probe_server(connection: Any) -> None:
    """Let the kernel probe a connection's server that says nothing, if the driver has a ``fileno()``."""
    if (duplicate := _duplicate_socket(connection)) is not None:
        with duplicate:
            limit_silence(duplicate, IDLE_SECONDS)


def _duplicate_socket(connection: Any) -> socket.socket | None:
    if not hasattr(connection, "fileno"):
        return None
    try:
        return socket.socket(fileno=os.dup(connection.fileno()))
    except Exception:  # it is closed, or no socket: whatever is wrong, its next use says so
        return None


def limit_silence(sock: socket.socket, idle_seconds: float) -> None:
    """Let the kernel break a TCP connection whose peer does not respond; a limit that is lower already stays."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    interval = max(math.ceil(idle_seconds / _PROBES), 1)
    limits = {
        "TCP_KEEPIDLE": math.ceil(idle_seconds),
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": math.ceil(idle_seconds + _PROBES * interval) * 1_000,  # of data that is not acknowledged
    }
    with suppress(OSError):  # a system that has no such limit
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, limit in limits.items():
            option = getattr(socket, name, None)
            if option is not None and not 0 < sock.getsockopt(socket.IPPROTO_TCP, option) <= limit:
                sock.setsockopt(socket.IPPROTO_TCP, option, limit)
