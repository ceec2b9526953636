"""What is made of observations: a status that is never better than what was seen, and what to do about it."""

from __future__ import annotations

from itertools import product

import pytest

from outbound_transfer.client import health
from outbound_transfer.client.errors import (
    InvalidRequest,
    InvalidSettings,
    NotConnected,
    ServiceError,
    TimedOut,
)
from outbound_transfer.client.health import CLOCK_MARGIN, MAX_CLOCK_DIFFERENCE, MAX_FEED_LAG, Health

OK, DEGRADED, BROKEN, UNKNOWN = Health

NO_KEY, REFUSED = InvalidSettings("the password is not set"), ServiceError.of(401, "invalid_api_key", "Unknown key.")
FAULT, LATE = ServiceError.of(503, "service_unavailable", ""), ServiceError.of(429, "rate_limited", "")
DOWN, BAD_CURSOR = NotConnected("no connection"), ServiceError.of(400, "", "")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([], 0), ([OK, OK], 0), ([OK, DEGRADED], 1), ([UNKNOWN], 1), ([DEGRADED, BROKEN, UNKNOWN], 2)],
)
def test_the_worst_finding_decides_the_exit_status(statuses: list[Health], expected: int) -> None:
    assert health.exit_status(health.Finding("a", status, "") for status in statuses) == expected


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([None], OK), ([REFUSED], OK), ([LATE], OK), ([DOWN, BAD_CURSOR], OK), ([NO_KEY, REFUSED], OK),
        ([FAULT], DEGRADED), ([FAULT, DOWN], DEGRADED),
        ([DOWN], BROKEN), ([TimedOut("late"), TimedOut("late")], BROKEN), ([NO_KEY, DOWN], BROKEN),
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
    assert health.judge_transfer_key(error).status is transfer_key
    assert health.judge_event_key(error).status is event_key


def test_a_refusal_and_its_advice_are_told_apart() -> None:
    finding = health.judge_transfer_key(REFUSED)
    assert finding.found == "401 invalid_api_key: Unknown key."
    assert finding.to_do == REFUSED.advice
    assert str(finding) == str(REFUSED)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("difference", "status"),
    [(0.4, OK), (MAX_CLOCK_DIFFERENCE, OK), (MAX_CLOCK_DIFFERENCE + 1, DEGRADED), (CLOCK_MARGIN, BROKEN)],
)
def test_a_clock_may_differ_by_a_minute(difference: float, status: Health, sign: int) -> None:
    finding = health.judge_clock(sign * difference)
    assert finding.status is status
    assert status is OK or (" ahead of " if sign > 0 else " behind ") in finding.found


def test_a_time_that_is_not_said_is_unknown() -> None:
    assert health.judge_clock(None).status is UNKNOWN


def test_a_feed_is_behind_for_the_page_and_the_command_alike() -> None:
    for lag, has_more in product((None, 0.0, MAX_FEED_LAG, MAX_FEED_LAG + 1), (True, False)):
        finding = health.judge_feed(7, lag, 200, has_more=has_more, logs_polls=True)
        assert (finding.status is OK) == (not health.is_behind(lag, has_more=has_more))


@pytest.mark.parametrize(
    ("status", "logs_polls", "lag", "expected"),
    [
        (401, True, 0.0, DEGRADED), (None, True, 0.0, DEGRADED), (None, False, 0.0, OK),
        (None, False, MAX_FEED_LAG + 1, UNKNOWN),
    ],
)  # fmt: skip
def test_an_old_page_says_little_where_polls_without_events_leave_no_trace(
    status: int | None, logs_polls: bool, lag: float, expected: Health
) -> None:
    assert health.judge_feed(7, lag, status, has_more=False, logs_polls=logs_polls).status is expected
