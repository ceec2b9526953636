"""When an event feed is behind, where it is loaded."""

from __future__ import annotations

from itertools import product

import pytest

from outbound_transfer.observability.findings import Health
from outbound_transfer.store import health
from outbound_transfer.store.health import MAX_FEED_LAG

OK, DEGRADED, _, UNKNOWN = Health


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
