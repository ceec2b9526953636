"""A client that shares its key's allowance: each call waits for its reserved time, once, and reports refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from unittest import mock

import pytest

from outbound_transfer.client import AsyncClient, Client, Settings, client
from outbound_transfer.client.allowance import ReservationDetails
from outbound_transfer.client.deferral import MAX_REPEATED_CALLS
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.deferral import DeferRequested
from outbound_transfer.protocol.errors import RateLimited
from outbound_transfer.protocol.flows import discard_draft
from outbound_transfer.protocol.messages import Call, Operation, Response
from support.scripted_client import NOT_FOUND, ScriptedAllowance, ScriptedClient
from support.scripted_client import PENDING as SENT
from support.timeouts import TEST_TIMEOUT

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


# ------------------------------------------------------------------ a task that is deferred until its reserved time


class Task:
    """A task that is deferred for each call that is half a minute away, as the operators are.

    :ivar sent: the calls that each of its processes has sent.
    :ivar reserved: how many calls each of its deferrals has reserved.
    """

    def __init__(self, work: Callable[[ScriptedClient], object]) -> None:
        self.work = work
        self.sent: list[list[str]] = []
        self.reserved: list[int] = []

    def run(self) -> None:
        while True:
            try:
                with ScriptedClient(
                    *[SENT] * 100,
                    allowance=ScriptedAllowance(30.0),
                    on_reservation=self.defer,
                    reserved_delays=[1.0] * (self.reserved[-1] if self.reserved else 0),
                ) as client:
                    try:
                        self.work(client)
                        return
                    finally:
                        self.sent.append([entry for entry in client.log if entry != "sleep"])
            except DeferRequested:
                assert len(self.sent) < 20, "without end"

    def defer(self, reservation: ReservationDetails) -> None:
        if reservation.repeats <= MAX_REPEATED_CALLS:
            self.reserved.append(1 + len(reservation.reserve_repeats()))
            raise DeferRequested(reservation.delay)


@pytest.mark.parametrize("reads", range(MAX_REPEATED_CALLS + 1))
def test_each_process_makes_the_reads_of_the_last_again_and_one_call_more(reads) -> None:
    def work(client: ScriptedClient) -> None:
        for _ in range(reads):
            client.perform(GET)
        client.perform(SEND)

    task = Task(work)
    task.run()
    assert task.sent == [["get"] * made for made in range(reads + 1)] + [["get"] * reads + ["send"]]
    assert task.reserved == list(range(1, reads + 2))


def test_more_than_a_few_reads_are_not_made_again() -> None:
    """From then on, the task waits in its worker."""
    task = Task(lambda client: [client.perform(GET) for _ in range(50)])
    task.run()
    assert len(task.sent) == MAX_REPEATED_CALLS + 2
    assert task.sent[-1] == ["get"] * 50


def test_each_change_of_a_draft_takes_one_deferral() -> None:
    """Once something is changed, another process begins with a read of it, which is reserved, too."""
    files, is_known = ["a", "b", "c"], False

    def work(client: ScriptedClient) -> None:
        nonlocal is_known
        if is_known:
            client.perform(GET)
        while files:
            client.perform(endpoints.remove_file("t", files[0]))
            files.pop(0)
            is_known = True

    task = Task(work)
    task.run()
    assert task.reserved == [1, 2, 2]
    assert task.sent == [[], ["remove"], ["get", "remove"], ["get", "remove"]]


def test_a_call_that_waits_for_its_hook_is_made_again_too() -> None:
    task = Task(lambda client: client.perform(SEND, before_attempt=lambda: client.perform(GET)))
    task.run()
    assert task.reserved == [1, 2]
    assert task.sent == [[], [], ["get", "send"]]


def test_a_call_that_was_refused_is_made_again_too() -> None:
    """Its task handled the error, as that of a draft that is gone."""

    def work(client: ScriptedClient) -> None:
        client.script.insert(0, NOT_FOUND)
        client.run(discard_draft("t"))
        client.perform(SEND)

    task = Task(work)
    task.run()
    assert task.reserved == [1, 2]
    assert task.sent == [[], ["discard"], ["discard", "send"]]


def test_calls_at_once_that_are_deferred_together_reserve_what_is_repeated_once() -> None:
    allowance, both = ScriptedAllowance(30.0), Barrier(3)
    reserved: list[int] = []

    def defer(reservation: ReservationDetails) -> None:
        both.wait(TEST_TIMEOUT)
        reserved.append(1 + len(reservation.reserve_repeats()))
        raise DeferRequested(reservation.delay)

    with (
        ScriptedClient(SENT, allowance=allowance, on_reservation=defer, reserved_delays=[0.0]) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        client.perform(GET)
        deferrals = [pool.submit(client.perform, endpoints.remove_file("t", name)) for name in "abc"]
        assert all(isinstance(each.exception(TEST_TIMEOUT), DeferRequested) for each in deferrals)
    assert sorted(reserved) == [1, 1, 2]


def test_a_time_that_was_reserved_before_is_waited_for_in_the_worker() -> None:
    """The next one may be as far away, and the next: a task that is deferred each time would never come further."""
    deferred: list[ReservationDetails] = []
    allowance = ScriptedAllowance(30.0)
    with ScriptedClient(
        SENT, SENT, allowance=allowance, on_reservation=deferred.append, reserved_delays=[1.0, 11.0]
    ) as client:
        client.perform(GET)
        client.perform(SEND)
        assert client.log == ["sleep", "get", "sleep", "send"]
        assert client.now == 11.0
    assert (deferred, allowance.reserved) == ([], 0)
