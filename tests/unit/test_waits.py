"""When a transfer is looked at, and when a wait for it is over: pure."""

from __future__ import annotations

from datetime import datetime, timezone
from math import inf, nan
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from outbound_transfer.polling.allowance import A_MINUTE, BURST, Allowance
from outbound_transfer.polling.schedule import USUAL_INTERVAL, Now, interval_of, next_look
from outbound_transfer.polling.troubled import LONGEST_REST, Troubled
from outbound_transfer.polling.waits import AFTER_EXPIRY, LAST_LOOK, Wait, Waits
from outbound_transfer.polling.watch import OVERLAP, WINDOW, Watch
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.protocol.outcomes import FINAL, OutcomeRules
from outbound_transfer.protocol.rounds import Row

#: After all that is sent here.
NOW = datetime(2026, 3, 2, tzinfo=timezone.utc).timestamp()

instants = st.floats(1.7e9, 1.9e9)
intervals = st.floats(0, 86_400)


def transfer(status: str = "pending", transfer_id: str = "t", *, expires: str | None = None, sent: int = 0) -> Transfer:
    picked_up = "2026-03-01T00:00:00Z" if status == "complete" else None
    recipients = (Recipient("ann@example.com", picked_up_at=picked_up),)
    sent_at = f"2026-03-01T{sent // 3600:02d}:{sent // 60 % 60:02d}:{sent % 60:02d}Z"
    return Transfer(transfer_id, status, "subject", expires, recipients=recipients, sent_at=sent_at)


def at(seconds: float) -> Now:
    return Now(seconds, seconds)


def waiting(**given: Any) -> Wait:
    defaults = {"interval": 60.0, "deadline": 10_000.0, "rules": OutcomeRules(), "looked": at(0.0)}
    return Wait("t", **{**defaults, **given})


@given(instants, instants, intervals)
def test_the_next_look_is_ahead_and_within_an_interval(looked: float, grid: float, interval: float) -> None:
    upcoming = next_look(looked, grid, interval)
    assert upcoming > looked
    assert upcoming <= max(grid, looked + max(interval, 1.0) + 1e-3)


@given(instants, st.integers(0, 100_000), intervals)
def test_a_look_on_the_grid_is_followed_by_the_next_of_the_grid(grid: float, number: int, interval: float) -> None:
    looked = grid + number * max(interval, 1.0)
    upcoming = next_look(looked, grid, interval)
    assert upcoming > looked
    assert upcoming - looked == pytest.approx(max(interval, 1.0), rel=1e-3)


@pytest.mark.parametrize("given", [nan, inf, -inf, -1.0, "60", "{{ params.every }}", None, True, [60]])
def test_what_is_no_interval_is_as_the_usual_one(given: Any) -> None:
    assert interval_of(given) == waiting(interval=given).interval == Watch(given, 0.0).interval == USUAL_INTERVAL


@pytest.mark.parametrize("given", [None, 7, "", " ", "None", {}, {"id": None}, {"id": 7}, ["t"], b"t", "\ud800"])
def test_what_is_no_transfer_is_not_waited_for(given: Any) -> None:
    with pytest.raises(ValueError, match="no transfer's id"):
        Wait(given, 60.0, 1.0, OutcomeRules(), looked=at(0.0))


def test_the_result_of_a_delivery_names_its_transfer() -> None:
    assert Wait({"id": "t", "status": "pending"}, 60.0, 1.0, OutcomeRules(), looked=at(0.0)).transfer_id == "t"  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline", [nan, inf, -inf])
def test_a_wait_without_a_deadline_is_none(deadline: float) -> None:
    with pytest.raises(ValueError, match="no deadline"):
        waiting(deadline=deadline)


@given(instants, instants, instants, st.integers(1, 86_400))
def test_waits_of_one_interval_are_looked_at_together(grid: float, first: float, second: float, interval: int) -> None:
    assume(min(first, second) > grid)
    apart = next_look(first, grid, interval) - next_look(second, grid, interval)
    assert apart == pytest.approx(round(apart / interval) * interval, abs=1e-3)


def test_a_wait_is_due_regularly_just_after_it_expires_and_at_its_deadline() -> None:
    wait = waiting(deadline=200.0)
    assert wait.due(7.0, wait.looked) == 7.0
    wait.see(transfer(expires="1970-01-01T00:01:30Z"), at(7.0))
    assert wait.due(7.0, wait.looked) == 67.0
    wait.see(transfer(expires="1970-01-01T00:01:30Z"), at(67.0))
    assert wait.due(7.0, wait.looked) == 90.0 + AFTER_EXPIRY
    wait.see(transfer(expires="1970-01-01T00:01:30Z"), at(187.0))
    assert wait.due(7.0, wait.looked) == 200.0


