"""Waits of the two clients: never early, never hot, never past the patience (design: promise 5.1). Time is injected."""

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
from outbound_transfer.client.retry import LONGEST_SHORT_WAIT, POLITENESS, SHORTEST_WAIT, Wait
from outbound_transfer.protocol import calls, errors
from outbound_transfer.protocol.exchange import Answer, Call, Operation

SETTINGS = Settings("http://127.0.0.1:9/", "key")
PENDING = Answer(200, {}, json.dumps({"id": "t", "status": "pending", "subject": "S"}).encode())
DRAFT = Answer(200, {}, json.dumps({"id": "t", "status": "draft", "subject": "S"}).encode())
GET, SEND = calls.get_transfer("t"), calls.send_transfer("t")


def failure(status: int, code: str, retry_after: str | None = None) -> Answer:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Answer(status, headers, json.dumps({"error": code, "message": "m"}).encode())


def busy(retry_after: str | None = None) -> Answer:
    return failure(503, "service_unavailable", retry_after)


def limited(retry_after: str | None = None) -> Answer:
    return failure(429, "rate_limited", retry_after)


def full(retry_after: str | None = None) -> Answer:
    return failure(409, "transfer_limit_reached", retry_after)


@dataclass
class Played:
    """One call through a client, on a clock that only sleep moves."""

    result: Any = None
    error: BaseException | None = None
    now: float = 0.0
    sleeps: list[float] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    asked: list[Operation] = field(default_factory=list)


Script = Callable[[int], Answer | Exception]


def play(kind: type, script: Script, call: Call[Any] = GET, **options: Any) -> Played:
    """Perform ``call`` with a client of ``kind``; ``script`` answers the n-th request."""
    played, numbers = Played(), count()
    on_wait = options.pop("on_wait", lambda wait: None)

    def sleep(seconds: float) -> None:
        played.sleeps.append(seconds)
        played.now += seconds

    def told(wait: Wait) -> None:
        played.waits.append(wait)
        on_wait(wait)

    def exchange(asked: Call[Any]) -> Answer:
        played.asked.append(asked.operation)
        answer = script(next(numbers))
        if isinstance(answer, Exception):
            raise type(answer)  # a new one: what is known of a try is noted on its error
        return answer

    waited = {call.operation.value: options.pop("waited", 0.0)}
    options |= {"clock": lambda: played.now, "on_wait": told, "waited": waited}
    try:
        played.result = _perform(kind, call, sleep, exchange, options)
    except Exception as error:
        played.error = error
    return played


def _perform(kind: type, call: Call[Any], sleep: Any, exchange: Any, options: dict[str, Any]) -> Any:
    if kind is Client:
        with Client(SETTINGS, sleep=sleep, **options) as client:
            client._exchange = exchange  # type: ignore[method-assign]
            return client.perform(call)

    async def perform() -> Any:
        async def sleep_async(seconds: float) -> None:
            sleep(seconds)

        async def exchange_async(asked: Call[Any]) -> Answer:
            return exchange(asked)  # type: ignore[no-any-return]

        async with AsyncClient(SETTINGS, sleep=sleep_async, **options) as client:
            client._exchange = exchange_async  # type: ignore[method-assign]
            return await client.perform(call)

    return asyncio.run(perform())


def always(answer: Answer | Exception) -> Script:
    return lambda number: answer


def then(*answers: Answer | Exception) -> Script:
    """These in turn, the last one for ever."""
    return lambda number: answers[min(number, len(answers) - 1)]


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both
def test_a_good_answer_takes_no_wait(kind: type) -> None:
    played = play(kind, always(PENDING))
    assert (played.result.status, played.sleeps, played.asked) == ("pending", [], [Operation.GET])


@both
@pytest.mark.parametrize("code", ["invalid_request", "new"])
def test_an_error_that_stays_takes_no_wait(kind: type, code: str) -> None:
    played = play(kind, always(failure(400, code)))
    assert isinstance(played.error, errors.InvalidRequest)
    assert (played.sleeps, len(played.asked)) == ([], 1)


