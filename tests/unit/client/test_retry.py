"""Errors of calls (service-api.md, R48) and their retries: how often, after how long, and which error is raised."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbound_transfer.client import client as client_module
from outbound_transfer.client import errors as client_errors
from outbound_transfer.client.client import MAX_BACKOFF, MIN_DELAY, RATE_LIMIT_DELAY, SLOT_INTERVAL, Client, RetryPolicy
from outbound_transfer.client.errors import CallError, NoResponse, NotConnected, ServiceError, error_of
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import parse_retry_after

WAITS = st.none() | st.sampled_from([0.0, 0.2, 1.0, 7.0, 30.0, 61.0])
ERRORS = st.one_of(
    st.builds(lambda wait: client_errors.RateLimited(429, "rate_limited", retry_after=wait), WAITS),
    st.builds(lambda wait: client_errors.ServerFault(503, "service_unavailable", retry_after=wait), WAITS),
    st.builds(lambda wait: client_errors.TransferLimitReached(409, "transfer_limit_reached", retry_after=wait), WAITS),
    st.builds(lambda: NoResponse("it broke")),
    st.builds(lambda: NotConnected("nobody there")),
)
TIMEOUTS = st.sampled_from([0.0, 20.0, 90.0, 3_600.0])
POLICIES = st.builds(RetryPolicy, max_attempts=st.integers(1, 5), timeout=TIMEOUTS, slot_timeout=TIMEOUTS)


def client_of(policy: RetryPolicy, sleep: Callable[[float], object], was_reached: bool = True) -> Client:
    client = Client(Settings("http://h", "key"), policy=policy, sleep=sleep, on_retry=lambda *_: None)
    client._was_reached = was_reached
    return client


def run(errors: list[CallError], policy: RetryPolicy, was_reached: bool = True) -> tuple[object, list[float], int]:
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
            return client.retry("get", attempt), waits, attempts
        except CallError as error:
            return error, waits, attempts


def is_wait(error: CallError) -> bool:
    return isinstance(error, client_errors.RateLimited | client_errors.TransferLimitReached)


@given(st.lists(ERRORS, max_size=12), POLICIES)
def test_a_call_is_repeated_within_its_policy_and_never_without_a_wait(errors, policy: RetryPolicy) -> None:
    result, waits, attempts = run(errors, policy)
    met = errors[:attempts]
    assert len(waits) == attempts - 1
    assert all(wait >= MIN_DELAY for wait in waits)
    assert sum(not is_wait(error) for error in met) <= policy.max_attempts
    slots = [
        wait for error, wait in zip(met, waits, strict=False) if isinstance(error, client_errors.TransferLimitReached)
    ]
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
        if isinstance(error, client_errors.TransferLimitReached):
            asked = max(asked or 0.0, SLOT_INTERVAL)
        elif isinstance(error, client_errors.RateLimited) and asked is None:
            asked = RATE_LIMIT_DELAY
        if asked is None:
            assert MIN_DELAY <= wait <= MAX_BACKOFF
        else:
            assert max(asked, MIN_DELAY) <= wait <= max(asked, MIN_DELAY) + 1


def test_a_wrong_address_fails_within_seconds() -> None:
    first, later = [[NotConnected(str(number)) for number in range(9)] for _ in range(2)]
    assert run([*first], RetryPolicy(), was_reached=False)[2] == client_module.MAX_FIRST_ATTEMPTS
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


NOW = datetime(2026, 1, 31, 23, 59, 30, tzinfo=UTC)


def http_date(seconds: float, now: datetime = NOW) -> str:
    return format_datetime(now + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((value, None) for value in (None, "", "-1", "+5", "1.5", "1e3", "5, 5", "٦", "²", "60s", "NaN", "inf")),
        (" 60 ", 60), ("0" * 20 + "9", 9), ("9" * 5_000, math.inf), (http_date(-3_600), 0),
        ("Sun, 01 Feb 2026 00:00:00 -0000", 30),
        ("Sunday, 01-Feb-26 00:00:00 GMT", 30),
        ("Sun Feb  1 00:00:00 2026", 30),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 251_632_396_829),
        ("Sun, 32 Feb 2026 00:00:00 GMT", None),
        ("Sun, 01 Feb 99999999999999999999 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_every_form_of_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, date=http_date(0)) == seconds


def test_a_date_says_nothing_without_the_services_own_clock() -> None:
    for date in (None, "", "yesterday", "0"):
        assert parse_retry_after(http_date(90), date=date) is None
        assert parse_retry_after("90", date=date) == 90


dates = st.datetimes().map(lambda moment: format_datetime(moment.replace(tzinfo=UTC), usegmt=True))
PARTS = ["Mon", ",", " ", "31", "Jan", "2026", "99999", "23:59:59", "GMT", "+9999", "-0000", "(", ":", "-"]
parts = st.sampled_from(PARTS)
anything = st.none() | st.text() | dates | st.lists(parts).map("".join) | st.lists(parts).map(" ".join)


@given(anything, anything)
@example("Mon, 1 Jan 0001 00:00:00 +2359", "Fri, 31 Dec 9999 23:59:59 -2359")
@example(" ", " ")
def test_any_text_gives_a_valid_delay_or_none(value: str | None, date: str | None) -> None:
    seconds = parse_retry_after(value, date=date)
    assert seconds is None or (not math.isnan(seconds) and seconds >= 0)


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(9000, 1, 1)), st.integers(0, 10**8))
def test_numbers_and_dates_are_never_early(now: datetime, seconds: int) -> None:
    now = now.replace(tzinfo=UTC, microsecond=0)
    assert parse_retry_after(str(seconds)) == seconds
    assert parse_retry_after(http_date(seconds, now), date=http_date(0, now)) == seconds


DOCUMENTED = {
    (400, "invalid_request"), (401, "invalid_api_key"), (403, "api_not_enabled"), (403, "api_not_permitted"),
    (403, "sending_not_permitted"), (403, "auth_option_not_enabled"), (403, "no_credit"), (404, "not_found"),
    (409, "invalid_state"), (409, "transfer_limit_reached"), (409, "recipient_limit_exceeded"),
    (411, "length_required"), (413, "file_too_large"), (429, "rate_limited"), (500, "internal_error"),
    (502, "service_unavailable"), (503, "service_unavailable"), (504, "service_unavailable"),
}  # fmt: skip


def test_no_two_documented_codes_are_one_error_and_each_says_what_to_do() -> None:
    kinds = {(status, code): type(error_of(status, code, "")) for status, code in DOCUMENTED}
    assert (
        len({kind for kind in kinds.values() if kind is not client_errors.ServerFault})
        == len({code for _, code in kinds}) - 2
    )
    unknown = error_of(418, "", "").advice, ServiceError.advice
    assert not any(kind.advice in unknown for kind in kinds.values() if kind is not kinds[400, "invalid_request"])


@given(st.integers(100, 699), st.text() | st.sampled_from(sorted(code for _, code in DOCUMENTED)), st.text())
def test_any_status_and_code_are_an_error_of_that_status(status: int, code: str, message: str) -> None:
    error = error_of(status, code, message, 7.0)
    assert isinstance(error, ServiceError)
    assert (error.status, error.code, error.message, error.retry_after) == (status, code, message, 7.0)
    assert error.in_doubt is (status // 100 == 5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("kind", [kind for kind in CallError.__subclasses__() if kind is not ServiceError])
def test_other_errors_of_a_call_reach_another_process(kind: type[CallError]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("words")))) == "words"
