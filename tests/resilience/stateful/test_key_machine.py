"""Random schedules of tasks that share delivery keys against the ledger, in small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbound_transfer.warehouse.memory_table import MemoryRow
from resilience.fault_matrix.matrix import Harness
from resilience.stateful.key_machine import DeliveryKeyStateMachine, key_schedules

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path) as harness:
        yield harness


def test_no_schedule_of_tasks_that_share_keys_breaks_a_promise(harness: Harness) -> None:
    counts = key_schedules(harness, 10, 1)
    for happened in ("succeeded", "failed", "at once"):
        assert counts[happened], happened


def test_the_machine_finds_a_key_that_its_owner_keeps_after_a_claim(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver_at_once() -> None:
        machine = type("DeliveryKeyStateMachine", (DeliveryKeyStateMachine,), {"harness": harness})()
        machine.begin(deferrable=False)
        machine.deliver_at_once(["one", "two", "three"], "k1", "first", "second", is_taken_for_dead=True)

    deliver_at_once()
    monkeypatch.setattr(MemoryRow, "_check_still_owner", lambda _, row: row)
    with pytest.raises(AssertionError, match="billed too often"):
        deliver_at_once()
