"""Where in its answer a hostile peer may quote something, and a peer that answers well until then."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from support.raw_server import answer, header, with_body

#: Makes the raw bytes of an answer that quotes a text.
WarehouseTarget = Callable[[str], bytes]

TRANSFER: Final = {"id": "t", "status": "draft", "subject": "Report", "recipients": [], "files": [], "sent_at": None}


def _json(value: Any, status: str = "200 OK", *headers: str) -> bytes:
    return answer(json.dumps(value, ensure_ascii=False).encode(), status, *headers)


def _error(status: str, **fields: Any) -> bytes:
    return _json({"error": "invalid_request", "message": "No", **fields}, status)


def _raw(text: str) -> bytes:
    return text.encode(errors="replace")


PLACES: Final[dict[str, WarehouseTarget]] = {
    "message": lambda text: _error("400 Bad Request", message=f"The value {text} is wrong"),
    "message of 401": lambda text: _error("401 Unauthorized", error="invalid_api_key", message=text),
    "message of 429": lambda text: _error("429 Slow", error="rate_limited", message=text),
    "message of 500": lambda text: _error("500 Internal", error="internal_error", message=text),
    "code": lambda text: _error("403 Forbidden", error=text),
    "another field": lambda text: _error("409 Conflict", error="invalid_state", detail={"text": text}),
    "no text in message": lambda text: _error("400 Bad Request", message=[text]),
    "page of a proxy": lambda text: answer(
        _raw(f"<html><pre>{text}</pre>"), "502 Bad Gateway", "Content-Type: text/html"
    ),
    "reason": lambda text: answer(b"{}", f"400 {text}"),
    "reason of success": lambda text: _json(TRANSFER, f"200 {text}"),
    "header": lambda text: answer(b"{}", "400 Bad", f"X-Echo: {text}"),
    "header of success": lambda text: _json(TRANSFER, "200 OK", f"X-Echo: {text}", f"Set-Cookie: a={text}"),
    "Location": lambda text: answer(b"", "302 Found", f"Location: {text}"),
    "Location's host": lambda text: answer(b"", "307 Temporary Redirect", f"Location: http://{text}:{text}/"),
    "Retry-After": lambda text: answer(b"{}", "429 Slow", f"Retry-After: {text}"),
    "Content-Encoding": lambda text: answer(b"{}", "200 OK", f"Content-Encoding: {text}"),
    "Content-Length": lambda text: _raw(f"HTTP/1.1 200 OK\r\nContent-Length: {text}\r\n\r\n{{}}"),
    "Transfer-Encoding": lambda text: _raw(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {text}\r\n\r\n{{}}"),
    "header's name": lambda text: _raw(f"HTTP/1.1 200 OK\r\n{text}: 1\r\n\r\n"),
    "no header": lambda text: _raw(f"HTTP/1.1 200 OK\r\n{text}\r\n\r\n"),
    "chunk": lambda text: _raw(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{text}\r\n\r\n"),
    "no HTTP": lambda text: _raw(f"{text}\r\n\r\n"),
    "status": lambda text: _raw(f"HTTP/1.1 {text} OK\r\n\r\n"),
    "no JSON": lambda text: answer(_raw(text)),
    "no UTF-8": lambda text: answer(_raw('{"id": "' + text) + b"\xff\xfe"),
    "no text in a field": lambda text: _json(TRANSFER | {"id": [text]}),
    "an object in a field": lambda text: _json(TRANSFER | {"recipients": {text: text}}),
    "an unknown field": lambda text: _json(TRANSFER | {text: text, "phone": text}),
    "cut off": lambda text: _raw(f"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n{text}"),
}


def _page(body: str, *headers: str) -> bytes:
    default = ("Content-Type: application/x-ndjson", "X-Next-Cursor: 1", "X-Has-More: false")
    return answer(_raw(body), "200 OK", *(headers or default))


NDJSON: Final = "Content-Type: application/x-ndjson"

FEED_PLACES: Final[dict[str, WarehouseTarget]] = {
    "X-Next-Cursor": lambda text: _page("", NDJSON, f"X-Next-Cursor: {text}", "X-Has-More: false"),
    "X-Has-More": lambda text: _page("", NDJSON, "X-Next-Cursor: 1", f"X-Has-More: {text}"),
    "Content-Type": lambda text: _page("", f"Content-Type: {text}"),
    "line": lambda text: _page(f"{text}\n"),
    "field twice": lambda text: _page(
        '{"event_id": "e", "type": "t", %s: 1, %s: 2}\n' % ((json.dumps(text, ensure_ascii=False),) * 2)
    ),
    "event": lambda text: _page(
        json.dumps({"event_id": text, "type": [text], "timestamp": text, "data": text}, ensure_ascii=False) + "\n"
    ),
    "last line": lambda text: _page(f'{{"event_id": "{text}'),
}


@dataclass
class Peer:
    """Answers the first calls of a delivery well, and all that follow with what quotes."""

    quoting: bytes
    well: int
    has_quoted: bool = False

    def answer(self, stream: socket.socket, request: bytes) -> None:
        request = with_body(stream, request)
        length = len(request.partition(b"\r\n\r\n")[2])
        if self.well > 0:
            self.well -= 1
            stream.sendall(_well(request, length))
        else:
            self.has_quoted = True
            stream.sendall(self.quoting)


def _well(request: bytes, length: int) -> bytes:
    line = request.partition(b"\r\n")[0].decode()
    if line.startswith("POST /v1/transfers "):
        asked = json.loads(request.partition(b"\r\n\r\n")[2])
        recipients = [{"email": one["email"]} for one in asked["recipients"]]
        made = TRANSFER | {"subject": asked["subject"], "recipients": recipients}
        return _json(made, "201 Created", "Location: /v1/transfers/t")
    if "/files" in line and line.startswith("POST"):
        name = (header(request, "Content-Disposition") or "").partition("filename*=UTF-8''")[2]
        return _json({"id": "f", "name": name or "report.csv", "size": length}, "201 Created")
    return _json(TRANSFER | {"status": "pending", "sent_at": "2030-01-01T00:00:00Z"})