@pytest.mark.parametrize("expires", [None, "", "soon", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-03-01"])
def test_an_expiry_that_says_nothing_is_nothing(expires: str | None) -> None:
    wait = waiting()
    wait.see(transfer(expires=expires), at(7.0))
    assert wait.due(7.0, wait.looked) == 67.0


@pytest.mark.parametrize("status", FINAL)
def test_a_final_status_ends_a_wait(status: str) -> None:
    wait = waiting()
    wait.see(transfer(status), at(1.0))
    assert wait.end
    assert (wait.end["ending"], wait.end["transfer"]["status"]) == ("ended", status)
    assert "files" not in wait.end["transfer"]


def test_only_a_look_that_began_after_the_deadline_ends_a_wait_by_it() -> None:
    wait = waiting(deadline=100.0)
    wait.see(transfer(), at(99.9))
    assert wait.end is None
    wait.see(transfer(), at(100.0))
    assert wait.end
    assert wait.end["ending"] == "timed out"


def test_a_clock_that_is_set_moves_the_deadline_and_no_regular_look() -> None:
    wait = waiting(deadline=200.0)
    wait.see(transfer(), at(7.0))
    assert wait.due(7.0, Now(20.0, 20.0 - 3_600)) == 67.0
    assert wait.due(7.0, Now(20.0, 190.0)) == 30.0
    assert wait.due(7.0, Now(20.0, 20.0 + 3_600)) <= 20.0


def test_only_a_look_that_failed_since_the_deadline_was_seen_to_pass_gives_a_wait_up() -> None:
    waits = Waits()
    with waits.joined(waiting(deadline=100.0)) as wait:
        waits.look_in_vain(at(50.0))
        assert waits.check_deadlines(Now(60.0, 86_400.0)), "the clock jumps, or the process is a new one"
        assert not waits.give_up(Now(60.0 + 86_400, 2 * 86_400.0)), "nobody has looked"
        waits.look_in_vain(Now(61.0, 86_401.0))
        assert not waits.give_up(Now(60.0 + LAST_LOOK - 1, 86_401.0))
        assert not waits.check_deadlines(Now(62.0, 62.0)), "the clock is back"
        assert not waits.give_up(Now(1_000.0, 62.0))
        waits.check_deadlines(at(1_001.0))
        waits.miss({"t": ValueError("unreadable")}, at(1_001.0))
        assert waits.give_up(at(1_001.0 + LAST_LOOK))
        assert wait.end
        assert wait.end["ending"] == "timed out"


def test_an_expiry_that_is_put_off_at_each_look_makes_no_look_of_its_own() -> None:
    wait = waiting(interval=600.0)
    for looked in range(7, 30):
        wait.see(transfer(expires=f"1970-01-01T00:00:{looked + 1:02d}Z"), at(looked))
    assert wait.due(7.0, at(30.0)) == 607.0


def test_what_cannot_be_read_is_tried_less_and_less_and_never_given_up() -> None:
    troubled, now, tries = Troubled(), 0.0, 0
    while now < 86_400:
        if not troubled.rests("t", now):
            tries += 1
            troubled.note(["t"], now)
        now += 30.0
    assert 86_400 / LONGEST_REST <= tries <= 86_400 / LONGEST_REST + 6
    troubled.keep({"other"})
    assert not troubled.rests("t", now)
    troubled.note(["t"], now)
    troubled.forget(["t"])
    assert not troubled.failures


def test_a_wait_without_any_time_is_looked_at_once() -> None:
    wait = waiting(deadline=0.0)
    assert wait.due(2.0, wait.looked) <= 2.0
    wait.see(transfer("complete"), at(2.0))
    assert wait.end
    assert wait.end["ending"] == "ended"


def test_what_has_not_changed_is_not_remarked_on() -> None:
    wait = waiting()
    for looked, status in enumerate(["pending", "pending", "partial", "partial", "held", "held", "pending"]):
        wait.see(transfer(status), at(looked))
    assert [remark.split()[3].rstrip(":") for remark in wait.remarks] == ["pending", "partial", "held", "pending"]


def test_those_who_have_left_or_ended_are_not_looked_at() -> None:
    waits = Waits()
    with waits.joined(waiting()) as first, waits.joined(waiting()) as second:
        first.fail("refused")
        assert list(waits) == [second]
        waits.see([transfer("complete"), transfer("complete", "of somebody else")], at(1.0))
        assert first.end
        assert first.end["message"] == "refused"
        assert second.end
    assert waits.next_due(0.0, at(0.0)) == inf
    assert not list(waits)


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


def rows(*newest_first: Transfer | str) -> list[Row]:
    """The rows of a listing; a text is the id of one that cannot be read."""
    return [Row(one, None) if isinstance(one, str) else Row(one.id, one) for one in newest_first]


def told(watch: Watch) -> list[str]:
    return [one.id for one in watch.take()[0]]


def begun(*newest: Transfer | str) -> Watch:
    """A watch that has looked once."""
    watch = Watch(60.0, looked=0.0)
    watch.begin(rows(*newest) or rows(transfer("pending", "out")), [], NOW)
    watch.take()
    return watch


def test_a_watch_is_silent_on_what_ended_before_it_began() -> None:
    watch = Watch(60.0, looked=0.0)
    assert watch.take() == ([], None)
    outstanding = rows(transfer("partial", "old"), "unreadable")
    watch.begin(rows(transfer("complete", "over", sent=5), transfer("pending", "out")), outstanding, NOW)
    ended, state = watch.take()
    assert ended == []
    assert state
    assert set(state["outstanding"]) == {"out", "old", "unreadable"}


def test_a_watch_tells_of_an_end_once() -> None:
    watch = begun()
    for _ in range(3):
        watch.see(transfer("expired", "out"))
    assert told(watch) == ["out"]
    assert watch.take() == ([], None)


def test_a_watch_tells_of_what_was_sent_and_ended_between_two_looks() -> None:
    watch = begun()
    listing = rows(transfer("complete", "quick", sent=100), transfer("pending", "out"))
    for _ in range(2):
        watch.scan(listing, NOW)
    ended, state = watch.take()
    assert [one.id for one in ended] == ["quick"]
    again = Watch(60.0, 3.0, state)
    again.scan(listing, NOW)
    assert told(again) == []


def test_a_send_that_shows_up_behind_a_later_one_is_not_missed() -> None:
    later = transfer("pending", "later", sent=1_000)
    watch = begun(later)
    watch.scan(rows(later, transfer("complete", "earlier", sent=1_000 - int(OVERLAP) + 1)), NOW)
    assert told(watch) == ["earlier"]


@pytest.mark.parametrize(
    "claimed", ["2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "soon", None]
)
def test_a_send_whose_time_is_absurd_is_told_of_and_hides_nothing(claimed: str | None) -> None:
    absurd = structs.replace(transfer("complete", "absurd"), sent_at=claimed)
    known = [transfer("complete", f"t{number}", sent=number) for number in (3, 2, 1)]
    watch = begun(*known)
    watch.scan(rows(absurd, *known), NOW)
    assert told(watch) == ["absurd"]
    next_one = transfer("complete", "next", sent=4)
    assert watch.since < NOW
    watch.scan(rows(next_one, absurd, *known), NOW)
    assert told(watch) == ["next"]
    watch.scan(rows(next_one, absurd, *known), NOW)
    assert told(watch) == []


def test_a_send_that_cannot_be_read_in_the_listing_is_read_by_itself() -> None:
    known = transfer("complete", "known")
    watch = begun(known)
    watch.scan(rows("poisoned", known), NOW)
    assert set(watch.outstanding) == {"poisoned"}
    watch.see(transfer("complete", "poisoned"))
    assert told(watch) == ["poisoned"]
    watch.scan(rows("poisoned", known), NOW)
    assert watch.outstanding == {}


@given(
    st.lists(st.tuples(st.sampled_from(["send", "poison", "look"]), st.integers(0, 10**10) | st.none()), max_size=60)
)
def test_each_end_is_told_once_whatever_times_are_claimed(steps: list[tuple[str, int | None]]) -> None:
    listing = [transfer("complete", f"before{number}", sent=number) for number in range(5)]
    watch, sent, heard = begun(*listing), [], []
    for number, (step, claimed) in enumerate([*steps, ("look", None)]):
        if step == "look":
            watch.scan(rows(*listing), NOW)
            heard += told(watch)
            continue
        one = transfer("complete", f"t{number}", sent=100 + number)
        claim = claimed is not None and datetime.fromtimestamp(claimed, timezone.utc).isoformat()
        listing.insert(0, structs.replace(one, sent_at=claim or None) if step == "poison" else one)
        sent.append(one.id)
    assert sorted(heard) == sorted(sent)


def test_a_watch_keeps_no_more_than_it_needs() -> None:
    watch = begun()
    many = [transfer("complete", f"t{number}", sent=80_000 - 200 * number) for number in range(WINDOW + 50)]
    watch.scan(rows(*many, transfer("pending", "out")), NOW)
    _, state = watch.take()
    assert state
    assert set(state["recent"]) == {one.id for one in many[:WINDOW]}
    watch.forget(["out", "unheard of"])
    _, state = watch.take()
    assert state
    assert state["outstanding"] == {}


def test_a_listing_that_leaves_rows_out_takes_nothing_back() -> None:
    known = [transfer("complete", f"t{number}", sent=number) for number in range(9, 0, -1)]
    absurd = structs.replace(transfer("complete", "absurd"), sent_at="1970-01-01T00:00:00Z")
    watch = begun(*known)
    watch.scan(rows(absurd, *known), NOW)
    assert told(watch) == ["absurd"]
    for shown in ([], known[5:]):
        watch.scan(rows(*shown), NOW)
    watch.scan(rows(absurd, *known), NOW)
    assert told(watch) == []


@pytest.mark.parametrize("state", [{}, [], "x", {"since": None, "outstanding": {}, "recent": {}}, {"since": 1.0}])
def test_what_no_watch_has_stored_is_as_nothing(state: Any) -> None:
    assert Watch(60.0, 0.0, state).is_new
