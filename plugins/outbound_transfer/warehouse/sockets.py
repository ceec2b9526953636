"""The sockets of open connections: a server that no longer responds must not hold a thread for hours.

Without limits of their own, connections notice after two hours that a server has lost its power or its network.
"""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from typing import Any, Final

#: Seconds without any data after which a server is probed, unless the warehouse has a timeout.
IDLE_SECONDS: Final = 30.0

#: Number of probes without a response after which a connection is lost.
_PROBES: Final = 3


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
