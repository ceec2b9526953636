"""Answers of a raw server, and a hook that is led to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from support.raw_server import Server, answer
from support.raw_server import read_body as read_body

TRANSFER_KEY, EVENT_KEY = "obt_5f1c09d2e7ab", "obs_77aa01c3d4e5"

#: An answer, or what handles the connection and the request up to the end of its headers.
Answer = bytes | Callable[[socket.socket, bytes], None]


def said(body: Any, status: str = "200 OK", *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return answer(content, status, "Connection: close", *headers)


def transfer(transfer_id: str = "t", **fields: Any) -> bytes:
    return said(
        {"id": transfer_id, "status": "pending", "subject": "Report", "sent_at": "2026-01-01T00:00:00Z", **fields}
    )


def refusal(status: int, code: str, message: str = "words", *headers: str) -> bytes:
    return said({"error": code, "message": message}, f"{status} Refused", *headers)


@dataclass
class Wire:
    server: Server
    hook: OutboundTransferHook
    sleeps: list[float] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [request.partition(b"\r\n")[0].decode() for request in self.server.requests]
