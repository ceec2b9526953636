"""What is made of observations: a status that is never better than what was seen, and what to do about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outbound_transfer.client.errors import InvalidSettings, NoResponse, NotConnected, error_of
from outbound_transfer.hooks import health
from outbound_transfer.hooks.health import MAX_CLOCK_DIFFERENCE
from outbound_transfer.observability.findings import Health
from outbound_transfer.store.destination import FeedStatus
from outbound_transfer.store.health import MAX_FEED_LAG, check_feed, is_behind

OK, DEGRADED, BROKEN, UNKNOWN = Health

NO_KEY, REFUSED = InvalidSettings("the password is not set"), error_of(401, "invalid_api_key", "Unknown key.")
FAULT, LATE = error_of(503, "service_unavailable", ""), error_of(429, "rate_limited", "")
DOWN, BAD_CURSOR = NotConnected("no connection"), error_of(400, "", "")


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([None], OK), ([REFUSED], OK), ([LATE], OK), ([DOWN, BAD_CURSOR], OK), ([NO_KEY, REFUSED], OK),
        ([FAULT], DEGRADED), ([FAULT, DOWN], DEGRADED), ([NO_KEY], UNKNOWN), ([NO_KEY, NO_KEY], UNKNOWN),
        ([DOWN], BROKEN), ([NoResponse("late"), NoResponse("late")], BROKEN), ([NO_KEY, DOWN], BROKEN),
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
    assert health.judge_key("transfer_key", error).status is transfer_key
    assert health.judge_key("event_key", error).status is event_key


def test_a_clock_may_differ_by_a_minute_and_a_time_that_is_not_said_is_unknown() -> None:
    for sign, side in ((1, " behind "), (-1, " ahead of ")):
        assert health.judge_clock(sign * 0.4).status is health.judge_clock(sign * MAX_CLOCK_DIFFERENCE).status is OK
        finding = health.judge_clock(sign * (MAX_CLOCK_DIFFERENCE + 1))
        assert finding.status is DEGRADED
        assert side in finding.found
    assert health.judge_clock(None).status is UNKNOWN


@pytest.mark.parametrize("has_more", [True, False])
@pytest.mark.parametrize("lag", [None, 0.0, MAX_FEED_LAG, MAX_FEED_LAG + 1])
def test_a_feed_is_behind_for_the_page_and_the_command_alike(lag: float | None, has_more: bool) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    at = None if lag is None else now - timedelta(seconds=lag)

    def check(status: int | None, polled_at: datetime | None) -> Health:
        of_feed = {"account": "acme", "address": None, "cursor": 7, "page_at": at, "caught_up": not has_more}
        return check_feed(FeedStatus(**of_feed, polled_at=polled_at, status=status), now).status

    assert (check(200, now) is OK) == (not is_behind(lag, has_more=has_more))
    assert check(401, now) is check(None, now) is DEGRADED or lag != 0 or has_more
    if lag is not None and not has_more:  # an old page says little where polls without events leave no trace
        assert check(None, None) is (OK if lag <= MAX_FEED_LAG else UNKNOWN)
