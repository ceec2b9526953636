"""A client that another thread stops, and the deferrals of several calls as one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from outbound_transfer.client import Client, Settings, client
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.deferral import CallsStopped, DeferRequested, combine_requests
from outbound_transfer.protocol.messages import Response
from support.timeouts import TEST_TIMEOUT

SETTINGS = Settings("http://127.0.0.1:9/", "key")
LIMITED = Response(429, {"retry-after": "3000"}, b'{"error": "rate_limited", "message": "m"}')


def test_a_retry_delay_ends_without_another_attempt() -> None:
    attempts, reached = [], threading.Event()

    def refuse(*request: Any) -> Response:
        attempts.append(request)
        return LIMITED

    with (
        Client(SETTINGS, on_retry=lambda retry: reached.set()) as stopped,
        mock.patch.object(client, "send", refuse),
        ThreadPoolExecutor(1) as thread,
    ):
        future = thread.submit(stopped.perform, endpoints.get_transfer("t"))
        assert reached.wait(TEST_TIMEOUT)
        stopped.stop()
        assert isinstance(future.exception(TEST_TIMEOUT), CallsStopped)
    assert len(attempts) == 1


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
