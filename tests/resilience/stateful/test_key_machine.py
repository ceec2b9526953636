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


def begun(harness: Harness) -> DeliveryKeyStateMachine:
    machine: DeliveryKeyStateMachine = type(
        "DeliveryKeyStateMachine", (DeliveryKeyStateMachine,), {"harness": harness}
    )()
    machine.begin(deferrable=False)
    return machine


def test_no_schedule_of_tasks_that_share_keys_breaks_a_promise(harness: Harness) -> None:
    counts = key_schedules(harness, 10, 1)
    for happened in ("succeeded", "failed", "at once", "key changed"):
        assert counts[happened], happened


def test_the_machine_finds_a_key_that_its_owner_keeps_after_a_claim(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver_at_once() -> None:
        machine = begun(harness)
        machine.deliver_at_once(["one", "two", "three"], "k1", "first", "second", is_taken_for_dead=True)

    deliver_at_once()
    monkeypatch.setattr(MemoryRow, "_check_still_owner", lambda _, row: row)
    with pytest.raises(AssertionError, match="billed too often"):
        deliver_at_once()


def test_what_is_left_under_another_key_is_not_sent(harness: Harness) -> None:
    """The key changes between two tries, of which the first waits and goes on."""
    begun(harness).change_the_key_of_a_task_that_waits("one", ["k1", "k2"], "first", steps=99)
