"""A client that another thread stops, and the deferrals of several calls as one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from outbound_transfer.client import Client, Settings, client
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.deferral import CallsStopped, DeferRequested, combine_requests
from outbound_transfer.protocol.messages import Call, Response, Upload
from support.timeouts import TEST_TIMEOUT

SETTINGS = Settings("http://127.0.0.1:9/", "key")
LIMITED = Response(429, {"retry-after": "3000"}, b'{"error": "rate_limited", "message": "m"}')


def outcome_of(
    call: Call[Any], send: Callable[[Call[Any]], Response], reached: threading.Event
) -> BaseException | None:
    """What a call in a thread raises that is stopped when it has come to a point."""
    with (
        Client(SETTINGS, on_retry=lambda retry: reached.set()) as stopped,
        mock.patch.object(client, "send", lambda _http, _settings, call, _secrets: send(call)),
        ThreadPoolExecutor(1) as thread,
    ):
        future = thread.submit(stopped.perform, call)
        assert reached.wait(TEST_TIMEOUT)
        stopped.stop()
        return future.exception(TEST_TIMEOUT)


def test_a_retry_delay_ends_without_another_attempt() -> None:
    attempts = []

    def refuse(call: Call[Any]) -> Response:
        attempts.append(call)
        return LIMITED

    assert isinstance(outcome_of(endpoints.get_transfer("t"), refuse, threading.Event()), CallsStopped)
    assert len(attempts) == 1


def test_an_upload_breaks_off_at_its_next_chunk() -> None:
    reached, sent = threading.Event(), list[bytes]()

    def endless() -> Iterator[bytes]:
        while True:
            yield b"u"

    def read(call: Call[Any]) -> Response:
        assert call.upload
        for chunk in call.upload.body():
            sent.append(chunk)
            reached.set()
        raise AssertionError

    upload = endpoints.attach_file("t", Upload("endless", 10**12, endless))

    assert isinstance(outcome_of(upload, read, reached), CallsStopped)


def test_a_request_that_is_sent_is_not_broken_off() -> None:
    reached, go = threading.Event(), threading.Event()

    def respond(call: Call[Any]) -> Response:
        assert call.upload
        size = len(b"".join(call.upload.body()))
        reached.set()
        go.wait(0.1)
        return Response(201, {}, json.dumps({"id": "f", "name": "n", "size": size}).encode())

    assert outcome_of(endpoints.attach_file("t", Upload("n", 1, lambda: iter([b"u"]))), respond, reached) is None


def test_deferrals_of_several_calls_wait_for_the_last_and_count_the_time_of_each() -> None:
    combined = combine_requests(
        [DeferRequested(20, {"attach": 100.0}), DeferRequested(50, {"attach": 60.0, "remove": 50.0})]
    )

    assert (combined.seconds, combined.waited) == (50, {"attach": 130.0, "remove": 50.0})
    assert not combined.was_in_doubt


def test_a_deferral_of_several_calls_was_in_doubt_if_one_was() -> None:
    combined = combine_requests([DeferRequested(1), DeferRequested(1, was_in_doubt=True), DeferRequested(1)])

    assert combined.was_in_doubt


def test_reserved_calls_are_made_from_the_first_on_unless_one_was_refused() -> None:
    reserved = [DeferRequested(seconds, reserved_at=[100.0 + seconds]) for seconds in (9, 7, 8)]
    combined = combine_requests(reserved)
    assert (combined.seconds, combined.reserved_at) == (7, [109.0, 107.0, 108.0])
    assert combine_requests([*reserved, DeferRequested(30)]).seconds == 30