@both
@pytest.mark.parametrize(
    "error", [busy(), errors.NotConnected(), errors.TimedOut(), Answer(200, {}, b"<html>")], ids=str
)
def test_passing_failures_back_off_and_are_bounded(kind: type, error: Any) -> None:
    policy = RetryPolicy(attempts=12, longest_backoff=20)
    played = play(kind, always(error), policy=policy)
    assert isinstance(played.error, errors.CallError)
    assert len(played.asked) == 12
    assert len(played.sleeps) == 11
    assert all(SHORTEST_WAIT <= sleep <= 20 for sleep in played.sleeps), "no hot loop, no wait beyond the longest"
    assert all(sleep <= max(2.0**n, SHORTEST_WAIT) for n, sleep in enumerate(played.sleeps)), "it grows from small"


@both
def test_the_backoff_is_spread_out(kind: type) -> None:
    firsts = {play(kind, then(busy(), busy(), busy(), busy(), PENDING)).sleeps[-1] for _ in range(5)}
    assert len(firsts) > 1


@both
@pytest.mark.parametrize("answer", [limited, busy], ids=["429", "503"])
@pytest.mark.parametrize("seconds", ["0", "1", "42", "3000"])
def test_the_services_wait_wins_and_is_never_early(kind: type, answer: Any, seconds: str) -> None:
    played = play(kind, then(answer(seconds), PENDING))
    (sleep,) = played.sleeps
    asked = max(float(seconds), SHORTEST_WAIT)
    assert asked <= sleep <= asked + POLITENESS


@both
@pytest.mark.parametrize("nonsense", [None, "soon", "-5", "1.5", ""])
def test_without_a_wait_that_makes_sense_it_backs_off(kind: type, nonsense: str | None) -> None:
    played = play(kind, then(limited(nonsense), PENDING))
    assert SHORTEST_WAIT <= played.sleeps[0] <= 60


@both
@pytest.mark.parametrize("seconds", ["3600", "999999999", "9" * 30])
def test_a_wait_that_is_too_long_is_not_begun(kind: type, seconds: str) -> None:
    played = play(kind, always(limited(seconds)), policy=RetryPolicy(patience=3_599))
    assert isinstance(played.error, errors.RateLimited)
    assert (played.sleeps, played.waits) == ([], [])


@both
@pytest.mark.parametrize("retry_after", [None, "0", "7"])
def test_rate_limits_are_waited_out_as_long_as_there_is_patience(kind: type, retry_after: str | None) -> None:
    played = play(kind, always(limited(retry_after)), policy=RetryPolicy(attempts=2, patience=100))
    assert isinstance(played.error, errors.RateLimited)
    assert played.now <= 100
    assert len(played.asked) > 3, "they are no failures that are counted"
    assert min(played.sleeps) >= SHORTEST_WAIT


@both
def test_a_wait_that_is_too_short_each_time_makes_no_hot_loop(kind: type) -> None:
    played = play(kind, always(limited("0")), policy=RetryPolicy(patience=300))
    assert len(played.asked) <= 300 / LONGEST_SHORT_WAIT + 5
    assert max(played.sleeps) <= LONGEST_SHORT_WAIT + POLITENESS


@both
def test_time_that_was_waited_before_counts(kind: type) -> None:
    policy = RetryPolicy(patience=100)
    assert play(kind, then(limited("50"), PENDING), policy=policy, waited=49.0).sleeps
    played = play(kind, then(limited("50"), PENDING), policy=policy, waited=51.0)
    assert isinstance(played.error, errors.RateLimited)
    assert played.sleeps == []


def test_time_that_was_waited_before_counts_for_the_first_call_of_that_operation() -> None:
    answers = iter([PENDING, limited("50"), PENDING])
    with Client(SETTINGS, policy=RetryPolicy(patience=100), sleep=lambda seconds: None, waited={"get": 90.0}) as client:
        client._exchange = lambda call: next(answers)  # type: ignore[method-assign]
        client.perform(GET)
        assert client.perform(GET).status == "pending"


# ------------------------------------------------------------------------------------------------------------ slots


@both
def test_a_slot_is_waited_for_and_the_same_draft_sent(kind: type) -> None:
    played = play(kind, then(*[full()] * 30, PENDING), SEND)
    assert played.result.status == "pending"
    assert played.asked == [Operation.SEND] * 31
    assert all(60 <= sleep <= 60 + POLITENESS for sleep in played.sleeps)


