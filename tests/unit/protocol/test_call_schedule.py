"""The schedule of one key's calls: the service refuses none, and neither deliveries nor polls wait for the others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbound_transfer.protocol.call_schedule import MARGIN, MAX_POLL_CALLS, WINDOW, CallSchedule

NOW = 1_790_000_000.0


def max_in_window(calls: list[float]) -> int:
    """The maximum number of calls in any period of the window's length."""
    return max((sum(start <= at < start + WINDOW for at in calls) for start in calls), default=0)


def test_an_unused_key_makes_all_its_calls_at_once() -> None:
    schedule = CallSchedule()
    assert {schedule.reserve(NOW, 60, is_poll=False) for _ in range(60)} == {NOW}


def test_the_next_call_is_made_a_window_after_the_first() -> None:
    schedule = CallSchedule()
    for number in range(60):
        schedule.reserve(NOW + number / 10, 60, is_poll=False)
    assert schedule.reserve(NOW + 6, 60, is_poll=False) == NOW + WINDOW + MARGIN
    assert schedule.reserve(NOW + 6, 60, is_poll=False) == pytest.approx(NOW + 0.1 + WINDOW + MARGIN)


def test_a_call_that_nobody_makes_costs_only_itself() -> None:
    schedule = CallSchedule()
    for _ in range(61):
        schedule.reserve(NOW, 60, is_poll=False)
    assert schedule.reserve(NOW + WINDOW + MARGIN + 1, 60, is_poll=False) == NOW + WINDOW + MARGIN + 1


gaps = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.1, 1.0, 7.0, 70.0]) | st.floats(0, 200), st.booleans()), max_size=300
)


@settings(max_examples=200, deadline=None)
@given(gaps=gaps, allowance=st.integers(8, 80))
def test_the_service_refuses_no_call(gaps: list[tuple[float, bool]], allowance: int) -> None:
    """Where polls are made all the time: when they start beside reserved calls, a few may be refused."""
    schedule, now, made = CallSchedule(), NOW, []
    for gap, is_poll in gaps:
        now += gap
        schedule.polled_at = now
        made.append(schedule.reserve(now, allowance, is_poll=is_poll))
        assert made[-1] >= now
        schedule = msgspec.json.decode(msgspec.json.encode(schedule), type=CallSchedule)
    assert max_in_window(made) <= allowance


@settings(max_examples=100, deadline=None)
@given(gaps=gaps, allowance=st.integers(1, 80))
def test_deliveries_are_made_in_the_order_in_which_they_reserve(gaps: list[tuple[float, bool]], allowance: int) -> None:
    schedule, now, made = CallSchedule(), NOW, [0.0]
    for gap, is_poll in gaps:
        now += gap
        at = schedule.reserve(now, allowance, is_poll=is_poll)
        if not is_poll:
            assert at >= made[-1] - 0.001
            made.append(at)


def test_a_poll_does_not_wait_behind_a_thousand_deliveries() -> None:
    schedule = CallSchedule()
    for _ in range(1_000):
        schedule.reserve(NOW, 60, is_poll=False)
    polls = [schedule.reserve(NOW, 60, is_poll=True) for _ in range(2 * MAX_POLL_CALLS)]
    assert polls == [NOW] * MAX_POLL_CALLS + [NOW + WINDOW + MARGIN] * MAX_POLL_CALLS


def test_polls_leave_a_third_of_the_key_to_deliveries() -> None:
    schedule = CallSchedule()
    at_once = sum(schedule.reserve(NOW, 60, is_poll=True) == NOW for _ in range(100))
    assert at_once == 40 + MAX_POLL_CALLS
    assert [schedule.reserve(NOW, 60, is_poll=False) for _ in range(16)] == [NOW] * 16


def test_a_poll_waits_no_longer_than_a_window() -> None:
    schedule = CallSchedule()
    for _ in range(1_000):
        schedule.reserve(NOW, 60, is_poll=False)
    assert max(schedule.reserve(NOW, 60, is_poll=True) for _ in range(100)) == NOW + WINDOW + MARGIN
    later = NOW + 3 * WINDOW
    assert CallSchedule(poll_calls=[later] * 100).reserve(later, 60, is_poll=True) == later


@pytest.mark.parametrize("ahead", [61.0, 3_600.0, 365 * 86_400.0])
def test_nobody_waits_for_a_time_that_a_wrong_clock_has_shown(ahead: float) -> None:
    schedule = CallSchedule()
    for _ in range(100):
        schedule.reserve(NOW + ahead, 60, is_poll=False)
    schedule.record_refusal(NOW + ahead, 60)
    assert schedule.reserve(NOW, 60, is_poll=False) == NOW


def test_a_damaged_schedule_is_not_waited_for() -> None:
    for schedule in (CallSchedule([1e15]), CallSchedule(not_before=1e15), CallSchedule(poll_calls=[NOW + 1e6])):
        assert schedule.reserve(NOW, 60, is_poll=False) == NOW
        assert schedule.reserve(NOW, 60, is_poll=True) == NOW


def test_a_refusal_holds_up_every_call_for_a_window_at_most() -> None:
    schedule = CallSchedule()
    schedule.record_refusal(NOW, 20)
    assert schedule.reserve(NOW + 1, 60, is_poll=False) == NOW + 20
    schedule.record_refusal(NOW + 21, 10_000)
    assert schedule.reserve(NOW + 22, 60, is_poll=False) == NOW + 21 + WINDOW
