"""A client whose requests get scripted responses, on a clock that only its sleep moves."""

from __future__ import annotations

import json
from typing import Any

from outbound_transfer.client import Client, Settings
from outbound_transfer.protocol.messages import Call, Response

SETTINGS = Settings("http://127.0.0.1:9/", "key", "obs_key")


def response(code: int, retry_after: str | None = None, **body: Any) -> Response:
    return Response(code, {"retry-after": retry_after} if retry_after else {}, json.dumps(body).encode())


PENDING = response(200, id="t", status="pending", subject="S")
DRAFT = response(200, id="t", status="draft", subject="S")
FULL = response(409, error="transfer_limit_reached")
BUSY = response(503, error="service_unavailable")
LIMITED = response(429, "30", error="rate_limited")
NO_CREDIT = response(403, error="no_credit")
NOT_FOUND = response(404, error="not_found")
INVALID_STATE = response(409, error="invalid_state")
NO_CONTENT = Response(204, {}, b"")
NO_TRANSFERS = Response(200, {}, b'{"data": [], "next_cursor": null}')


class ScriptedClient(Client):
    """Notes its requests, its sleeps, and the calls of its hook.

    :ivar script: responses to requests in turn, or what they raise.
    """

    def __init__(self, *script: Response | BaseException, **options: Any) -> None:
        self.script, self.log, self.now = list(script), list[str](), 0.0
        super().__init__(SETTINGS, sleep=self._note_sleep, clock=lambda: self.now, **options)

    def hook(self) -> None:
        self.log.append("hook")

    def _note_sleep(self, seconds: float) -> None:
        self.log.append("sleep")
        self.now += seconds

    def _send(self, call: Call[Any]) -> Response:
        self.log.append(call.operation.value)
        scripted = self.script.pop(0)
        if isinstance(scripted, BaseException):
            raise scripted
        return scripted


class ScriptedAllowance:
    """Reserves each call so many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.reserved = seconds, 0

    def reserve(self) -> float:
        self.reserved += 1
        return self.seconds

    def record_refusal(self, retry_after: float) -> None:
        """Nobody else uses the key."""

    def record_repeat(self) -> None:
        """A repeat waits for nothing."""