@both
def test_waiting_for_a_slot_is_bounded_by_its_own_patience(kind: type) -> None:
    played = play(kind, always(full()), SEND, policy=RetryPolicy(patience=1, limit_patience=600))
    assert isinstance(played.error, errors.TransferLimitReached)
    assert 500 < played.now <= 600
    again = play(kind, always(full()), SEND, policy=RetryPolicy(limit_patience=600), waited=590.0)
    assert again.sleeps == []


@both
def test_a_slot_is_not_asked_for_before_the_service_says(kind: type) -> None:
    assert play(kind, then(full("90"), PENDING), SEND).sleeps[0] >= 90


@both
@pytest.mark.parametrize("passing", [busy(), limited("30"), errors.NotConnected(), errors.ConnectionLost()], ids=str)
def test_a_passing_failure_does_not_end_a_long_wait_for_a_slot(kind: type, passing: Any) -> None:
    policy = RetryPolicy(attempts=3, patience=300, limit_patience=86_400)
    unclear = isinstance(passing, errors.ConnectionLost) or getattr(passing, "status", 0) == 503
    script = [*[full()] * 60, passing, *([DRAFT] if unclear else [])] * 3
    played = play(kind, then(*script, PENDING), SEND, policy=policy)
    assert played.error is None
    resumed = play(kind, then(passing, *([DRAFT] if unclear else []), PENDING), SEND, policy=policy, waited=80_000.0)
    assert resumed.error is None


@both
def test_failures_in_a_row_end_a_wait_for_a_slot(kind: type) -> None:
    played = play(kind, then(full(), full(), errors.NotConnected()), SEND, policy=RetryPolicy(attempts=3))
    assert isinstance(played.error, errors.NotConnected)
    assert len(played.asked) == 5


# ---------------------------------------------------------------------------------------------------------- on_wait


@both
def test_every_wait_is_told_before_it_begins(kind: type) -> None:
    played = play(kind, then(busy("5"), limited("7"), PENDING), waited=10.0)
    assert [wait.seconds for wait in played.waits] == played.sleeps
    assert [type(wait.error) for wait in played.waits] == [errors.ServerFault, errors.RateLimited]
    assert [wait.waited for wait in played.waits] == [10.0, 10.0 + played.sleeps[0]]
    assert {wait.call.operation for wait in played.waits} == {Operation.GET}


class Elsewhere(Exception):
    """What a task raises in order to wait deferred."""


@both
def test_a_wait_can_be_taken_elsewhere(kind: type) -> None:
    def defer(wait: Wait) -> None:
        raise Elsewhere

    played = play(kind, always(limited("60")), on_wait=defer)
    assert isinstance(played.error, Elsewhere)
    assert (played.sleeps, len(played.asked), len(played.waits)) == ([], 1, 1)


@both
def test_a_send_is_settled_before_it_is_repeated(kind: type) -> None:
    played = play(kind, then(errors.TimedOut(), busy(), PENDING), SEND)
    assert (played.result.status, played.asked) == ("pending", [Operation.SEND, Operation.GET, Operation.GET])


# ----------------------------------------------------------------------------------------------------- any sequence

answers = st.lists(
    st.sampled_from([busy(), busy("0"), busy("3"), limited(), limited("0"), limited("59"), limited("9" * 20)])
    | st.sampled_from([full(), errors.NotConnected(), errors.ConnectionLost()]),
    max_size=30,
)


@given(
    answers, st.sampled_from([GET, SEND]), st.integers(1, 8), st.floats(0, 500), st.floats(0, 500), st.floats(0, 900)
)
def test_no_sequence_of_failures_makes_a_hot_loop_or_outlasts_the_patience(
    script: list[Any], call: Call[Any], attempts: int, patience: float, limit_patience: float, waited: float
) -> None:
    policy = RetryPolicy(attempts=attempts, patience=patience, limit_patience=limit_patience)
    played = play(Client, then(*script, PENDING), call, policy=policy, waited=waited)
    assert all(sleep >= SHORTEST_WAIT for sleep in played.sleeps)
    bound = patience + (limit_patience if call is SEND else 0)
    assert waited + played.now <= max(bound, waited)
    assert played.error is None or isinstance(played.error, errors.CallError)
