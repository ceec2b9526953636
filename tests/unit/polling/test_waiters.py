"""When a transfer is polled_at at, and when a wait for it is over: pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import inf, nan
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from outbound_transfer.polling.rate_limiter import MAX_RATE, MIN_RATE, RateLimiter
from outbound_transfer.polling.read_backoff import MAX_READ_BACKOFF, ReadBackoff
from outbound_transfer.polling.schedule import DEFAULT_INTERVAL, Now, PollTimes, interval_or_default, next_poll_at
from outbound_transfer.polling.waiters import EXPIRY_MARGIN, FINAL_POLL_GRACE, Waiter, WaiterRegistry
from outbound_transfer.polling.watcher import LISTING_OVERLAP, MAX_MISSING, MAX_RECENT, CompletionWatcher
from outbound_transfer.protocol.listings import Row
from outbound_transfer.protocol.models import Recipient, Transfer, to_epoch
from outbound_transfer.protocol.outcomes import TERMINAL_STATUSES, OutcomeRules

#: After all that is sent here.
NOW = datetime(2026, 3, 2, tzinfo=UTC).timestamp()

timestamps = st.floats(1.7e9, 1.9e9)
intervals = st.floats(0, 86_400)


def transfer(status: str = "pending", transfer_id: str = "t", *, expires: str | None = None, sent: int = 0) -> Transfer:
    picked_up = "2026-03-01T00:00:00Z" if status == "complete" else None
    recipients = (Recipient("ann@example.com", picked_up_at=picked_up),)
    sent_at = f"2026-03-01T{sent // 3600:02d}:{sent // 60 % 60:02d}:{sent % 60:02d}Z"
    return Transfer(transfer_id, status, "subject", expires, recipients=recipients, sent_at=sent_at)


def at(seconds: float) -> Now:
    return Now(seconds, seconds)


def make_waiter(**given: Any) -> Waiter:
    defaults = {"interval": 60.0, "deadline": 10_000.0, "rules": OutcomeRules(), "polled_at": at(0.0)}
    return Waiter("t", **{**defaults, **given})


@given(timestamps, timestamps, intervals)
def test_next_poll_is_ahead_and_within_an_interval(polled_at: float, origin: float, interval: float) -> None:
    upcoming = next_poll_at(polled_at, origin, interval)
    assert upcoming > polled_at
    assert upcoming <= max(origin, polled_at + max(interval, 1.0) + 1e-3)


@given(timestamps, st.integers(0, 100_000), intervals)
def test_poll_on_schedule_is_followed_by_the_next_on_schedule(origin: float, number: int, interval: float) -> None:
    polled_at = origin + number * max(interval, 1.0)
    upcoming = next_poll_at(polled_at, origin, interval)
    assert upcoming > polled_at
    assert upcoming - polled_at == pytest.approx(max(interval, 1.0), rel=1e-3)


@pytest.mark.parametrize("given", [nan, inf, -inf, -1.0, "60", "{{ params.every }}", None, True, [60]])
def test_invalid_interval_is_replaced_by_the_default(given: Any) -> None:
    assert (
        interval_or_default(given)
        == make_waiter(interval=given).interval
        == CompletionWatcher(given, 0.0).interval
        == DEFAULT_INTERVAL
    )


@pytest.mark.parametrize("given", [None, 7, "", " ", "None", {}, {"id": None}, {"id": 7}, ["t"], b"t", "\ud800"])
def test_invalid_transfer_id_is_rejected(given: Any) -> None:
    with pytest.raises(ValueError, match="must be the id of a transfer"):
        Waiter(given, 60.0, 1.0, OutcomeRules(), polled_at=at(0.0))


def test_result_of_a_delivery_is_accepted_as_transfer_id() -> None:
    assert Waiter({"id": "t", "status": "pending"}, 60.0, 1.0, OutcomeRules(), polled_at=at(0.0)).transfer_id == "t"  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline", [nan, inf, -inf])
def test_invalid_deadline_is_rejected(deadline: float) -> None:
    with pytest.raises(ValueError, match="invalid deadline"):
        make_waiter(deadline=deadline)


@given(timestamps, timestamps, timestamps, st.integers(1, 86_400))
def test_waiters_of_one_interval_are_polled_together(origin: float, first: float, second: float, interval: int) -> None:
    assume(min(first, second) > origin)
    apart = next_poll_at(first, origin, interval) - next_poll_at(second, origin, interval)
    assert apart == pytest.approx(round(apart / interval) * interval, abs=1e-3)


def test_waiter_is_due_regularly_after_expiry_and_at_its_deadline() -> None:
    waiter = make_waiter(deadline=200.0)
    assert waiter.due_at(PollTimes(7.0), waiter.polled_at) == 7.0
    waiter.update(transfer(expires="1970-01-01T00:01:30Z"), at(7.0))
    assert waiter.due_at(PollTimes(7.0), waiter.polled_at) == 67.0
    waiter.update(transfer(expires="1970-01-01T00:01:30Z"), at(67.0))
    assert waiter.due_at(PollTimes(7.0), waiter.polled_at) == 90.0 + EXPIRY_MARGIN
    waiter.update(transfer(expires="1970-01-01T00:01:30Z"), at(187.0))
    assert waiter.due_at(PollTimes(7.0), waiter.polled_at) == 200.0


@pytest.mark.parametrize("expires", [None, "", "soon", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-03-01"])
def test_invalid_expiry_is_ignored(expires: str | None) -> None:
    waiter = make_waiter()
    waiter.update(transfer(expires=expires), at(7.0))
    assert waiter.due_at(PollTimes(7.0), waiter.polled_at) == 67.0


@pytest.mark.parametrize("status", TERMINAL_STATUSES)
def test_terminal_status_finishes_a_waiter(status: str) -> None:
    waiter = make_waiter()
    waiter.update(transfer(status), at(1.0))
    assert waiter.result
    assert (waiter.result["status"], waiter.result["transfer"]["status"]) == ("finished", status)
    assert "files" not in waiter.result["transfer"]


def test_only_a_poll_after_the_deadline_times_a_waiter_out() -> None:
    waiter = make_waiter(deadline=100.0)
    for now in (99.9, 100.0):
        assert waiter.result is None
        waiter.check_deadline(at(now))
        waiter.update(transfer(), at(now))
    assert waiter.result
    assert waiter.result["status"] == "timeout"


def test_poll_that_started_by_a_wrong_clock_times_out_no_waiter_that_joined_since() -> None:
    waiter = make_waiter(deadline=200.0)
    waiter.update(transfer(), Now(10.0, 86_400.0))
    assert waiter.result is None


def test_setting_the_clock_moves_the_deadline_but_no_regular_poll() -> None:
    waiter = make_waiter(deadline=200.0)
    waiter.update(transfer(), at(7.0))
    assert waiter.due_at(PollTimes(7.0), Now(20.0, 20.0 - 3_600)) == 67.0
    assert waiter.due_at(PollTimes(7.0), Now(20.0, 190.0)) == 30.0
    assert waiter.due_at(PollTimes(7.0), Now(20.0, 20.0 + 3_600)) <= 20.0


def test_waiter_times_out_only_after_a_final_poll_failed() -> None:
    registry = WaiterRegistry()
    with registry.register(make_waiter(deadline=100.0)) as waiter:
        registry.record_failed_poll(at(50.0))
        assert registry.check_deadlines(Now(60.0, 86_400.0)), "the clock jumps, or the process is a new one"
        assert not registry.expire_overdue(Now(60.0 + 86_400, 2 * 86_400.0)), "nobody has polled_at"
        registry.record_failed_poll(Now(61.0, 86_401.0))
        assert not registry.expire_overdue(Now(60.0 + FINAL_POLL_GRACE - 1, 86_401.0))
        assert not registry.check_deadlines(Now(62.0, 62.0)), "the clock is back"
        assert not registry.expire_overdue(Now(1_000.0, 62.0))
        registry.check_deadlines(at(1_001.0))
        registry.record_read_errors({"t": ValueError("unreadable")}, at(1_001.0))
        assert registry.expire_overdue(at(1_001.0 + FINAL_POLL_GRACE))
        assert waiter.result
        assert waiter.result["status"] == "timeout"


@pytest.mark.parametrize(
    ("seconds", "arguments", "is_needed"),
    [
        (50.0, {}, False),
        (90.0, {}, True),  # it has expired
        (50.0, {"deadline": 40.0}, True),
        (50.0, {"notify_after": (-45.0,)}, True),
        (40.0, {"notify_after": (-45.0,)}, False),
    ],
)
def test_what_follows_from_the_time_of_a_read_needs_a_new_one(
    seconds: float, arguments: dict[str, Any], is_needed: bool
) -> None:
    waiter = make_waiter(**arguments)
    waiter.update(transfer(expires="1970-01-01T00:01:30Z"), at(7.0))
    waiter.check_deadline(at(seconds))
    assert waiter.needs_new_read(at(seconds)) is is_needed


def test_expiry_that_moves_with_each_poll_causes_no_extra_polls() -> None:
    waiter = make_waiter(interval=600.0)
    for polled_at in range(7, 30):
        waiter.update(transfer(expires=f"1970-01-01T00:00:{polled_at + 1:02d}Z"), at(polled_at))
    assert waiter.due_at(PollTimes(7.0), at(30.0)) == 607.0


def test_waiter_is_read_when_it_is_late_and_finishes_with_the_first_poll_that_succeeds() -> None:
    start = to_epoch("2026-03-01T00:00:00Z") or 0.0
    waiter = make_waiter(interval=3_600.0, deadline=2 * start, polled_at=at(start), notify_after=(200.0, 100.0))
    times = PollTimes(start)
    waiter.update(transfer(expires="2026-03-08T00:00:00Z"), at(start + 7))
    assert waiter.due_at(times, at(start + 7)) == start + 100
    assert not waiter.is_urgent(at(start + 99))
    assert waiter.is_urgent(at(start + 100)), "that no listing shows it as finished does not say who is missing"
    waiter.record_read_error("unreadable", at(start + 100))
    assert waiter.result is None
    assert waiter.due_at(times, at(start + 101)) == start + 3_600, "a failed read is repeated as any other"
    waiter.update(transfer("unknown"), at(start + 3_600))
    assert waiter.result
    assert waiter.result["status"] == "late"


@pytest.mark.parametrize(("status", "result"), [("complete", "finished"), ("pending", "timeout")])
def test_what_ends_a_wait_comes_before_what_is_late(status: str, result: str) -> None:
    waiter = make_waiter(deadline=10.0, notify_after=(1.0,))
    waiter.check_deadline(at(NOW))
    waiter.update(transfer(status), at(NOW))
    assert waiter.result
    assert waiter.result["status"] == result


def test_an_expiry_that_moves_with_each_poll_does_not_delay_what_is_late() -> None:
    start = to_epoch("2026-03-01T00:00:00Z") or 0.0
    waiter = make_waiter(deadline=2 * start, polled_at=at(start), notify_after=(-10.0,))
    waiter.update(transfer(expires="2026-03-01T00:01:00Z"), at(start))
    waiter.update(transfer(expires="2026-03-01T00:02:00Z"), at(start + 1))
    assert waiter.due_at(PollTimes(start), at(start + 1)) == start + 50


def test_unreadable_transfer_is_read_less_often_and_never_dropped() -> None:
    backoff, now, tries = ReadBackoff(), 0.0, 0
    while now < 86_400:
        if not backoff.is_backed_off("t", now):
            tries += 1
            backoff.record_failure(["t"], now)
        now += 30.0
    assert 86_400 / MAX_READ_BACKOFF <= tries <= 86_400 / MAX_READ_BACKOFF + 6
    backoff.retain({"other"})
    assert not backoff.is_backed_off("t", now)
    backoff.record_failure(["t"], now)
    backoff.forget(["t"])
    assert not backoff.failures


def test_waiter_with_an_expired_deadline_is_polled_once() -> None:
    waiter = make_waiter(deadline=0.0)
    assert waiter.due_at(PollTimes(2.0), waiter.polled_at) <= 2.0
    waiter.update(transfer("complete"), at(2.0))
    assert waiter.result
    assert waiter.result["status"] == "finished"


def test_unchanged_transfer_is_not_logged_again() -> None:
    waiter = make_waiter()
    for polled_at, status in enumerate(["pending", "pending", "partial", "partial", "held", "held", "pending"]):
        waiter.update(transfer(status), at(polled_at))
    assert [message.split()[3].rstrip(":") for message in waiter.log_messages] == [
        "pending",
        "partial",
        "held",
        "pending",
    ]


def test_removed_and_finished_waiters_are_not_polled() -> None:
    registry = WaiterRegistry()
    with registry.register(make_waiter()) as first, registry.register(make_waiter()) as second:
        first.fail("refused")
        assert list(registry) == [second]
        registry.update([transfer("complete"), transfer("complete", "of somebody else")], at(1.0))
        assert first.result
        assert first.result["message"] == "refused"
        assert second.result
    assert registry.next_due_at(PollTimes(0.0), at(0.0)) == inf
    assert not list(registry)


@given(st.lists(st.floats(0, 30), min_size=1, max_size=300))
def test_rate_limit_holds_in_any_minute(pauses: list[float]) -> None:
    limiter, now, asked = RateLimiter(), 0.0, []
    for pause in pauses:
        now += pause
        now += limiter.reserve(now)
        asked.append(now)
    for first in range(len(asked)):
        in_a_minute = sum(asked[first] <= one < asked[first] + 60 for one in asked)
        assert in_a_minute <= 2 * MAX_RATE + 1


def test_requests_of_a_minute_are_available_after_an_idle_time() -> None:
    limiter = RateLimiter()
    assert [limiter.reserve(0.0) for _ in range(int(MAX_RATE))] == [0.0] * int(MAX_RATE)
    assert limiter.reserve(0.0) == pytest.approx(60 / MAX_RATE)
    assert limiter.reserve(3_600.0) == 0.0


def test_polls_give_way_to_others_and_come_back() -> None:
    limiter = RateLimiter()
    for _ in range(10):
        limiter.record_refusal(100.0)
    assert limiter.rate == MIN_RATE
    assert limiter.reserve(100.0) == pytest.approx(60 / MIN_RATE), "nothing goes without delay after a refusal"
    limiter.reserve(100.0 + 10 * 60)
    assert limiter.rate == MIN_RATE + 10
    limiter.reserve(100.0 + 1_000 * 60)
    assert limiter.rate == MAX_RATE


def rows(*newest_first: Transfer | str) -> list[Row]:
    """The rows of a listing; a text is the id of one that cannot be read."""
    return [Row(one, None) if isinstance(one, str) else Row(one.id, one) for one in newest_first]


def drained(watcher: CompletionWatcher) -> list[str]:
    return [one.id for one in watcher.drain()[0]]


def initialized_watcher(*newest: Transfer | str) -> CompletionWatcher:
    """A watch that has polled_at once."""
    watcher = CompletionWatcher(60.0, polled_at=0.0)
    watcher.initialize(rows(*newest) or rows(transfer("pending", "out")), [], NOW)
    watcher.drain()
    return watcher


def test_watcher_ignores_transfers_that_finished_before_it_started() -> None:
    watcher = CompletionWatcher(60.0, polled_at=0.0)
    assert watcher.drain() == ([], None)
    outstanding = rows(transfer("partial", "old"), "unreadable")
    watcher.initialize(rows(transfer("complete", "over", sent=5), transfer("pending", "out")), outstanding, NOW)
    ended, state = watcher.drain()
    assert ended == []
    assert state
    assert set(state["outstanding"]) == {"out", "old", "unreadable"}


def test_watcher_reports_a_finished_transfer_once() -> None:
    watcher = initialized_watcher()
    for _ in range(3):
        watcher.update(transfer("expired", "out"))
    assert drained(watcher) == ["out"]
    assert watcher.drain() == ([], None)


def test_watcher_reports_a_transfer_sent_and_finished_between_two_polls() -> None:
    watcher = initialized_watcher()
    listing = rows(transfer("complete", "quick", sent=100), transfer("pending", "out"))
    for _ in range(2):
        watcher.update_from_listing(listing, NOW)
    ended, state = watcher.drain()
    assert [one.id for one in ended] == ["quick"]
    again = CompletionWatcher(60.0, 3.0, state)
    again.update_from_listing(listing, NOW)
    assert drained(again) == []


def test_transfer_listed_after_a_later_one_is_not_missed() -> None:
    later = transfer("pending", "later", sent=1_000)
    watcher = initialized_watcher(later)
    watcher.update_from_listing(
        rows(later, transfer("complete", "earlier", sent=1_000 - int(LISTING_OVERLAP) + 1)), NOW
    )
    assert drained(watcher) == ["earlier"]


@pytest.mark.parametrize(
    "claimed", ["2999-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "soon", None]
)
def test_transfer_with_an_absurd_send_time_is_reported_and_hides_nothing(claimed: str | None) -> None:
    absurd = structs.replace(transfer("complete", "absurd"), sent_at=claimed)
    known = [transfer("complete", f"t{number}", sent=number) for number in (3, 2, 1)]
    watcher = initialized_watcher(*known)
    watcher.update_from_listing(rows(absurd, *known), NOW)
    assert drained(watcher) == ["absurd"]
    next_one = transfer("complete", "next", sent=4)
    assert watcher.since < NOW
    watcher.update_from_listing(rows(next_one, absurd, *known), NOW)
    assert drained(watcher) == ["next"]
    watcher.update_from_listing(rows(next_one, absurd, *known), NOW)
    assert drained(watcher) == []


def test_row_that_cannot_be_read_in_the_listing_is_read_alone() -> None:
    known = transfer("complete", "known")
    watcher = initialized_watcher(known)
    watcher.update_from_listing(rows("poisoned", known), NOW)
    assert set(watcher.outstanding) == {"poisoned"}
    watcher.update(transfer("complete", "poisoned"))
    assert drained(watcher) == ["poisoned"]
    watcher.update_from_listing(rows("poisoned", known), NOW)
    assert watcher.outstanding == {}


@given(
    st.lists(st.tuples(st.sampled_from(["send", "poison", "look"]), st.integers(0, 10**10) | st.none()), max_size=60)
)
def test_each_finished_transfer_is_reported_once_whatever_its_send_time(steps: list[tuple[str, int | None]]) -> None:
    listing = [transfer("complete", f"before{number}", sent=number) for number in range(5)]
    watcher, sent, heard = initialized_watcher(*listing), [], []
    for number, (step, claimed) in enumerate([*steps, ("look", None)]):
        if step == "look":
            watcher.update_from_listing(rows(*listing), NOW)
            heard += drained(watcher)
            continue
        one = transfer("complete", f"t{number}", sent=100 + number)
        claim = claimed is not None and datetime.fromtimestamp(claimed, UTC).isoformat()
        listing.insert(0, structs.replace(one, sent_at=claim or None) if step == "poison" else one)
        sent.append(one.id)
    assert sorted(heard) == sorted(sent)


def test_watcher_state_is_bounded() -> None:
    watcher = initialized_watcher()
    many = [transfer("complete", f"t{number}", sent=80_000 - 200 * number) for number in range(MAX_RECENT + 50)]
    watcher.update_from_listing(rows(*many, transfer("pending", "out")), NOW)
    _, state = watcher.drain()
    assert state
    assert set(state["recent"]) == {one.id for one in many[:MAX_RECENT]}
    watcher.record_missing(["out", "unheard of"], NOW)
    watcher.record_missing(["out"], NOW + MAX_MISSING)
    _, state = watcher.drain()
    assert state
    assert state["outstanding"] == state["missing"] == {}


def test_missing_transfer_is_forgotten_only_after_a_long_time_across_restarts() -> None:
    watcher = initialized_watcher(transfer("pending", "out"))
    watcher.record_missing(["out"], NOW)
    watcher = CompletionWatcher(60.0, 0.0, json.loads(json.dumps(watcher.drain()[1])))
    for seconds in (-MAX_MISSING, 60.0, MAX_MISSING - 1.0):
        watcher.record_missing(["out"], NOW + seconds)
        assert list(watcher.outstanding) == list(watcher.missing) == ["out"]
    watcher.update(transfer("pending", "out"))
    assert not watcher.missing
    watcher.record_missing(["out"], NOW + MAX_MISSING)
    assert list(watcher.outstanding) == ["out"], "it is missing for the first time again"
    watcher.update(transfer("complete", "out"))
    assert drained(watcher) == ["out"]


def test_listing_that_omits_rows_repeats_no_report() -> None:
    known = [transfer("complete", f"t{number}", sent=number) for number in range(9, 0, -1)]
    absurd = structs.replace(transfer("complete", "absurd"), sent_at="1970-01-01T00:00:00Z")
    watcher = initialized_watcher(*known)
    watcher.update_from_listing(rows(absurd, *known), NOW)
    assert drained(watcher) == ["absurd"]
    for shown in ([], known[5:]):
        watcher.update_from_listing(rows(*shown), NOW)
    watcher.update_from_listing(rows(absurd, *known), NOW)
    assert drained(watcher) == []


@pytest.mark.parametrize("state", [{}, [], "x", {"since": None, "outstanding": {}, "recent": {}}, {"since": 1.0}])
def test_invalid_stored_state_is_ignored(state: Any) -> None:
    assert CompletionWatcher(60.0, 0.0, state).is_new
