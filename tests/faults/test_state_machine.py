"""Random schedules of a DAG run's tasks against the ledger, in small; 2,000 of them: ``make machine``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.machine import DagRun, schedules
from faults.matrix import Bench
from faults.mutants import storing_the_id_after_the_send
from outbound_transfer.delivery import Delivery
from outbound_transfer.protocol.calls import get_transfer

EXAMPLES = 25


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("number", [1, 2])
def test_no_schedule_breaks_a_promise(bench: Bench, number: int) -> None:
    counts = schedules(bench, EXAMPLES, number)
    for happened in ("deliver succeeded", "send succeeded", "faults met"):
        assert counts[happened], happened


# Tests of the tests: with a safeguard taken out, the machine's judge must find it.


@pytest.fixture
def begun(bench: Bench) -> Callable[..., DagRun]:
    def begin() -> DagRun:
        machine: DagRun = type("DagRun", (DagRun,), {"bench": bench})()
        machine.begin(deferrable=False, late=False)
        return machine

    return begin


def test_the_machine_finds_an_id_that_is_stored_after_the_send(begun: Any, monkeypatch: Any) -> None:
    def die_after_the_send() -> None:
        machine = begun()
        machine.plan_death(at=4, after=True)
        machine.deliver(resend=False)

    die_after_the_send()
    storing_the_id_after_the_send(monkeypatch)
    with pytest.raises(AssertionError, match="billed too often"):
        die_after_the_send()


def test_the_machine_finds_a_second_delivery_after_a_clear(begun: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Delivery, "earlier", lambda *_, **__: None)
    monkeypatch.setattr(Delivery, "_check_not_sent", lambda *_: None)
    machine = begun()
    machine.deliver(resend=False)
    with pytest.raises(AssertionError, match="billed too often"):
        machine.deliver(resend=False)


def test_the_machine_finds_old_bytes(begun: Any, monkeypatch: Any) -> None:
    """A source that changed after a refused send, taken for what the draft holds of it."""
    machine = begun()
    machine.plan_fault("401", skip=4, times=1)
    machine.deliver(resend=False)
    machine.change_source(0, "rewritten")
    monkeypatch.setattr("outbound_transfer.delivery.stale_files", lambda *_, **__: [])
    with pytest.raises(AssertionError, match=r"a\.csv was sent with bytes"):
        machine.deliver(resend=False)


def test_the_machine_finds_a_success_that_sent_nothing(begun: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Delivery, "send", lambda self, state, **_: self.client.perform(get_transfer(state.transfer_id)))
    with pytest.raises(AssertionError, match="was not sent"):
        begun().deliver(resend=False)
