"""What is made of observations: a status that is never better than what was seen, and what to do about it."""

from __future__ import annotations

import pytest

from outbound_transfer.client.errors import InvalidRequest, InvalidSettings, NoResponse, NotConnected, error_of
from outbound_transfer.hooks import health
from outbound_transfer.hooks.health import MAX_CLOCK_DIFFERENCE
from outbound_transfer.observability.findings import Health

OK, DEGRADED, BROKEN, UNKNOWN = Health

NO_KEY, REFUSED = InvalidSettings("the password is not set"), error_of(401, "invalid_api_key", "Unknown key.")
FAULT, LATE = error_of(503, "service_unavailable", ""), error_of(429, "rate_limited", "")
DOWN, BAD_CURSOR = NotConnected("no connection"), error_of(400, "", "")


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([None], OK), ([REFUSED], OK), ([LATE], OK), ([DOWN, BAD_CURSOR], OK), ([NO_KEY, REFUSED], OK),
        ([FAULT], DEGRADED), ([FAULT, DOWN], DEGRADED),
        ([DOWN], BROKEN), ([NoResponse("late"), NoResponse("late")], BROKEN), ([NO_KEY, DOWN], BROKEN),
        ([NO_KEY], UNKNOWN), ([NO_KEY, NO_KEY], UNKNOWN),
    ],
)  # fmt: skip
def test_the_service_responds_if_any_call_shows_it(outcomes: list[Exception | None], status: Health) -> None:
    assert health.judge_service("https://a.example.com", outcomes).status is status


@pytest.mark.parametrize(
    ("error", "transfer_key", "event_key"),
    [
        (None, OK, OK), (BAD_CURSOR, BROKEN, OK), (LATE, DEGRADED, OK), (REFUSED, BROKEN, BROKEN),
        (NO_KEY, BROKEN, BROKEN), (FAULT, UNKNOWN, UNKNOWN), (DOWN, UNKNOWN, UNKNOWN),
    ],
)  # fmt: skip
def test_a_key_is_judged_by_responses_alone(error: Exception | None, transfer_key: Health, event_key: Health) -> None:
    assert isinstance(BAD_CURSOR, InvalidRequest)
    assert health.judge_key("transfer_key", error).status is transfer_key
    assert health.judge_key("event_key", error).status is event_key


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("difference", "status"), [(0.4, OK), (MAX_CLOCK_DIFFERENCE, OK), (MAX_CLOCK_DIFFERENCE + 1, DEGRADED)]
)
def test_a_clock_may_differ_by_a_minute(difference: float, status: Health, sign: int) -> None:
    finding = health.judge_clock(sign * difference)
    assert finding.status is status
    assert status is OK or (" behind " if sign > 0 else " ahead of ") in finding.found


def test_a_time_that_is_not_said_is_unknown() -> None:
    assert health.judge_clock(None).status is UNKNOWN
