"""The task state store failing a delivery at any moment, in small: ``make test-faults`` runs every schedule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.delivery.decision import Action, Step
from resilience.fault_matrix.matrix import Harness
from resilience.fault_matrix.mutants import instead
from resilience.fault_matrix.stores import (
    StoreSchedule,
    Trouble,
    attach_schedules,
    run_store_schedule,
    store_schedules,
)

pytestmark = pytest.mark.slow

SCHEDULES = [*random.Random(13).sample(store_schedules(), 60), *random.Random(13).sample(attach_schedules(), 40)]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: Any) -> Iterator[Harness]:
    with Harness(Path(tmp_path_factory.mktemp("stores"))) as harness:
        yield harness


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_trouble_of_the_store_breaks_a_promise(harness: Harness, schedule: StoreSchedule) -> None:
    assert run_store_schedule(harness, schedule).violations == ()


# Tests of the tests: with a safeguard taken out, the machine must find it.


def violations(harness: Harness, trouble: Trouble, store: str, fault: str, *, is_attach: bool = False) -> str:
    schedules = [
        each
        for each in [*store_schedules(), *attach_schedules()]
        if (each.trouble, each.store, each.fault, each.is_attach) == (trouble, store, fault, is_attach)
    ]
    return "; ".join(each for schedule in schedules for each in run_store_schedule(harness, schedule).violations)


def test_the_machine_finds_absence_taken_for_a_first_try(harness: Harness, monkeypatch: Any) -> None:
    instead(monkeypatch, Action.CREATE, Action.SEARCH)
    instead(monkeypatch, Action.SEND, Action.SEARCH, step=Step.SEND)
    assert "billed 2 times" in violations(harness, Trouble.EMPTIES, "native", "no fault")
    assert "billed 2 times" in violations(harness, Trouble.FORGETS, "native", "500 after at send")
