"""Waits among poisoned rows, headers, clocks and triggers, in small; and that the fuzzer can find something.

For long: ``python -m resilience.fuzz.poll_fuzz``.
"""

from __future__ import annotations

import pytest

from resilience.fuzz import poll_fuzz
from resilience.fuzz.poll_fuzz import fuzz_poll, play

pytestmark = pytest.mark.slow

SEEDS = (1, 10, 14)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    for _, scenario in fuzz_poll(seed, examples=2):
        assert scenario.broken == []
        assert scenario.counts["requests"]


def test_an_end_that_comes_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_fuzz, "BOUND", -1)
    assert play(3).broken
