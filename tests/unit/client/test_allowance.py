"""A client that shares its key's allowance: each call waits for its reserved time, once, and reports refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from outbound_transfer.client import AsyncClient, Client, Settings, client
from outbound_transfer.client.allowance import ReservationDetails
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import RateLimited
from outbound_transfer.protocol.messages import Call, Operation, Response

SETTINGS = Settings("http://127.0.0.1:9/", "obt_k", "obs_k")
GET, SEND, EVENTS = endpoints.get_transfer("t"), endpoints.send_transfer("t"), endpoints.read_events()
PENDING = Response(200, {}, json.dumps({"id": "t", "status": "pending", "subject": "S"}).encode())
LIMITED = Response(429, {"retry-after": "7"}, b'{"error": "rate_limited", "message": "m"}')
PAGE = Response(200, {"content-type": "application/x-ndjson", "x-next-cursor": "0", "x-has-more": "false"}, b"")


class Allowance:
    """Notes what the client asks."""

    def __init__(self, *delays: float) -> None:
        self.delays, self.log = list(delays), []

    def reserve(self) -> float:
        self.log.append("reserve")
        return self.delays.pop(0) if self.delays else 0.0

    def record_refusal(self, retry_after: float) -> None:
        self.log.append(f"refused for {retry_after:g}")

    def record_repeat(self) -> None:
        self.log.append("repeat")


class Deferred(Exception):
    """Raised by a hook, to wait elsewhere."""


class Scene:
    """A client of one kind, the calls that it sends, and its sleeps."""

    def __init__(self, kind: type, *responses: Response) -> None:
        self.kind, self.responses = kind, list(responses)
        self.sent: list[Operation] = []
        self.sleeps: list[float] = []

    def perform(self, allowance: Allowance, *calls: Call[Any], **options: Any) -> None:
        asyncio.run(self._perform(allowance, calls, options))

    async def _perform(self, allowance: Allowance, calls: tuple[Call[Any], ...], options: dict[str, Any]) -> None:
        async def sleep(seconds: float) -> None:
            self.sleeps.append(seconds)

        if self.kind is Client:
            with Client(SETTINGS, allowance=allowance, sleep=self.sleeps.append, **options) as one:
                for call in calls:
                    one.perform(call)
            return
        async with AsyncClient(SETTINGS, allowance=allowance, sleep=sleep, **options) as one:
            for call in calls:
                await one.perform(call)

    def respond(self, _http: Any, _settings: Any, call: Call[Any], *_: Any) -> Response:
        self.sent.append(call.operation)
        return self.responses.pop(0) if self.responses else PENDING


@pytest.fixture(params=[Client, AsyncClient])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(request.param)

    async def respond(*arguments: Any) -> Response:
        return scene.respond(*arguments)

    with mock.patch.object(client, "send", scene.respond), mock.patch.object(client, "send_async", respond):
        yield scene


def test_each_call_waits_for_its_reserved_time(scene: Scene) -> None:
    allowance = Allowance(0.0, 3.5)
    scene.perform(allowance, GET, SEND)
    assert allowance.log == ["reserve", "reserve"]
    assert scene.sleeps == [3.5]


def test_the_feed_has_a_key_and_a_limit_of_its_own(scene: Scene) -> None:
    scene.responses = [PAGE]
    allowance = Allowance(3.5)
    scene.perform(allowance, EVENTS)
    assert (allowance.log, scene.sleeps) == ([], [])


def test_a_hook_may_wait_elsewhere_before_anything_is_sent(scene: Scene) -> None:
    def on_reservation(reservation: ReservationDetails) -> None:
        raise Deferred(reservation.call.operation, reservation.delay)

    with pytest.raises(Deferred) as deferred:
        scene.perform(Allowance(30.0), SEND, on_reservation=on_reservation)
    assert deferred.value.args == (Operation.SEND, 30.0)
    assert scene.sent == []


def test_calls_that_were_reserved_before_a_deferral_are_not_reserved_again(scene: Scene) -> None:
    allowance = Allowance()
    scene.perform(allowance, SEND, GET, GET, reserved_delays=[2.0, -1.0], clock=lambda: 0.0)
    assert allowance.log == ["reserve"]
    assert scene.sleeps == [2.0]


def test_a_refusal_is_reported_and_its_repeat_counted(scene: Scene) -> None:
    scene.responses = [LIMITED, PENDING]
    allowance = Allowance()
    scene.perform(allowance, GET, on_retry=lambda retry: None)
    assert allowance.log == ["reserve", "refused for 7", "repeat"]
    assert scene.sent == [Operation.GET, Operation.GET]


def test_a_refused_call_that_waits_elsewhere_is_not_counted_as_repeated(scene: Scene) -> None:
    def on_retry(retry: Any) -> None:
        assert isinstance(retry.caused_by, RateLimited)
        raise Deferred

    scene.responses = [LIMITED]
    allowance = Allowance()
    with pytest.raises(Deferred):
        scene.perform(allowance, GET, on_retry=on_retry)
    assert allowance.log == ["reserve", "refused for 7"]


def test_a_hook_knows_what_was_waited_for_and_whether_anything_was_done(scene: Scene) -> None:
    seen: list[ReservationDetails] = []
    scene.perform(Allowance(9, 9, 9), GET, SEND, GET, on_reservation=seen.append, waited={"send": 7.0})
    assert [(one.call.operation, one.waited, one.has_progressed) for one in seen] == [
        (Operation.GET, {"send": 7.0}, False),
        (Operation.SEND, {"send": 7.0}, False),
        (Operation.GET, {}, scene.kind is Client),
    ]
