"""The poll among poisoned rows, headers, clocks and subscribers, in small; and that the fuzzer can find something.

For long: ``python -m resilience.fuzz.poll_fuzz``.
"""

from __future__ import annotations

import pytest

from outbound_transfer.polling import waiters
from resilience.fuzz.poll_fuzz import fuzz_poll, play
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


def test_an_id_that_is_none_is_found_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "resolve_transfer_id", lambda given: given)
    assert play(3).broken
