"""When a wait is due, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.protocol.outcomes import OutcomeRules
from outbound_transfer.waiting.wait import DEFAULT_INTERVAL, LAST_CHANCE, Now, Wait, valid_interval

SENT, EXPIRES = "2024-01-01T00:00:00Z", "2024-01-11T00:00:00Z"
START = 1_704_067_200.0  # SENT
DAY = 86_400.0


def wait(deadline: float = START + 30 * DAY, interval: float = 60.0, **arguments: Any) -> Wait:
    return Wait("t", interval, deadline, OutcomeRules(**arguments), asked=at(0))


def at(seconds: float, ahead: float = 0.0) -> Now:
    """So many seconds after the transfer was sent, with a calendar that is ahead."""
    return Now(1_000.0 + seconds, START + seconds + ahead)


def transfer(status: str = "pending", picked_up: int = 0) -> Transfer:
    people = [
        Recipient(f"{name}@example.com", None, SENT if index < picked_up else None) for index, name in enumerate("ab")
    ]
    return Transfer("t", status, "Report", EXPIRES, None, tuple(people), sent_at=SENT)


durations = st.floats(0, 40 * DAY)


@given(durations, st.floats(1, 3_600), st.floats(-1e6, 1e6))
def test_a_wait_is_due_within_its_interval_and_at_the_same_times_as_others(
    asked: float, interval: float, off: float
) -> None:
    one = wait(interval=interval, deadline=START + 1e9)
    one.asked = at(asked)
    origin = at(0).monotonic + off
    due = one.due_at(origin, at(asked))
    assert at(asked).monotonic < due <= max(at(asked).monotonic, origin) + interval + 1e-3
    assert (due - origin) / interval == pytest.approx(round((due - origin) / interval), abs=1e-3)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_moments_of_expiry_and_deadline_are_polled_once_each(expiry: int, deadline: int) -> None:
    one = wait(START + deadline, interval=1e9)
    one.update(transfer(), at(-1))
    one._expires_at = START + expiry
    left = sorted({expiry + 1.0, float(deadline)})
    for moment in left:
        due = one.due_at(1_000.0 - 1e8, one.asked)
        assert due - 1_000.0 == pytest.approx(moment, abs=0.1)
        one.show(None, at(moment + 0.1))
    assert one.due_at(1_000.0 - 1e8, one.asked) > 1e8


@pytest.mark.parametrize(
    ("status", "picked_up", "arguments", "end"),
    [
        ("pending", 0, {}, None),
        ("partial", 1, {}, None),
        ("partial", 1, {"accept_partial": True}, "finished"),
        ("pending", 0, {"accept_partial": True}, None),
        ("complete", 2, {}, "finished"),
        ("expired", 0, {}, "finished"),
        ("canceled", 1, {}, "finished"),
        ("from the old days", 0, {}, None),
    ],
)
def test_a_status_ends_a_wait_as_its_rules_say(status: str, picked_up: int, arguments: Any, end: str | None) -> None:
    one = wait(**arguments)
    one.update(transfer(status, picked_up), at(60))
    assert (one.end and one.end.status) == end


def test_a_read_after_the_deadline_ends_the_wait_and_one_before_does_not() -> None:
    for seconds, end in ((99, None), (100, "timeout")):
        one = wait(START + 100)
        one.update(transfer(), at(seconds))
        assert (one.end and one.end.status) == end


def test_an_end_that_the_last_poll_sees_is_no_timeout() -> None:
    one = wait(START + 100)
    one.update(transfer("complete", 2), at(150))
    assert one.end is not None
    assert one.end.status == "finished"


def test_a_deadline_ends_a_wait_that_nothing_was_read_for() -> None:
    one = wait(START + 100)
    for seconds in (99, 101, 100 + LAST_CHANCE):
        one.check_deadline(at(seconds))
        assert one.end is None
    one.check_deadline(at(101 + LAST_CHANCE))
    assert one.end is not None
    assert one.end.status == "timeout"


def test_a_calendar_that_is_set_back_ends_no_wait() -> None:
    one = wait(START + 100)
    one.check_deadline(at(10, ahead=DAY))
    one.check_deadline(at(20))
    one.check_deadline(at(20 + LAST_CHANCE, ahead=DAY))
    assert one.end is None


def test_a_failed_last_read_is_repeated_soon() -> None:
    one = wait(START + 100, interval=3_600.0)
    one.check_deadline(at(101))
    one.fail(OSError("down"), at(101))
    assert one.due_at(1_000.0, at(101)) <= at(111).monotonic


def test_the_clock_of_the_service_decides_when_a_transfer_has_expired() -> None:
    one = wait(interval=1e9)
    one.update(transfer(), at(0), ahead=30.0)
    assert one.due_at(0.0, at(0)) == pytest.approx(at(10 * DAY + 1 - 30).monotonic)


def test_an_expiry_that_is_put_off_at_each_read_causes_no_polls() -> None:
    one = wait(interval=3_600.0)
    one.update(transfer(), at(0))
    due = one.due_at(1_000.0, at(0))
    one.update(Transfer("t", "pending", "Report", "2024-01-01T00:01:00Z", sent_at=SENT), at(1))
    assert one.due_at(1_000.0, at(1)) == due


def test_news_are_told_once() -> None:
    one = wait()
    for seconds in range(3):
        one.update(transfer(), at(seconds))
        one.fail(OSError("down"), at(seconds))
        one.fail(OSError("down"), at(seconds))
    assert len(one.news) == 1 + 3
    assert one.changed.is_set()


@pytest.mark.parametrize("given", [float("nan"), float("inf"), -1, "soon", None, True])
def test_an_interval_that_cannot_be_used_becomes_the_default(given: Any) -> None:
    assert valid_interval(given) == DEFAULT_INTERVAL
    assert valid_interval(0) == 1.0


@pytest.mark.parametrize("wrong", [{"transfer_id": None}, {"transfer_id": "None"}, {"deadline": float("nan")}])
def test_what_nobody_can_wait_for_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"transfer_id|deadline"):
        Wait(**{"transfer_id": "t", "interval": 60.0, "deadline": START, "rules": OutcomeRules()} | wrong)
