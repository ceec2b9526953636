"""Retry delays of both clients: never early, never a busy loop, never past the timeout. Time is injected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client import AsyncClient, Client, RetryPolicy, Settings
from outbound_transfer.client.retry import (
    MAX_RETRY_DELAY_FLOOR,
    MIN_RETRY_DELAY,
    RETRY_AFTER_JITTER,
    WAITED_JITTER,
    RetryDetails,
)
from outbound_transfer.protocol import endpoints, errors
from outbound_transfer.protocol.messages import Call, Operation, Response

SETTINGS = Settings("http://127.0.0.1:9/", "key")
PENDING = Response(200, {}, json.dumps({"id": "t", "status": "pending", "subject": "S"}).encode())
DRAFT = Response(200, {}, json.dumps({"id": "t", "status": "draft", "subject": "S"}).encode())
GET, SEND = endpoints.get_transfer("t"), endpoints.send_transfer("t")


def failure(status: int, code: str, retry_after: str | None = None) -> Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Response(status, headers, json.dumps({"error": code, "message": "m"}).encode())


def busy(retry_after: str | None = None) -> Response:
    return failure(503, "service_unavailable", retry_after)


def limited(retry_after: str | None = None) -> Response:
    return failure(429, "rate_limited", retry_after)


def full(retry_after: str | None = None) -> Response:
    return failure(409, "transfer_limit_reached", retry_after)


@dataclass
class Played:
    """One call through a client, on a clock that only sleep moves."""

    result: Any = None
    error: BaseException | None = None
    now: float = 0.0
    sleeps: list[float] = field(default_factory=list)
    retries: list[RetryDetails] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


Script = Callable[[int], Response | Exception]


def play(kind: type, script: Script, call: Call[Any] = GET, **options: Any) -> Played:
    """Perform ``call`` ``times`` times with a client of ``kind``; ``script`` gives the response to the n-th request."""
    played, numbers = Played(), count()
    on_retry = options.pop("on_retry", lambda retry: None)
    times = options.pop("times", 1)

    def sleep(seconds: float) -> None:
        played.sleeps.append(seconds)
        played.now += seconds

    def on_each_retry(retry: RetryDetails) -> None:
        played.retries.append(retry)
        on_retry(retry)

    def send(request: Call[Any]) -> Response:
        played.operations.append(request.operation)
        response = script(next(numbers))
        if isinstance(response, Exception):
            raise type(response)  # a new one, because an attempt sets attributes of its error
        return response

    waited = {call.operation.value: options.pop("waited", 0.0)}
    options |= {"clock": lambda: played.now, "on_retry": on_each_retry, "waited": waited}
    try:
        played.result = _perform(kind, call, times, sleep, send, options)
    except Exception as error:
        played.error = error
    return played


def _perform(kind: type, call: Call[Any], times: int, sleep: Any, send: Any, options: dict[str, Any]) -> Any:
    if kind is Client:
        with Client(SETTINGS, sleep=sleep, **options) as client:
            client._send = send  # type: ignore[method-assign]
            return [client.perform(call) for _ in range(times)][-1]

    async def perform() -> Any:
        async def sleep_async(seconds: float) -> None:
            sleep(seconds)

        async def send_async(request: Call[Any]) -> Response:
            return send(request)  # type: ignore[no-any-return]

        async with AsyncClient(SETTINGS, sleep=sleep_async, **options) as client:
            client._send = send_async  # type: ignore[method-assign]
            return [await client.perform(call) for _ in range(times)][-1]

    return asyncio.run(perform())


def always(response: Response | Exception) -> Script:
    return lambda number: response


def then(*responses: Response | Exception) -> Script:
    """Return these in turn, and then always the last."""
    return lambda number: responses[min(number, len(responses) - 1)]


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both
def test_a_successful_response_needs_no_retry(kind: type) -> None:
    played = play(kind, always(PENDING))
    assert (played.result.status, played.sleeps, played.operations) == ("pending", [], [Operation.GET])


@both
@pytest.mark.parametrize("code", ["invalid_request", "new"])
def test_a_permanent_error_is_not_retried(kind: type, code: str) -> None:
    played = play(kind, always(failure(400, code)))
    assert isinstance(played.error, errors.InvalidRequest)
    assert (played.sleeps, len(played.operations)) == ([], 1)


@both
@pytest.mark.parametrize(
    "error", [busy(), errors.ConnectionLost(), errors.TimedOut(), Response(200, {}, b"<html>")], ids=str
)
def test_transient_errors_back_off_and_are_bounded(kind: type, error: Any) -> None:
    policy = RetryPolicy(max_attempts=12, max_backoff=20)
    played = play(kind, always(error), policy=policy)
    assert isinstance(played.error, errors.CallError)
    assert len(played.operations) == 12
    assert len(played.sleeps) == 11
    assert all(MIN_RETRY_DELAY <= sleep <= 20 for sleep in played.sleeps), "no busy loop, no delay beyond the maximum"
    assert all(sleep <= max(2.0**n, MIN_RETRY_DELAY) for n, sleep in enumerate(played.sleeps)), "it grows from small"


@both
@pytest.mark.parametrize("call", [GET, SEND, endpoints.discard_transfer("t")], ids=lambda call: call.operation.value)
def test_an_address_that_never_connected_fails_within_seconds(kind: type, call: Call[Any]) -> None:
    played = play(kind, always(errors.NotConnected()), call)
    assert isinstance(played.error, errors.NotConnected)
    assert not played.error.in_doubt
    assert len(played.operations) == 3
    assert played.now <= 3


@both
@pytest.mark.parametrize("before", [busy(), errors.ConnectionLost()], ids=str)
def test_an_outage_of_a_service_that_was_reached_is_outlasted(kind: type, before: Any) -> None:
    outage = [errors.NotConnected()] * 6
    assert play(kind, then(before, *outage, PENDING)).error is None
    assert play(kind, then(*outage, PENDING), waited=60.0).error is None
    assert isinstance(play(kind, then(*outage, PENDING)).error, errors.NotConnected)


@both
def test_a_client_remembers_that_it_reached_the_service(kind: type) -> None:
    script = then(PENDING, *[errors.NotConnected()] * 6, PENDING)
    assert play(kind, script, times=2).error is None


@both
def test_the_backoff_is_spread_out(kind: type) -> None:
    firsts = {play(kind, then(busy(), busy(), busy(), busy(), PENDING)).sleeps[-1] for _ in range(5)}
    assert len(firsts) > 1


@both
@pytest.mark.parametrize("response", [limited, busy], ids=["429", "503"])
@pytest.mark.parametrize("seconds", ["0", "1", "42", "3000"])
def test_retry_after_wins_and_is_never_early(kind: type, response: Any, seconds: str) -> None:
    played = play(kind, then(response(seconds), PENDING))
    (sleep,) = played.sleeps
    expected = max(float(seconds), MIN_RETRY_DELAY)
    assert expected <= sleep <= expected + RETRY_AFTER_JITTER


@both
@pytest.mark.parametrize("nonsense", [None, "soon", "-5", "1.5", ""])
def test_without_a_valid_retry_after_it_backs_off(kind: type, nonsense: str | None) -> None:
    played = play(kind, then(limited(nonsense), PENDING))
    assert MIN_RETRY_DELAY <= played.sleeps[0] <= 60


@both
@pytest.mark.parametrize("seconds", ["3600", "999999999", "9" * 30])
def test_a_delay_beyond_the_timeout_is_not_started(kind: type, seconds: str) -> None:
    played = play(kind, always(limited(seconds)), policy=RetryPolicy(timeout=3_599))
    assert isinstance(played.error, errors.RateLimited)
    assert (played.sleeps, played.retries) == ([], [])


@both
@pytest.mark.parametrize("retry_after", [None, "0", "7"])
def test_rate_limits_are_waited_out_until_the_timeout(kind: type, retry_after: str | None) -> None:
    played = play(kind, always(limited(retry_after)), policy=RetryPolicy(max_attempts=2, timeout=100))
    assert isinstance(played.error, errors.RateLimited)
    assert played.now <= 100
    assert len(played.operations) > 3, "rate limits do not count as failures"
    assert min(played.sleeps) >= MIN_RETRY_DELAY


@both
def test_a_repeated_retry_after_of_zero_makes_no_busy_loop(kind: type) -> None:
    played = play(kind, always(limited("0")), policy=RetryPolicy(timeout=300))
    assert len(played.operations) <= 300 / MAX_RETRY_DELAY_FLOOR + 5
    assert max(played.sleeps) <= MAX_RETRY_DELAY_FLOOR + 300 * WAITED_JITTER


@both
def test_repeated_refusals_spread_out_the_more_the_longer_they_last(kind: type) -> None:
    sleeps = [play(kind, then(*[limited("60")] * 6, PENDING), policy=RetryPolicy()).sleeps for _ in range(20)]
    first, last = [each[0] for each in sleeps], [each[-1] for each in sleeps]
    assert max(first) - min(first) <= RETRY_AFTER_JITTER
    assert max(last) - min(last) > 20
    assert min(map(min, sleeps)) >= 60


@both
def test_time_that_was_waited_before_counts(kind: type) -> None:
    policy = RetryPolicy(timeout=100)
    assert play(kind, then(limited("50"), PENDING), policy=policy, waited=49.0).sleeps
    played = play(kind, then(limited("50"), PENDING), policy=policy, waited=51.0)
    assert isinstance(played.error, errors.RateLimited)
    assert played.sleeps == []


# ------------------------------------------------------------------------------------------------------------ slots


@both
def test_a_slot_is_waited_for_and_the_same_draft_sent(kind: type) -> None:
    played = play(kind, then(*[full()] * 30, PENDING), SEND)
    assert played.result.status == "pending"
    assert played.operations == [Operation.SEND] * 31
    assert all(60 <= sleep <= 60 + RETRY_AFTER_JITTER for sleep in played.sleeps)


@both
def test_waiting_for_a_slot_has_its_own_timeout(kind: type) -> None:
    played = play(kind, always(full()), SEND, policy=RetryPolicy(timeout=1, slot_timeout=600))
    assert isinstance(played.error, errors.TransferLimitReached)
    assert 500 < played.now <= 600
    again = play(kind, always(full()), SEND, policy=RetryPolicy(slot_timeout=600), waited=590.0)
    assert again.sleeps == []


@both
def test_a_slot_is_not_requested_before_retry_after(kind: type) -> None:
    assert play(kind, then(full("90"), PENDING), SEND).sleeps[0] >= 90


@both
@pytest.mark.parametrize("passing", [busy(), limited("30"), errors.NotConnected(), errors.ConnectionLost()], ids=str)
def test_a_transient_error_does_not_stop_a_long_wait_for_a_slot(kind: type, passing: Any) -> None:
    policy = RetryPolicy(max_attempts=3, timeout=300, slot_timeout=86_400)
    in_doubt = isinstance(passing, errors.ConnectionLost) or getattr(passing, "status", 0) == 503
    script = [*[full()] * 60, passing, *([DRAFT] if in_doubt else [])] * 3
    played = play(kind, then(*script, PENDING), SEND, policy=policy)
    assert played.error is None
    resumed = play(kind, then(passing, *([DRAFT] if in_doubt else []), PENDING), SEND, policy=policy, waited=80_000.0)
    assert resumed.error is None


@both
def test_failures_in_a_row_stop_a_wait_for_a_slot(kind: type) -> None:
    played = play(kind, then(full(), full(), errors.NotConnected()), SEND, policy=RetryPolicy(max_attempts=3))
    assert isinstance(played.error, errors.NotConnected)
    assert len(played.operations) == 5


# ---------------------------------------------------------------------------------------------------------- on_wait


@both
def test_the_hook_is_called_before_every_delay(kind: type) -> None:
    played = play(kind, then(busy("5"), limited("7"), PENDING))
    assert [retry.wait_for for retry in played.retries] == played.sleeps
    assert [type(retry.caused_by) for retry in played.retries] == [errors.ServerFault, errors.RateLimited]
    assert {retry.call.operation for retry in played.retries} == {Operation.GET}


class Elsewhere(Exception):
    """Raised by the hook of a task that waits deferred."""


@both
def test_the_hook_can_raise_to_wait_elsewhere(kind: type) -> None:
    def defer(retry: RetryDetails) -> None:
        raise Elsewhere

    played = play(kind, always(limited("60")), on_retry=defer)
    assert isinstance(played.error, Elsewhere)
    assert (played.sleeps, len(played.operations), len(played.retries)) == ([], 1, 1)


@both
def test_a_send_is_reconciled_before_it_is_repeated(kind: type) -> None:
    played = play(kind, then(errors.TimedOut(), busy(), PENDING), SEND)
    assert (played.result.status, played.operations) == ("pending", [Operation.SEND, Operation.GET, Operation.GET])


# ----------------------------------------------------------------------------------------------------- any sequence

responses = st.lists(
    st.sampled_from([busy(), busy("0"), busy("3"), limited(), limited("0"), limited("59"), limited("9" * 20)])
    | st.sampled_from([full(), errors.NotConnected(), errors.ConnectionLost()]),
    max_size=30,
)


@given(
    responses, st.sampled_from([GET, SEND]), st.integers(1, 8), st.floats(0, 500), st.floats(0, 500), st.floats(0, 900)
)
def test_no_sequence_of_failures_makes_a_busy_loop_or_exceeds_the_timeout(
    script: list[Any], call: Call[Any], attempts: int, timeout: float, slot_timeout: float, waited: float
) -> None:
    policy = RetryPolicy(max_attempts=attempts, timeout=timeout, slot_timeout=slot_timeout)
    played = play(Client, then(*script, PENDING), call, policy=policy, waited=waited)
    assert all(sleep >= MIN_RETRY_DELAY for sleep in played.sleeps)
    bound = timeout + (slot_timeout if call is SEND else 0)
    assert waited + played.now <= max(bound, waited)
    assert played.error is None or isinstance(played.error, errors.CallError)
