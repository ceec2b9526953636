"""A feed over a real socket: its lines are true and never change, its answers are what a fuzzer makes of them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support import threads

#: What must become of a line: a row of the events, a rejected line, or either of the two, but one of them.
EVENT, JUNK, EITHER = "event", "junk", "either"

#: A database of the fuzzer's refuses events of types that begin so.
REFUSED = "refused"


@dataclass(frozen=True)
class Line:
    """A line of the feed: where it stands, its bytes, what must become of it, and its event's id, if it has one."""

    position: int
    raw: bytes
    fate: str
    event_id: str = ""


# ----------------------------------------------------------------------------------------------------------- the lines

TIMESTAMPS = [
    '"12:"', '"1:"', '"0000-01-01T00:00:00Z"', '"9999-12-31T23:59:59-14:00"', '"2026-12-31T23:59:60Z"', "1e999", "-1",
    '"0001-01-01T00:00:00+14:00"', '"2026-01-01T24:00:00Z"', '"2026-01-01T00:00:00+24:00"', '"2026-W60-1T00"', "{}",
    '"\\u0000"', '"\\ud800"', '"now"', '"2026-02-30T00:00:00Z"', '"20260101T000000,5Z"', '"٢٠٢٦-01-01T00:00:00Z"', "[]",
    '"infinity"', '"epoch"', '"' + "9" * 5_000 + '"', '"2026-01-01T00:00:00.' + "1" * 400 + 'Z"',
]  # fmt: skip
VALUES = [
    "1e-20000", "1e400000", "1e-400", "0e-20000", "0e99999999999", "-0", "1." + "1" * 20_000, "9" * 140_000, "1E400",
    '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '{"a":1,"a":2}', '{"\\u0000":1}', "\"'; DROP TABLE x; --\"",
    '"' + "x" * 300_000 + '"', '"\\\\N\\t\\\\."', '"a\u2028b"', '"\x7f"', "[" + "0," * 20_000 + "0]", "null", '""',
    '"\U0001f680"', '"\ufffe"', "true", '"NaN"', '{"":{"":[]}}',
]  # fmt: skip
IDS = ["1e5", "-0", "9" * 400, '"' + "é" * 250 + '"', '"a b"', '"\\n"', '"NULL"', '"\u202e"', '"\\\\N"', "1.50"]
TYPES = ['"\\t"', '""', '"\u0130"', '"' + "t" * 5_000 + '"', '"%s"', '"{events}"', '"?"', '"[account]"']
NO_EVENTS = [
    b"junk", b"junk", b"junk \xff", b"{}", b"[]", b"null", b"\0", b'{"event_id":1}', b"{" * 5_000,
    b'"' + b"[" * 2_000 + b'"', b'{"event_id":{},"type":"t"}',
    b'{"type":"t"}', b'{"event_id":"","type":"t"}', b'{"event_id":1,"type":7}', b'"',
    b'{"event_id":"\\u0000","type":"t"}', b'{"event_id":"' + b"x" * 501 + b'","type":"t"}', b"<html></html>",
]  # fmt: skip


def lines(rng: random.Random, count: int, numbered: bool) -> list[Line]:
    """So many lines of a feed; ``numbered``: the events' ids are their positions, as the cursor compares them."""
    made: list[Line] = []
    position = 0
    for _ in range(count):
        position += 1 if rng.random() < 0.8 else rng.randint(2, 30)
        made.append(_line(rng, position, numbered))
        if rng.random() < 0.05 and not numbered:  # an event that the feed gives twice
            position += 1
            made.append(Line(position, *(made[-1].raw, made[-1].fate, made[-1].event_id)))
    event_id = position + 1 if numbered else f"e{position + 1}"
    raw = f'{{"event_id":{json.dumps(event_id)},"type":"t","data":null}}'.encode()
    return [*made, Line(position + 1, raw, EVENT, str(event_id))]


def _line(rng: random.Random, position: int, numbered: bool) -> Line:
    if rng.random() < 0.15:
        return Line(position, rng.choice(NO_EVENTS), JUNK)
    event_id = str(position) if numbered else f"e{position}"
    fields = {"event_id": json.dumps(position if numbered else event_id), "type": '"t"', "data": f'{{"n":{position}}}'}
    fate = EVENT
    if rng.random() < 0.3:
        name = rng.choice(["timestamp", "data", "other", "nested", "event_id", "type", "refused"])
        if name == "event_id":
            if numbered:
                fields["x"] = "1"
            else:
                given = rng.choice(IDS)
                # One id, one event: its value differs by position, whatever its form.
                fields["event_id"] = given[:-1] + f'{position}"' if given[0] == '"' else f"{given}{position}"
                event_id = _read(fields["event_id"])
        else:
            fields[name] = _poison(rng, name)
        if name == "refused":
            fields["type"] = f'"{REFUSED}"'
        fate = EITHER
    raw = "{" + rng.choice([",", ", "]).join(f'"{name}":{value}' for name, value in fields.items()) + "}"
    return Line(position, raw.encode(), fate, event_id)


def _read(text: str) -> str:
    return str(json.loads(text)) if text[0] == '"' else text


