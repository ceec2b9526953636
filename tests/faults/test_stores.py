"""The task state store failing a delivery at any moment, in small: ``make faults`` runs every schedule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.matrix import Bench
from faults.stores import StoreSchedule, Trouble, run_store_schedule, store_schedules
from outbound_transfer import state as states
from outbound_transfer.delivery import Delivery

SCHEDULES = random.Random(13).sample(store_schedules(), 60)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: Any) -> Iterator[Bench]:
    with Bench(Path(tmp_path_factory.mktemp("stores"))) as bench:
        yield bench


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_trouble_of_the_store_breaks_a_promise(bench: Bench, schedule: StoreSchedule) -> None:
    assert run_store_schedule(bench, schedule).violations == ()


# Tests of the tests: with a safeguard taken out, the machine must find it.


def violations(bench: Bench, trouble: Trouble, store: str, fault: str) -> str:
    schedules = [
        each for each in store_schedules() if (each.trouble, each.store, each.fault) == (trouble, store, fault)
    ]
    return "; ".join(each for schedule in schedules for each in run_store_schedule(bench, schedule).violations)


def test_the_machine_finds_absence_taken_for_a_first_try(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(Delivery, "_check_not_sent", lambda *_: None)
    assert "billed 2 times" in violations(bench, Trouble.EMPTIES, "native", "no fault")
    assert "billed 2 times" in violations(bench, Trouble.FORGETS, "native", "500 after at send")


def test_the_machine_finds_tries_that_share_a_path(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(states, "_key", lambda _: "outbound_transfer_delivery")
    monkeypatch.setattr(states, "save_proved", states.save)
    monkeypatch.setattr(Delivery, "_check_not_sent", lambda *_: None)
    assert "billed 2 times" in violations(bench, Trouble.GIVES_UP, "object storage", "500 after at send")
