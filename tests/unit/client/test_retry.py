"""The retry loop, for any series of errors: how often it repeats, how long it waits, and which error it raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.client import (
    MAX_BACKOFF,
    MAX_FIRST_ATTEMPTS,
    MIN_DELAY,
    RATE_LIMIT_DELAY,
    SLOT_INTERVAL,
    Client,
    RetryPolicy,
)
from outbound_transfer.client.errors import (
    CallError,
    NoResponse,
    NotConnected,
    RateLimited,
    ServerFault,
    TransferLimitReached,
)
from outbound_transfer.client.settings import Settings

WAITS = st.none() | st.sampled_from([0.0, 0.2, 1.0, 7.0, 30.0, 61.0])
ERRORS = st.one_of(
    st.builds(lambda wait: RateLimited(429, "rate_limited", retry_after=wait), WAITS),
    st.builds(lambda wait: ServerFault(503, "service_unavailable", retry_after=wait), WAITS),
    st.builds(lambda wait: TransferLimitReached(409, "transfer_limit_reached", retry_after=wait), WAITS),
    st.builds(lambda: NoResponse("it broke")),
    st.builds(lambda: NotConnected("nobody there")),
)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 5),
    timeout=st.sampled_from([0.0, 20.0, 3_600.0]),
    slot_timeout=st.sampled_from([0.0, 90.0, 3_600.0]),
)


def client_of(policy: RetryPolicy, sleep: Callable[[float], object], was_reached: bool = True) -> Client:
    client = Client(Settings("http://h", "key"), policy=policy, sleep=sleep, on_retry=lambda *_: None)
    client._was_reached = was_reached
    return client


def run(
    errors: list[CallError], policy: RetryPolicy, max_in_doubt: int | None = None, was_reached: bool = True
) -> tuple[object, list[float], int]:
    """Return the result or the error, the waits, and the number of attempts."""
    left, waits, attempts = iter(errors), list[float](), 0

    def attempt(_: bool) -> str:
        nonlocal attempts
        attempts += 1
        if error := next(left, None):
            raise error
        return "done"

    with client_of(policy, waits.append, was_reached) as client:
        try:
            return client.retry("get", attempt, max_in_doubt), waits, attempts
        except CallError as error:
            return error, waits, attempts


def is_wait(error: CallError) -> bool:
    return isinstance(error, RateLimited | TransferLimitReached)


@given(st.lists(ERRORS, max_size=12), POLICIES)
def test_a_call_is_repeated_within_its_policy_and_never_without_a_wait(
    errors: list[CallError], policy: RetryPolicy
) -> None:
    result, waits, attempts = run(errors, policy)
    met = errors[:attempts]
    assert len(waits) == attempts - 1
    assert all(wait >= MIN_DELAY for wait in waits)
    assert sum(not is_wait(error) for error in met) <= policy.max_attempts
    slots = [wait for error, wait in zip(met, waits, strict=False) if isinstance(error, TransferLimitReached)]
    assert sum(slots) <= policy.slot_timeout
    assert sum(waits) - sum(slots) <= policy.timeout
    if result != "done":
        assert result is met[-1]
        assert result.is_exhausted  # type: ignore[attr-defined]


@given(st.lists(ERRORS, max_size=12))
def test_a_wait_is_as_long_as_the_service_asks_and_at_most_a_second_more(errors: list[CallError]) -> None:
    policy = RetryPolicy(max_attempts=20, timeout=1e6, slot_timeout=1e6)
    result, waits, _ = run(errors, policy)
    assert result == "done"
    for error, wait in zip(errors, waits, strict=True):
        asked = getattr(error, "retry_after", None)
        if isinstance(error, TransferLimitReached):
            asked = max(asked or 0.0, SLOT_INTERVAL)
        elif isinstance(error, RateLimited) and asked is None:
            asked = RATE_LIMIT_DELAY
        if asked is None:
            assert MIN_DELAY <= wait <= MAX_BACKOFF
        else:
            assert max(asked, MIN_DELAY) <= wait <= max(asked, MIN_DELAY) + 1


def test_a_wrong_address_fails_within_seconds() -> None:
    first, later = [[NotConnected(str(number)) for number in range(9)] for _ in range(2)]
    assert run([*first], RetryPolicy(), was_reached=False)[2] == MAX_FIRST_ATTEMPTS
    assert run([*later], RetryPolicy())[2] == RetryPolicy().max_attempts


def test_a_loop_around_another_does_not_repeat_what_that_has_given_up() -> None:
    errors: list[CallError] = [NoResponse("1"), NoResponse("2"), NoResponse("3")]
    calls, left = 0, iter(errors)

    def raise_next(_: bool) -> object:
        raise next(left)

    def attempt(_: bool) -> object:
        nonlocal calls
        calls += 1
        with client_of(RetryPolicy(max_attempts=2), lambda _: None) as inner:
            return inner.retry("get", raise_next)

    with client_of(RetryPolicy(), lambda _: None) as outer, pytest.raises(NoResponse, match="2"):
        outer.retry("send", attempt)
    assert calls == 1