def _poison(rng: random.Random, name: str) -> str:
    if name == "timestamp":
        return rng.choice(TIMESTAMPS) if rng.random() < 0.7 else json.dumps(_stamp(rng))
    if name == "type":
        return rng.choice(TYPES)
    if name == "nested":
        depth = rng.choice([10, rng.randint(900, 1_000), 8_000])
        return "[" * depth + rng.choice(["", '"\\ud800"', "1e-20000"]) + "]" * depth
    return rng.choice(VALUES)


def _stamp(rng: random.Random) -> str:
    return rng.choice("0129") + "".join(rng.choice("0123456789-:.TWZ+ /P") for _ in range(rng.randrange(30)))


# --------------------------------------------------------------------------------------------------------- the answers


@dataclass
class Feed:
    """Answers truthfully, or as ``rng`` says while ``faults`` is the probability of a fault."""

    rng: random.Random
    lines: list[Line]
    faults: float = 0.0
    asked: int = 0
    met: dict[str, int] = field(default_factory=dict)
    _lied: set[int] = field(default_factory=set)

    def page(self, cursor: int, limit: int) -> tuple[list[Line], int, bool]:
        """Lines, the next cursor, and whether there are more; pages are cut anew each time."""
        after = [line for line in self.lines if line.position > cursor]
        count = min(limit, self.rng.choice([1, 2, 3, 5, 8, 1_000]))
        # A page of rows that the database refuses, each of them, is an error: it also has one that it takes.
        while any(REFUSED.encode() in line.raw for line in after[:count]) and all(
            line.fate != EVENT for line in after[:count]
        ):
            count += 1
        taken = after[:count]
        return taken, taken[-1].position if taken else cursor, len(taken) < len(after)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        query = parse_qs(urlsplit(handler.path).query)
        cursor = int(query["cursor"][0])
        taken, next_cursor, more = self.page(cursor, int(query["limit"][0]))
        body = b"".join(line.raw + b"\n" for line in taken)
        if taken and taken[-1].fate == EVENT and self.rng.random() < 0.1:
            body = body.removesuffix(b"\n")
        headers = {"Content-Type": "application/x-ndjson", "X-Next-Cursor": str(next_cursor)}
        headers |= {"X-Has-More": str(more).lower(), "Content-Length": str(len(body))}
        reply = Reply(200, headers, body)
        if self.rng.random() < self.faults:
            name = self.rng.choice(sorted(FAULTS))
            if name == "wild cursor":
                # A feed that says it twice is believed.
                if cursor in self._lied:
                    name = "no cursor"
                self._lied.add(cursor)
            self.met[name] = self.met.get(name, 0) + 1
            FAULTS[name](reply, self.rng, cursor)
        reply.send(handler)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    short: int = 0
    bare: bytes | None = None

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        if self.bare is not None:
            handler.wfile.write(self.bare)
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response(self.status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(self.body[: len(self.body) - self.short])


def _header(name: str, *values: str) -> Any:
    return lambda reply, rng, cursor: reply.headers.update({name: rng.choice(values)})


def _wild(reply: Reply, rng: random.Random, cursor: int) -> None:
    reply.headers["X-Next-Cursor"] = str(cursor + rng.choice([10**6, 2**53, 10**15, 2**62]))


def _refuse(reply: Reply, rng: random.Random, cursor: int) -> None:
    reply.status = rng.choice([429, 429, 500, 502, 503, 504])
    if rng.random() < 0.7:
        reply.headers["Retry-After"] = rng.choice(["0", "1", "60", "-5", "nan", "1e9", "soon", "", "9" * 400])


def _cut(reply: Reply, rng: random.Random, cursor: int) -> None:
    """In the middle of the last line, under a length that fits."""
    last = reply.body.rstrip(b"\r\n").rpartition(b"\n")[2]
    if len(last) > 2:
        reply.body = reply.body[: reply.body.rindex(last) + rng.randrange(1, len(last))]
        reply.headers["Content-Length"] = str(len(reply.body))
    else:
        reply.headers.pop("X-Next-Cursor")


def _short(reply: Reply, rng: random.Random, cursor: int) -> None:
    reply.headers["Content-Length"] = str(len(reply.body) + 10)


def _no_http(reply: Reply, rng: random.Random, cursor: int) -> None:
    reply.bare = rng.choice([b"", b"SSH-2.0\r\n", b"\0" * 100, b"HTTP/1.1 200\r\nX: \xff\r\n", b"x" * 70_000])


def _without(name: str) -> Any:
    return lambda reply, rng, cursor: reply.headers.pop(name, None)


FAULTS: dict[str, Any] = {
    "wild cursor": _wild,
    "no cursor": _without("X-Next-Cursor"),
    "bad cursor": _header("X-Next-Cursor", "", "-1", "1.0", "0x1", "9" * 400, "1, 2", "\u00b2", "nan"),
    "bad more": _header("X-Has-More", "", "1", "perhaps", "true, false"),
    "no more": _without("X-Has-More"),
    "bad type": _header("Content-Type", "text/html", "application/json", ""),
    "encoded": _header("Content-Encoding", "gzip", "br"),
    "refused": _refuse,
    "cut": _cut,
    "short": _short,
    "no http": _no_http,
}


@contextmanager
def serving(feed: Feed) -> Iterator[str]:
    """The feed's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):  # who asked went away
                feed.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with threads.serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
