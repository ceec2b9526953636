"""What named transfers do to the times of polls."""

from __future__ import annotations

from math import inf

import pytest

from outbound_transfer.polling.hints import (
    FIRST_RARE_INTERVAL,
    HINT_INTERVAL,
    LAST_RARE_INTERVAL,
    MAX_EVENT_DELAY,
    MAX_HINT_AGE,
    MAX_HINTS,
    MAX_SILENCE,
    Hints,
)
from outbound_transfer.polling.schedule import PollTimes
from outbound_transfer.polling.watcher import CompletionWatcher


def everything(_: str) -> bool:
    return True


def confirm(hints: Hints, now: float, *, transfer_id: str = "t") -> None:
    """An event names a transfer, and the poll that it causes shows the pickup."""
    hints.add([transfer_id], everything, now)
    hints.record_pickup(transfer_id, now)
    hints.forget([transfer_id], now)


def settled() -> tuple[Hints, float]:
    """Hints that have made full polls as rare as they get, and the time."""
    hints, now = Hints(), 0.0
    while hints.rare_interval < LAST_RARE_INTERVAL:
        confirm(hints, now)
        hints.update_interval(now, can_read=True)
        now += 5
    return hints, now


def test_only_what_is_polled_is_read() -> None:
    hints = Hints()
    hints.add(["t1", "report.csv", "ann@example.com"], {"t1"}.__contains__, 10.0)
    assert hints.due_at <= 10.0
    assert hints.take({"t1"}.__contains__, 10.0) == {"t1"}
    hints.forget(["t1"], 10.0)
    assert hints.due_at == inf


def test_named_transfers_are_read_at_intervals_the_first_ones_first() -> None:
    hints = Hints()
    names = [f"t{number}" for number in range(MAX_HINTS + 1)]
    hints.add(names, everything, 0.0)
    assert hints.take(everything, 0.0) == set(names[:-1])
    hints.forget(names[:-1], 0.0)
    assert hints.take(everything, HINT_INTERVAL - 1) == set()
    assert hints.due_at == HINT_INTERVAL
    assert hints.take(everything, HINT_INTERVAL) == {names[-1]}


def test_what_is_named_while_a_poll_reads_it_is_read_again() -> None:
    hints = Hints()
    hints.add(["t"], everything, 0.0)
    hints.take(everything, 1.0)
    hints.add(["t"], everything, 2.0)
    hints.forget(["t"], 1.0)
    assert hints.take(everything, 1.0 + HINT_INTERVAL) == {"t"}


def test_what_cannot_be_read_is_left_to_full_polls_after_some_time() -> None:
    hints = Hints()
    hints.add(["t"], everything, 0.0)
    assert hints.take(everything, MAX_HINT_AGE - 1) == {"t"}
    assert hints.take(everything, MAX_HINT_AGE + HINT_INTERVAL) == set()
    assert hints.due_at == inf


def test_full_polls_become_rarer_step_by_step_while_pickups_are_named_first() -> None:
    hints, intervals = Hints(), [0.0]
    for second in range(0, 4_000, 5):
        confirm(hints, second)
        hints.update_interval(second, can_read=True)
        if hints.rare_interval != intervals[-1]:
            intervals.append(hints.rare_interval)
    assert intervals == [0.0, FIRST_RARE_INTERVAL, 120.0, 240.0, 480.0, LAST_RARE_INTERVAL]


def test_nothing_changes_while_nothing_is_picked_up() -> None:
    hints = Hints()
    hints.add(["t"], everything, 0.0)
    for second in range(0, 4_000, 5):
        hints.update_interval(second, can_read=True)
    assert hints.rare_interval == 0.0


def test_a_pickup_that_a_full_poll_shows_first_may_be_named_for_a_moment() -> None:
    hints, now = settled()
    hints.record_pickup("t", now)
    hints.update_interval(now + MAX_EVENT_DELAY - 1, can_read=True)
    hints.add(["t"], lambda _: False, now + MAX_EVENT_DELAY - 1)
    hints.update_interval(now + MAX_EVENT_DELAY, can_read=True)
    assert hints.rare_interval == LAST_RARE_INTERVAL


@pytest.mark.parametrize("event", ["never named", "unreadable", "silence"])
def test_full_polls_go_on_as_before_when_hints_are_not_to_be_relied_on(event: str) -> None:
    hints, now = settled()
    if event == "never named":
        hints.record_pickup("t", now)
        hints.update_interval(now + MAX_EVENT_DELAY, can_read=True)
    elif event == "unreadable":
        hints.update_interval(now, can_read=False)
    else:
        hints.update_interval(now + MAX_SILENCE, can_read=True)
    assert hints.rare_interval == 0.0


def test_one_pickup_that_was_not_named_counts_once() -> None:
    hints, now = settled()
    hints.record_pickup("t", now)
    hints.update_interval(now + MAX_EVENT_DELAY, can_read=True)
    confirm(hints, now + MAX_EVENT_DELAY)
    hints.update_interval(now + MAX_EVENT_DELAY + 5, can_read=True)
    assert hints.rare_interval == FIRST_RARE_INTERVAL


def test_a_watcher_asks_for_new_transfers_as_often_as_before() -> None:
    watcher = CompletionWatcher(60.0, 0.0)
    times = PollTimes(2.0, 900.0)
    watcher.polled_at = watcher.scanned_at = 2.0
    assert watcher.due_at(times) == 62.0
    assert watcher.scan_due_at(times) == 902.0
