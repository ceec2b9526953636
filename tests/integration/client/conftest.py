"""A hook whose connection leads to a raw socket, which answers as it is told."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from support.raw_server import serving
from support.wire import EVENT_KEY, TRANSFER_KEY, Answer, Wire


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def connect(address: str, password: str = TRANSFER_KEY, **extra: Any) -> None:
        fields = {"conn_type": "outbound_transfer", "host": address, "password": password}
        extra = {"event_api_key": EVENT_KEY, "timeout": 5, **extra}
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps({**fields, "extra": extra}))

    return connect


@pytest.fixture
def wire(connect: Callable[..., None]) -> Iterator[Callable[..., Wire]]:
    """Start a server that gives its answers in turn, and then always the last."""
    with ExitStack() as stack:

        def start(
            *answers: Answer,
            tls: ssl.SSLContext | None = None,
            host: str = "127.0.0.1",
            scheme: str = "",
            sleep: Callable[[float], object] | None = None,
            **extra: Any,
        ) -> Wire:
            left = list(answers)

            def handle(stream: socket.socket, request: bytes) -> None:
                current = left.pop(0) if len(left) > 1 else left[0]
                stream.sendall(current) if isinstance(current, bytes) else current(stream, request)

            server = stack.enter_context(serving(handle, tls=tls, host=host))
            connect(server.url(scheme or ("https" if tls else "http")), **extra)
            sleeps: list[float] = []
            hook = stack.enter_context(OutboundTransferHook(sleep=sleep or sleeps.append))
            return Wire(server, hook, sleeps)

        yield start
