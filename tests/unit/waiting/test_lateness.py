"""When an outstanding transfer is late: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.waiting.lateness import find_late, first_late_at

SENT = datetime(2026, 3, 1, tzinfo=UTC)
EXPIRY = SENT + timedelta(days=7)
DAY = 86_400.0

offsets = st.lists(st.integers(-10 * 86_400, 10 * 86_400).filter(bool).map(float), unique=True, max_size=6)


def transfer(*picked_up: bool, sent_at: str | None = "2026-03-01T00:00:00Z", expires_at: str | None = None) -> Transfer:
    recipients = (Recipient(f"{n}@example.com", picked_up_at="2026" if up else None) for n, up in enumerate(picked_up))
    return Transfer("t", "partial", "S", expires_at, recipients=tuple(recipients), sent_at=sent_at)


OUTSTANDING = transfer(True, False, expires_at="2026-03-08T00:00:00Z")


@pytest.mark.parametrize(
    ("days", "late"),
    [(0.9, []), (1, [DAY]), (5.9, [DAY]), (6, [DAY, -DAY]), (6.4, [DAY, -DAY]), (6.5, [DAY, -DAY, 6.5 * DAY])],
)
def test_times_count_from_the_send_or_to_the_expiry(days: float, late: list[float]) -> None:
    assert find_late(OUTSTANDING, [-DAY, 6.5 * DAY, DAY], SENT.timestamp() + days * DAY) == late


@given(offsets, st.lists(st.floats(0, 8 * DAY)))
def test_each_time_is_found_once_never_early_and_never_forgotten(notify_after: list[float], polls: list[float]) -> None:
    """As a wait does it: polled at any times, and again when the next one is due."""
    found: list[float] = []
    expected = {each: (SENT if each > 0 else EXPIRY).timestamp() + each for each in notify_after}
    for now in sorted(SENT.timestamp() + each for each in polls):
        left = [each for each in notify_after if each not in found]
        due_at = first_late_at(OUTSTANDING, left)
        late = find_late(OUTSTANDING, left, now)
        assert bool(late) is (due_at <= now), "the next time is that at which something is found"
        assert set(late) == {each for each in left if expected[each] <= now}
        assert not late or expected[late[-1]] == max(expected[each] for each in late), "the one that passed last"
        found += late
    assert len(found) == len(set(found))
    assert first_late_at(OUTSTANDING, [each for each in notify_after if each not in found]) > max(
        (SENT.timestamp() + each for each in polls), default=-inf
    )


@pytest.mark.parametrize(
    "nobody_late",
    [
        transfer(True, True, expires_at="2026-03-08T00:00:00Z"),
        transfer(False, sent_at=None, expires_at="2026-03-08T00:00:00Z"),
        transfer(False, sent_at="soon", expires_at="2026-03-08T00:00:00Z"),
        transfer(),
    ],
    ids=["all picked up", "draft", "unreadable", "no recipients"],
)
def test_nobody_is_late_who_has_picked_up_or_was_sent_nothing(nobody_late: Transfer) -> None:
    assert find_late(nobody_late, [DAY, -DAY], inf) == []
    assert first_late_at(nobody_late, [DAY, -DAY]) == inf


def test_without_an_expiry_only_the_send_counts() -> None:
    assert find_late(transfer(False), [DAY, -DAY], inf) == [DAY]
