"""A proxy before the sandbox that answers some calls itself."""

from __future__ import annotations

import http.client
import itertools
import time as real_time
from datetime import datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler

from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import SimulatedClock

#: The calls that the proxy can fail: how their paths end.
CALLS = {"create": "/transfers", "attach": "/files", "send": "/send"}


class Proxy:
    """Stands before the sandbox and answers some calls itself.

    :ivar tries: by call, when the tries came that it failed, and the next one: seconds of the injected clock and of
        the real one.
    """

    def __init__(self, sandbox: Sandbox, time: SimulatedClock) -> None:
        self.sandbox, self.time = sandbox, time
        self.tries: dict[str, list[tuple[float, float]]] = {}
        self._status, self._headers, self._times = 0, dict[str, str](), 0

    def fail(self, *calls: str, status: int, headers: dict[str, str], times: int = 1_000) -> None:
        """Answer so to each of ``calls`` (of :data:`CALLS`) that often, and let it through from then on."""
        self.tries = {call: [] for call in calls}
        self._status, self._headers, self._times = status, headers, times

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str]] | None:
        """A status and headers, or None to let the call through."""
        call = next((call for call in self.tries if method == "POST" and path.endswith(CALLS[call])), None)
        if call is None or len(self.tries[call]) > self._times:
            return None
        self.tries[call].append((self.time.now, real_time.monotonic()))
        return None if len(self.tries[call]) > self._times else (self._status, self._dated())

    def gaps(self, call: str) -> list[tuple[float, float]]:
        """Between two tries: seconds waited, and seconds passed (the waited ones and those that the code took)."""
        return [
            (late - soon, late - soon + late_real - soon_real)
            for (soon, soon_real), (late, late_real) in itertools.pairwise(self.tries[call])
        ]

    def _dated(self) -> dict[str, str]:
        now = datetime.fromisoformat(self.sandbox.state()["clock"])
        return {name: _http_date(now, value) for name, value in self._headers.items()}


def _http_date(now: datetime, value: str) -> str:
    # "@+30" is the date in 30 seconds.
    return format_datetime(now + timedelta(seconds=int(value[1:])), usegmt=True) if value[:1] == "@" else value


class ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out whole, or the client waits for the second half
    proxy: Proxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if answer := self.proxy.answer(self.command, self.path):
            self._reply(*answer, b'{"error": "made_up", "message": "made up"}')
            return
        upstream = http.client.HTTPConnection(self.proxy.sandbox.base_url.removeprefix("http://"), timeout=30)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            with upstream.getresponse() as response:
                self._reply(response.status, dict(response.headers), response.read())
        finally:
            upstream.close()

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    do_GET = do_POST = do_DELETE = _handle  # noqa: N815  # the library's names
