"""The poll among poisoned rows, headers, clocks and subscribers, in small; and that the fuzzer finds what is mended.

For long: ``python -m resilience.fuzz.poll_fuzz``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from outbound_transfer.polling import cluster, hints, poller, waiters
from outbound_transfer.polling.poller import SharedPoller
from outbound_transfer.polling.read_backoff import ReadBackoff
from outbound_transfer.polling.schedule import Now
from outbound_transfer.polling.waiters import WaiterRegistry
from outbound_transfer.polling.watcher import CompletionWatcher
from outbound_transfer.protocol import decoding, endpoints, poll_lease
from outbound_transfer.protocol.models import TransferPage
from resilience.fuzz.poll_fuzz import World, fuzz_poll, play
from resilience.fuzz.poll_fuzz_cluster import ClusterScenario

pytestmark = pytest.mark.slow

SEEDS = (1, 10, 14)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    for _, scenario in fuzz_poll(seed, examples=2):
        assert scenario.broken == []
        assert scenario.counts["requests"]


@pytest.mark.parametrize("seed", [1, 5, 11])
def test_no_promise_is_broken_in_a_cluster(seed: int) -> None:
    for _, scenario in fuzz_poll(seed, examples=2, kind=ClusterScenario):
        assert scenario.broken == []
        assert scenario.counts["requests"]


def one_retry_after_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a header asks for is waited out, however long it is."""
    monkeypatch.setattr(poller, "MAX_RETRY_AFTER", float("inf"))


def a_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is read whole or not at all, and a page that is not read is a service that is down."""

    def read(body: bytes) -> TransferPage:
        page = msgspec.json.decode(body, type=decoding._Page)
        return TransferPage(page.data, page.next_cursor)

    monkeypatch.setattr(endpoints, "decode_page", read)


def no_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same transfers are read first each time."""
    for method in ("record_failure", "deprioritize"):
        monkeypatch.setattr(ReadBackoff, method, lambda *_: None)


def no_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is given up by the clock alone."""

    def expire_overdue(self: WaiterRegistry, now: Now) -> bool:
        late = [waiter for waiter in self if now.wall >= waiter.deadline + waiters.FINAL_POLL_GRACE]
        for waiter in late:
            waiter.time_out()
        return bool(late)

    monkeypatch.setattr(WaiterRegistry, "expire_overdue", expire_overdue)
    has_updates = SharedPoller._has_updates
    monkeypatch.setattr(
        SharedPoller,
        "_has_updates",
        lambda self, poll_start: expire_overdue(self._registry, self._clock()) or has_updates(self, poll_start),
    )


def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are paced by a clock that is set."""
    clock = World.clock
    monkeypatch.setattr(World, "clock", lambda self: Now(clock(self).wall, clock(self).wall))


def any_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no transfer is waited for."""
    monkeypatch.setattr(waiters, "resolve_transfer_id", lambda given: given)


def any_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no interval paces the poll."""
    monkeypatch.setattr(waiters, "interval_or_default", lambda given: given)


def believed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher knows what is new by the time that it claims."""
    scan = CompletionWatcher.update_from_listing

    def by_time(self: CompletionWatcher, newest: Iterable[Any], now: float) -> None:
        rows = [row for row in newest if row.sent is not None and row.sent >= self.since]
        scan(self, rows, float("inf"))

    monkeypatch.setattr(CompletionWatcher, "update_from_listing", by_time)


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


def lost_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the holder has read is lost, and no process reads for itself what it has left to the holder."""
    monkeypatch.setattr(waiters, "TRUST_INTERVAL", 1e9)
    monkeypatch.setattr(WaiterRegistry, "apply_readings", lambda *_: None)


def believed_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease does not expire, and no process reads for itself what it has left to the holder."""
    monkeypatch.setattr(waiters, "TRUST_INTERVAL", 1e9)
    monkeypatch.setattr(cluster, "LEASE_SECONDS", 1e9)
    monkeypatch.setattr(poll_lease, "LEASE_SECONDS", 1e9)


def believed_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an event has named a pickup, there are no full polls."""
    for name in ("FIRST_RARE_INTERVAL", "LAST_RARE_INTERVAL", "MAX_DELAY", "MAX_SILENCE"):
        monkeypatch.setattr(hints, name, 1e6)


#: The same for a cluster.
CLUSTER_MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    lost_readings: 3,
    believed_lease: 3,
    believed_hints: 0,
}


@pytest.mark.parametrize("mutant", CLUSTER_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mend_of_a_cluster_that_is_taken_out_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert play(CLUSTER_MUTANTS[mutant], ClusterScenario).broken
