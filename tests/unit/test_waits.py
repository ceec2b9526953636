"""When a transfer is looked at, and when a wait for it is over: pure."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outbound_transfer.polling.allowance import A_MINUTE, BURST, Allowance
from outbound_transfer.polling.schedule import next_look
from outbound_transfer.polling.waits import AFTER_EXPIRY, Wait, Waits
from outbound_transfer.polling.watch import OVERLAP, Watch
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.protocol.outcomes import FINAL, OutcomeRules

instants = st.floats(1.7e9, 1.9e9)
intervals = st.floats(0, 86_400)


def transfer(status: str = "pending", transfer_id: str = "t", *, expires: str | None = None, sent: int = 0) -> Transfer:
    picked_up = "2026-03-01T00:00:00Z" if status == "complete" else None
    recipients = (Recipient("ann@example.com", picked_up_at=picked_up),)
    sent_at = f"2026-03-01T{sent // 3600:02d}:{sent // 60 % 60:02d}:{sent % 60:02d}Z"
    return Transfer(transfer_id, status, "subject", expires, recipients=recipients, sent_at=sent_at)


def waiting(**given: Any) -> Wait:
    defaults = {"interval": 60.0, "deadline": 10_000.0, "rules": OutcomeRules(), "looked": 0.0}
    return Wait("t", **{**defaults, **given})


@given(instants, instants, intervals)
def test_the_next_look_is_ahead_and_within_an_interval(looked: float, grid: float, interval: float) -> None:
    upcoming = next_look(looked, grid, interval)
    assert upcoming > looked
    assert upcoming <= max(grid, looked + max(interval, 1.0) + 1e-3)


@given(instants, instants, instants, st.integers(1, 86_400))
def test_waits_of_one_interval_are_looked_at_together(grid: float, first: float, second: float, interval: int) -> None:
    assume(min(first, second) > grid)
    apart = next_look(first, grid, interval) - next_look(second, grid, interval)
    assert apart == pytest.approx(round(apart / interval) * interval, abs=1e-3)


def test_a_wait_is_due_regularly_just_after_it_expires_and_at_its_deadline() -> None:
    wait = waiting(deadline=200.0)
    assert wait.due(grid=7.0) == 7.0
    wait.see(transfer(expires="1970-01-01T00:01:30Z"), looked=7.0)
    assert wait.due(grid=7.0) == 67.0
    wait.see(transfer(expires="1970-01-01T00:01:30Z"), looked=67.0)
    assert wait.due(grid=7.0) == 90.0 + AFTER_EXPIRY
    wait.see(transfer(expires="1970-01-01T00:01:30Z"), looked=187.0)
    assert wait.due(grid=7.0) == 200.0


@pytest.mark.parametrize("expires", [None, "", "soon", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-03-01"])
def test_an_expiry_that_says_nothing_is_nothing(expires: str | None) -> None:
    wait = waiting()
    wait.see(transfer(expires=expires), looked=7.0)
    assert wait.due(grid=7.0) == 67.0


@pytest.mark.parametrize("status", FINAL)
def test_a_final_status_ends_a_wait(status: str) -> None:
    wait = waiting()
    wait.see(transfer(status), looked=1.0)
    assert wait.end
    assert (wait.end["ending"], wait.end["transfer"]["status"]) == ("ended", status)
    assert "files" not in wait.end["transfer"]


def test_only_a_look_that_began_after_the_deadline_ends_a_wait_by_it() -> None:
    wait = waiting(deadline=100.0)
    wait.see(transfer(), looked=99.9)
    assert wait.end is None
    wait.see(transfer(), looked=100.0)
    assert wait.end
    assert wait.end["ending"] == "timed out"


def test_a_wait_without_any_time_is_looked_at_once() -> None:
    wait = waiting(deadline=0.0)
    assert wait.due(grid=2.0) == 2.0
    wait.see(transfer("complete"), looked=2.0)
    assert wait.end
    assert wait.end["ending"] == "ended"


def test_what_has_not_changed_is_not_remarked_on() -> None:
    wait = waiting()
    for looked, status in enumerate(["pending", "pending", "partial", "partial", "held", "held", "pending"]):
        wait.see(transfer(status), looked=looked)
    assert [remark.split()[3].rstrip(":") for remark in wait.remarks] == ["pending", "partial", "held", "pending"]


def test_those_who_have_left_or_ended_are_not_looked_at() -> None:
    waits = Waits()
    with waits.joined(waiting()) as first, waits.joined(waiting()) as second:
        first.fail("refused")
        assert list(waits) == [second]
        waits.see([transfer("complete"), transfer("complete", "of somebody else")], looked=1.0)
        assert first.end
        assert first.end["message"] == "refused"
        assert second.end
    assert waits.next_due(grid=0.0) == inf
    assert not list(waits)


def test_a_newcomer_is_told_apart_once() -> None:
    waits = Waits()
    assert waits.next_due_of_newcomers(grid=5.0) == inf
    with waits.joined(waiting()):
        assert waits.next_due_of_newcomers(grid=5.0) == 5.0
        assert waits.next_due_of_newcomers(grid=5.0) == inf
        assert waits.next_due(grid=5.0) == 5.0


@given(st.lists(st.floats(0, 30), min_size=1, max_size=300))
def test_an_allowance_is_never_exceeded_in_any_minute(pauses: list[float]) -> None:
    allowance, now, asked = Allowance(), 0.0, []
    for pause in pauses:
        now += pause
        now += allowance.take(now)
        asked.append(now)
    for first in range(len(asked)):
        in_a_minute = sum(asked[first] <= one < asked[first] + 60 for one in asked)
        assert in_a_minute <= BURST + A_MINUTE + 1


def test_an_allowance_that_was_saved_is_there_at_once() -> None:
    allowance = Allowance()
    assert [allowance.take(0.0) for _ in range(BURST)] == [0.0] * BURST
    assert allowance.take(0.0) == pytest.approx(60 / A_MINUTE)
    assert allowance.take(3_600.0) == 0.0


def test_a_watch_is_silent_on_what_ended_before_it_began() -> None:
    watch = Watch(60.0, looked=0.0)
    for one in (transfer("pending", "out"), transfer("complete", "over", sent=5)):
        watch.see(one)
    assert watch.take() == ([], None)
    watch.looked_at_all(began=1.0)
    ended, state = watch.take()
    assert ended == []
    assert state
    assert set(state["outstanding"]) == {"out"}


def test_a_watch_tells_of_an_end_once() -> None:
    watch = begun()
    for _ in range(3):
        watch.see(transfer("expired", "out"))
    assert [one.id for one in watch.take()[0]] == ["out"]
    assert watch.take() == ([], None)


def test_a_watch_tells_of_what_was_sent_and_ended_between_two_looks() -> None:
    watch = begun()
    for _ in range(2):
        watch.see(transfer("complete", "quick", sent=100))
        watch.looked_at_all(began=2.0)
    ended, state = watch.take()
    assert [one.id for one in ended] == ["quick"]
    again = Watch(60.0, 3.0, state)
    again.see(transfer("complete", "quick", sent=100))
    assert again.take()[0] == []


def test_a_send_that_shows_up_behind_a_later_one_is_not_missed() -> None:
    watch = begun()
    watch.see(transfer("pending", "later", sent=1_000))
    watch.looked_at_all(began=2.0)
    watch.see(transfer("complete", "earlier", sent=1_000 - int(OVERLAP) + 1))
    assert [one.id for one in watch.take()[0]] == ["earlier"]


def test_a_watch_keeps_no_more_than_it_needs() -> None:
    watch = begun()
    for number in range(50):
        watch.see(transfer("complete", f"t{number}", sent=1_000 * number))
    watch.looked_at_all(began=2.0)
    _, state = watch.take()
    assert state
    assert set(state["recent"]) == {"t49"}
    watch.forget(["out", "unheard of"])
    _, state = watch.take()
    assert state
    assert state["outstanding"] == {}


def begun() -> Watch:
    watch = Watch(60.0, looked=0.0)
    watch.see(transfer("pending", "out"))
    watch.looked_at_all(began=1.0)
    watch.take()
    return watch
