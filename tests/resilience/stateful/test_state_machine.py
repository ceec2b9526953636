"""Random schedules of a Dag run's tasks against the ledger, in small; 2,000 of them: ``make test-stateful``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from resilience.fault_matrix.matrix import DELIVERY, Harness
from resilience.fault_matrix.mutants import ForgetfulDelivery
from resilience.inputs import INPUTS, stored_digests
from resilience.stateful.state_machine import DeliveryStateMachine, schedules

pytestmark = pytest.mark.slow

EXAMPLES = 25


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path) as harness:
        yield harness


@pytest.mark.parametrize("number", [1, 2])
def test_no_schedule_breaks_a_promise(harness: Harness, number: int) -> None:
    counts = schedules(harness, EXAMPLES, number)
    for happened in ("deliver succeeded", "send succeeded"):
        assert counts[happened], happened


# A task run meets what is planned for it, and the judge can find something.


@pytest.fixture
def begun(harness: Harness) -> Callable[..., DeliveryStateMachine]:
    def begin(given: str = "paths", *, deferrable: bool = False) -> DeliveryStateMachine:
        machine: DeliveryStateMachine = type("DeliveryStateMachine", (DeliveryStateMachine,), {"harness": harness})()
        machine.begin(deferrable=deferrable, late=False, given=given)
        return machine

    return begin


def test_a_planned_fault_is_met_and_a_planned_death_happens(begun: Callable[..., DeliveryStateMachine]) -> None:
    machine = begun()
    machine.counts.clear()
    machine.plan_fault("503", skip=1, times=2)
    machine.plan_death(at=4, after=False)
    machine.deliver()
    assert machine.counts == {"deliver succeeded": 1, "given as paths": 1, "faults met": 2, "deaths": 1}


@pytest.mark.parametrize("given", sorted(INPUTS))
@pytest.mark.parametrize("change", ["rewritten", "longer", "empty"])
def test_a_file_changed_between_attempts_is_sent_as_the_last_one_found_it(begun: Any, given: str, change: str) -> None:
    machine = begun(given)
    ti, path = machine.tasks["deliver"], machine.harness.files[0]

    def change_source() -> None:
        machine.before_retry()
        machine.change_source(0, change)
        machine.see_versions()

    ti.before_retry = change_source
    machine.deliver(trouble="away at the send")

    (transfer_id,) = machine.sent["deliver"]
    stored = stored_digests(machine.sandbox, transfer_id, machine.sandbox.transfer(transfer_id)["files"])
    assert stored[path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(machine.versions[path.name]) == 2


def test_a_delivery_is_refused_while_the_send_of_another_task_is_in_doubt(begun: Any) -> None:
    machine = begun()
    machine.deliver_in_steps(trouble="no service")
    machine.deliver(trouble="no service")
    machine.deliver_in_order()
    assert not any(machine.sent.values())
    machine.death.in_doubt.clear()
    with pytest.raises(AssertionError, match="refused although nothing is wrong"):
        machine.deliver_in_order()


@pytest.mark.parametrize("is_forgetful", [False, True])
def test_the_machine_finds_a_delivery_that_forgets_what_it_sent(begun: Any, is_forgetful: bool) -> None:
    machine = begun()
    if is_forgetful:
        given = {**DELIVERY, "subject": f"Report {machine.number}"}
        machine.tasks["deliver"].make = lambda: ForgetfulDelivery(machine.sandbox, machine.harness.files, given)
    machine.plan_death(at=4, after=True)
    with pytest.raises(AssertionError, match="billed too often") if is_forgetful else nullcontext():
        machine.deliver()
