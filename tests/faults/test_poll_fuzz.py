"""The poll among poisoned rows, headers, clocks and subscribers, in small; and that the fuzzer finds what is mended.

For long: ``python tests/faults/poll_fuzz.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from faults.poll_fuzz import World, fuzz_poll, play
from outbound_transfer.polling import poll, waits
from outbound_transfer.polling.poll import Poll
from outbound_transfer.polling.schedule import Now
from outbound_transfer.polling.troubled import Troubled
from outbound_transfer.polling.waits import Waits
from outbound_transfer.polling.watch import Watch
from outbound_transfer.protocol import calls, reading
from outbound_transfer.protocol.models import TransferPage

SEEDS = (1, 10, 14)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    for _, story in fuzz_poll(seed, examples=2):
        assert story.broken == []
        assert story.counts["requests"]


def one_retry_after_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a header asks for is waited out, however long it is."""
    monkeypatch.setattr(poll, "LONGEST_ASKED", float("inf"))


def a_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is read whole or not at all, and a page that is not read is a service that is down."""

    def read(body: bytes) -> TransferPage:
        page = msgspec.json.decode(body, type=reading._Page)
        return TransferPage(page.data, page.next_cursor)

    monkeypatch.setattr(calls, "read_page", read)


def no_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same transfers are read first each time."""
    for method in ("note", "put_last"):
        monkeypatch.setattr(Troubled, method, lambda *_: None)


def no_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is given up by the clock alone."""

    def give_up(self: Waits, now: Now) -> bool:
        late = [wait for wait in self if now.wall >= wait.deadline + waits.LAST_LOOK]
        for wait in late:
            wait.give_up()
        return bool(late)

    monkeypatch.setattr(Waits, "give_up", give_up)
    news = Poll._is_news
    monkeypatch.setattr(Poll, "_is_news", lambda self, began: give_up(self._waits, self._clock()) or news(self, began))


def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are paced by a clock that is set."""
    clock = World.clock
    monkeypatch.setattr(World, "clock", lambda self: Now(clock(self).wall, clock(self).wall))


def any_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no transfer is waited for."""
    monkeypatch.setattr(waits, "transfer_id_of", lambda given: given)


def any_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no interval paces the poll."""
    monkeypatch.setattr(waits, "interval_of", lambda given: given)


def believed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher knows what is new by the time that it claims."""
    scan = Watch.scan

    def by_time(self: Watch, newest: Iterable[Any], now: float) -> None:
        rows = [row for row in newest if row.sent is not None and row.sent >= self.since]
        scan(self, rows, float("inf"))

    monkeypatch.setattr(Watch, "scan", by_time)


#: Each with a seed that finds that it is taken out.
MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    one_retry_after_for_all: 13,
    a_row_for_all: 5,
    no_rotation: 24,
    no_last_look: 1,
    one_clock: 5,
    any_id: 3,
    any_interval: 4,
    believed_times: 5,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mend_that_is_taken_out_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert play(MUTANTS[mutant]).broken
