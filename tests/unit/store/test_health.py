"""When an event feed is behind, where it is loaded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from outbound_transfer.observability.findings import Finding, Health
from outbound_transfer.store import health
from outbound_transfer.store.destination import FeedStatus
from outbound_transfer.store.health import MAX_FEED_LAG

OK, DEGRADED, _, UNKNOWN = Health
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def check(lag: float | None, status: int | None, *, has_more: bool = False, logs_polls: bool = True) -> Finding:
    at = None if lag is None else NOW - timedelta(seconds=lag)
    polled_at = NOW if logs_polls else None
    feed = FeedStatus(
        account="acme", address=None, cursor=7, page_at=at, caught_up=not has_more, polled_at=polled_at, status=status
    )
    return health.check_feed(feed, NOW)


def test_a_feed_is_behind_for_the_page_and_the_command_alike() -> None:
    for lag, has_more in product((None, 0.0, MAX_FEED_LAG, MAX_FEED_LAG + 1), (True, False)):
        assert (check(lag, 200, has_more=has_more).status is OK) == (not health.is_behind(lag, has_more=has_more))


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
    assert check(lag, status, logs_polls=logs_polls).status is expected
