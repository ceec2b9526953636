"""When a wait is due, and how it ends."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.waiting.wait import Rules, Wait

SENT, EXPIRES = "2024-01-01T00:00:00Z", "2024-01-11T00:00:00Z"
START = 1_704_067_200.0  # SENT
DAY = 86_400.0


def wait(deadline: float = START + 30 * DAY, interval: float = 60.0, **arguments: Any) -> Wait:
    return Wait("t", interval, deadline, Rules(**arguments), asked=at(0))


def at(seconds: float) -> float:
    """So many seconds after the transfer was sent."""
    return START + seconds


def transfer(status: str = "pending", picked_up: int = 0) -> Transfer:
    people = [
        Recipient(f"{name}@example.com", None, SENT if index < picked_up else None) for index, name in enumerate("ab")
    ]
    return Transfer("t", status, "Report", EXPIRES, None, tuple(people), sent_at=SENT)


durations = st.floats(0, 40 * DAY)


@given(durations, st.floats(1, 3_600), st.floats(-1e6, 1e6))
def test_a_wait_is_due_once_in_each_interval_and_at_the_same_times_as_others(
    asked: float, interval: float, off: float
) -> None:
    one, other = wait(interval=interval, deadline=START + 1e9), wait(interval=interval, deadline=START + 1e9)
    one.asked, other.asked = at(asked), at(asked + interval / 3)
    origin = at(0) + off
    assert not one.is_due(origin, one.asked)
    assert one.is_due(origin, at(asked + interval * 1.001))
    if not other.is_due(origin, at(asked + interval / 2)):
        assert other.is_due(origin, at(asked + interval * 4 / 3 + 0.1))
    if not one.is_due(origin, other.asked):
        later = at(asked + interval * 0.7)
        assert one.is_due(origin, later) == other.is_due(origin, later)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_moments_of_expiry_and_deadline_are_polled_once_each(expiry: int, left: int) -> None:
    one = wait(START + expiry + left, interval=1e9)
    one.update(transfer(), at(-1))
    one._expired_at = START + expiry
    for moment in (expiry, expiry + left):
        assert not one.is_due(START - 1e8, at(moment - 0.5))
        assert one.is_due(START - 1e8, at(moment + 0.1))
        one.update(OSError("down"), at(moment + 0.1))
        assert not one.is_due(START - 1e8, at(moment + 0.2))


@given(st.integers(0, 10**6))
def test_a_wait_that_begins_after_its_deadline_is_read_once(late: int) -> None:
    """A triggerer was down meanwhile."""
    one = wait(START - late, interval=1e9)
    assert one.is_due(START - 1e8, at(0))
    assert one.must_be_read(at(0))
    one.update(OSError("down"), at(0))
    assert one.end is None
    assert not one.is_due(START - 1e8, at(0.1))


def test_a_clock_that_is_set_back_puts_off_no_read() -> None:
    one = wait()
    one.asked = at(DAY)
    assert one.is_due(START, at(20))


def test_the_clock_of_the_service_decides_when_a_transfer_has_expired() -> None:
    one = wait(interval=1e9)
    one.update(transfer(), at(0), ahead=30.0)
    assert not one.is_due(START - 1e8, at(10 * DAY - 30))
    assert one.is_due(START - 1e8, at(10 * DAY + 1 - 30))


def test_an_expiry_that_is_put_off_at_each_read_causes_no_polls() -> None:
    one = wait(interval=3_600.0)
    one.update(transfer(), at(0))
    one.update(Transfer("t", "pending", "Report", "2024-01-01T00:01:00Z", sent_at=SENT), at(1))
    assert not one.is_due(START, at(70))


def test_news_are_told_once() -> None:
    one = wait()
    for seconds in range(3):
        one.update(transfer(), at(seconds))
        one.update(transfer(), at(seconds))
        one.update(OSError("down"), at(seconds))
        one.update(OSError("down"), at(seconds))
    assert one.news.qsize() == 2 * 3
