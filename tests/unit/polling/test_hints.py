"""What named transfers do to the times of polls."""

from __future__ import annotations

from math import inf

import pytest

from outbound_transfer.polling.hints import (
    FIRST_RARE_INTERVAL,
    HINT_INTERVAL,
    LAST_RARE_INTERVAL,
    MAX_AGE,
    MAX_DELAY,
    MAX_HINT_INTERVAL,
    MAX_SILENCE,
    Hints,
)
from outbound_transfer.polling.schedule import PollTimes
from outbound_transfer.polling.watcher import CompletionWatcher


def everything(_: str) -> bool:
    return True


def confirm(hints: Hints, now: float, *, transfer_id: str = "t") -> None:
    """An event names a transfer, and the read of it shows the pickup."""
    hints.update([transfer_id], everything, now)
    hints.record_pickup(transfer_id, now, is_hinted=True)
    hints.forget([transfer_id], now)


def settled() -> tuple[Hints, float]:
    """Hints that have made full polls as rare as they get, and the time."""
    hints, now = Hints(), 0.0
    while hints.rare_interval(now) < LAST_RARE_INTERVAL:
        confirm(hints, now)
        now += 5
        hints.update([], everything, now)
    return hints, now


def test_only_what_is_polled_is_read() -> None:
    hints = Hints()
    hints.update(["t1", "report.csv", "ann@example.com"], {"t1"}.__contains__, 10.0)
    assert hints.due_at <= 10.0
    assert hints.take({"t1"}.__contains__, 10.0) == ["t1"]
    hints.forget(["t1"], 10.0)
    assert hints.due_at == inf


def test_named_transfers_are_read_at_intervals_the_first_named_ones_first() -> None:
    hints = Hints()
    hints.update(["t9"], everything, 0.0)
    hints.update(["t1", "t9"], everything, 1.0)
    assert hints.take(everything, 1.0) == ["t9", "t1"]
    hints.forget(["t9"], 1.0)
    assert hints.take(everything, HINT_INTERVAL) == []
    assert hints.due_at == 1.0 + HINT_INTERVAL
    assert hints.take(everything, 1.0 + HINT_INTERVAL) == ["t1"]


def test_what_is_named_while_a_poll_reads_it_is_read_again() -> None:
    hints = Hints()
    hints.update(["t"], everything, 0.0)
    hints.take(everything, 1.0)
    hints.update(["t"], everything, 2.0)
    hints.forget(["t"], 1.0)
    assert hints.take(everything, 1.0 + HINT_INTERVAL) == ["t"]


def test_what_cannot_be_read_in_time_is_left_to_full_polls_which_are_frequent_then() -> None:
    hints, now = settled()
    for second in range(0, int(MAX_DELAY) + 5, 5):
        hints.update(["late"], everything, now + second)  # named again and again
        confirm(hints, now + second)
    assert hints.rare_interval(now + MAX_DELAY) <= FIRST_RARE_INTERVAL


def test_reads_that_fail_are_repeated_less_and_less_often() -> None:
    hints, now = settled()
    intervals = []
    for _ in range(7):
        hints.update(["t"], everything, now)
        assert hints.take(everything, max(now, hints.due_at)) == ["t"]
        now = max(now, hints.due_at)
        hints.back_off(now)
        assert hints.rare_interval(now) == 0.0
        hints.update(["t"], everything, now)
        intervals.append(hints.due_at - now)
    assert intervals == [60.0, 120.0, 240.0, 480.0, MAX_HINT_INTERVAL, MAX_HINT_INTERVAL, MAX_HINT_INTERVAL]


def test_full_polls_become_rarer_step_by_step_while_pickups_are_named_first() -> None:
    hints, intervals = Hints(), [0.0]
    for second in range(0, 4_000, 5):
        confirm(hints, second)
        if hints.rare_interval(second) != intervals[-1]:
            intervals.append(hints.rare_interval(second))
    assert intervals == [0.0, FIRST_RARE_INTERVAL, 120.0, 240.0, 480.0, LAST_RARE_INTERVAL]


def test_names_alone_change_nothing() -> None:
    """A full poll shows the pickups, although events name everything."""
    hints = Hints()
    for second in range(0, 4_000, 5):
        hints.update(["t"], everything, second)
        hints.record_pickup("t", second, is_hinted=False)
        hints.forget(["t"], second)
    assert hints.rare_interval(4_000.0) == 0.0


def test_a_pickup_that_a_full_poll_shows_first_may_be_named_for_a_moment() -> None:
    hints, now = settled()
    hints.record_pickup("t", now, is_hinted=False)
    hints.update(["t"], lambda _: False, now + MAX_DELAY - 1)
    hints.update([], everything, now + MAX_DELAY)
    assert hints.rare_interval(now + MAX_DELAY) == LAST_RARE_INTERVAL


@pytest.mark.parametrize("event", ["never named", "unreadable", "silence", "no news"])
def test_full_polls_go_on_as_before_when_hints_are_not_to_be_relied_on(event: str) -> None:
    hints, now = settled()
    if event == "never named":
        hints.record_pickup("t", now, is_hinted=False)
        now += MAX_DELAY
        hints.update([], everything, now)
    elif event == "unreadable":
        hints.update(None, everything, now)
    elif event == "silence":
        now += MAX_SILENCE
        hints.update([], everything, now)
    else:
        now += MAX_AGE
    assert hints.rare_interval(now) == 0.0


def test_one_pickup_that_was_not_named_counts_once() -> None:
    hints, now = settled()
    hints.record_pickup("t", now, is_hinted=False)
    now += MAX_DELAY
    hints.update([], everything, now)
    confirm(hints, now, transfer_id="u")
    hints.update([], everything, now + 5)
    assert hints.rare_interval(now + 5) == FIRST_RARE_INTERVAL


def test_a_watcher_asks_for_new_transfers_as_often_as_before() -> None:
    watcher = CompletionWatcher(60.0, 0.0)
    times = PollTimes(2.0, 900.0)
    watcher.polled_at = watcher.scanned_at = 2.0
    assert watcher.due_at(times) == 62.0
    assert watcher.scan_due_at(times) == 902.0
