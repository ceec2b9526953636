"""Calls counted in memory, by minute, until they are written."""

from __future__ import annotations

from datetime import UTC, datetime

from outbound_transfer.ledger.call_counter import MAX_KEYS, CallCounter
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.warehouse.timestamps import format_timestamp


def test_calls_are_counted_by_minute_and_taken_once() -> None:
    now = [datetime(2026, 1, 31, 12, 0, 59, tzinfo=UTC).timestamp()]
    counts = CallCounter(clock=lambda: now[0])
    counts.add("acme", "conn", Operation.LIST_FILES, 200)
    counts.add("acme", "conn", Operation.LIST_FILES, 200)
    counts.add("acme", "conn", Operation.SEND, None)
    now[0] += 1
    counts.add("acme", "conn", Operation.LIST_FILES, 200)
    first = format_timestamp(datetime(2026, 1, 31, 12, 0, tzinfo=UTC))
    second = format_timestamp(datetime(2026, 1, 31, 12, 1, tzinfo=UTC))
    rows = counts.drain()
    assert [row[1:] for row in rows] == [
        (first, "acme", "conn", "list_files", 200, 2),
        (first, "acme", "conn", "send", 0, 1),
        (second, "acme", "conn", "list_files", 200, 1),
    ]
    assert len({row[0] for row in rows}) == 3
    assert counts.drain() == []


def test_counts_that_nobody_takes_do_not_grow_for_ever() -> None:
    counts = CallCounter()
    for number in range(MAX_KEYS + 10):
        counts.add("acme", str(number), Operation.SEND, 200)
    counts.add("acme", "0", Operation.SEND, 200)
    rows = counts.drain()
    assert (len(rows), sum(row[-1] for row in rows)) == (MAX_KEYS, MAX_KEYS + 1)
