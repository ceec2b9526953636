"""Random schedules of a DAG run's tasks against the ledger, in small; 2,000 of them: ``make test-stateful``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.fault_matrix.matrix import Harness
from resilience.fault_matrix.mutants import forgetting_the_draft
from resilience.stateful.late_requests import FULL, Plan
from resilience.stateful.outliving import WAIT
from resilience.stateful.state_machine import (
    ELSEWHERE,
    NOT_NEEDED,
    DeliveryStateMachine,
    schedules,
)
from support.inputs import INPUTS, stored_digests

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
def begun(harness: Harness) -> Iterator[Callable[..., DeliveryStateMachine]]:
    machines: list[DeliveryStateMachine] = []

    def begin(given: str = "paths", *, deferrable: bool = False, approval: str = NOT_NEEDED) -> DeliveryStateMachine:
        machine: DeliveryStateMachine = type("DeliveryStateMachine", (DeliveryStateMachine,), {"harness": harness})()
        machines.append(machine)
        machine.begin(deferrable=deferrable, late=False, given=given, approval=approval)
        return machine

    yield begin
    for machine in machines:
        machine.abandon()


def test_a_planned_fault_is_met_and_a_planned_death_happens(begun: Callable[..., DeliveryStateMachine]) -> None:
    machine = begun()
    machine.counts.clear()
    machine.plan_fault("503", skip=1, times=2)
    machine.plan_death(at=4, after=False)
    machine.deliver()
    assert machine.counts == {"deliver succeeded": 1, "given as paths": 1, "faults met": 2, "deaths": 1}


@pytest.mark.parametrize("given", sorted(INPUTS))
@pytest.mark.parametrize("change", ["rewritten", "longer", "empty"])
def test_what_changes_between_tries_is_sent_as_the_last_one_found_it(begun: Any, given: str, change: str) -> None:
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


def test_the_machine_finds_an_id_that_is_stored_after_the_send(begun: Any, monkeypatch: Any) -> None:
    def die_after_the_send() -> None:
        machine = begun()
        machine.plan_death(at=4, after=True)
        machine.deliver()

    die_after_the_send()
    forgetting_the_draft(monkeypatch)
    with pytest.raises(AssertionError, match="billed too often"):
        die_after_the_send()


# Long waits, and processes that outlive their try.

ALL = [0, 1, 2]


def move_an_item_while_its_index_waits(machine: DeliveryStateMachine) -> None:
    """B1: another index gets the item, and sends it."""
    machine.deliver_at_two_indexes([0, 1], at_wait=True)


def give_up_a_try_that_waits(machine: DeliveryStateMachine) -> None:
    """B2: a user marks the task."""
    machine.outlive(Plan("deliver", WAIT), FULL)
    machine.wake()
    machine.deliver()


def lose_the_record_of_a_send_that_arrives_late(machine: DeliveryStateMachine) -> None:
    """B7: it arrives in the second try after that of which nothing is known; the first has died."""
    machine.deliver(trouble="no service")
    machine.outlive(Plan("deliver", "send"))
    machine.lose_newest_state(0)
    machine.plan_death(at=1, after=True)
    machine.deliver()


def wait_with_a_removal_until_the_send_waits(machine: DeliveryStateMachine) -> None:
    """C1: of a file that the next try wants."""
    machine.create()
    machine.attach()
    machine.want_other_files([0])
    machine.let_a_task_wait("429 at a file")
    machine.plan = Plan("attach", WAIT)
    machine.attach()
    machine.want_other_files(ALL)
    machine.attach()
    machine.let_a_task_wait(FULL)
    machine.steps = 2  # a read and an attempt at the send
    machine.go_send()


def die_at_a_removal_that_arrives_late(machine: DeliveryStateMachine) -> None:
    """C2: of a file that the next try wants."""
    machine.create()
    machine.attach()
    machine.want_other_files([0])
    machine.plan = Plan("attach", "remove", dies=True)
    machine.attach()
    machine.want_other_files(ALL)
    machine.attach()
    machine.wake()
    machine.go_send()


def wait_with_an_upload_until_the_send_waits(machine: DeliveryStateMachine) -> None:
    """C3: of a file that the next try does not want."""
    machine.create()
    machine.let_a_task_wait("429 at a file")
    machine.plan = Plan("attach", WAIT)
    machine.attach()
    machine.want_other_files([0, 1])
    machine.attach()
    machine.let_a_task_wait(FULL)
    machine.steps = 2  # a read and an attempt at the send
    machine.go_send()


def die_at_an_upload_that_arrives_late(machine: DeliveryStateMachine) -> None:
    """C3, in one task: before the send of the next try, which does not want the file."""
    machine.outlive(Plan("deliver", "attach", steps=3, dies=True))
    machine.want_other_files([0, 1])
    machine.deliver()


def attach_an_upload_that_arrives_late(machine: DeliveryStateMachine) -> None:
    """C3: of a file that the next try does not want."""
    machine.create()
    machine.plan = Plan("attach", "attach", skip=2, dies=True)
    machine.attach()
    machine.want_other_files([2, 0])
    machine.attach()
    machine.wake()
    machine.go_send()


def move_the_connection_before_a_send_arrives(machine: DeliveryStateMachine) -> None:
    """C4: from another account."""
    machine.outlive(Plan("deliver", "send", dies=True))
    machine.move_connection(ELSEWHERE)
    machine.deliver()
    machine.wake()


def restore_the_service_before_the_attach(machine: DeliveryStateMachine) -> None:
    """C5."""
    machine.create()
    machine.restore_the_service(of_steps=True)
    machine.attach()


def restore_the_service_before_the_send(machine: DeliveryStateMachine) -> None:
    """C5."""
    machine.create()
    machine.attach()
    machine.restore_the_service(of_steps=True)
    machine.go_send()


def restore_the_service_while_the_send_waits(machine: DeliveryStateMachine) -> None:
    """C5."""
    machine.create()
    machine.attach()
    machine.let_a_task_wait(FULL)
    machine.restore_the_service(of_steps=True, at_wait=True)
    machine.go_send()


def restore_the_service_before_the_discard(machine: DeliveryStateMachine) -> None:
    """C5."""
    machine.create()
    machine.restore_the_service(of_steps=True)
    machine.discard(move=False)


def restore_the_service_during_a_deferral(machine: DeliveryStateMachine) -> None:
    """C5."""
    machine.let_a_task_wait(FULL)
    machine.restore_the_service(of_steps=False, at_wait=True)
    machine.deliver()


@pytest.mark.parametrize(
    "schedule",
    [
        move_an_item_while_its_index_waits,
        give_up_a_try_that_waits,
        lose_the_record_of_a_send_that_arrives_late,
        wait_with_a_removal_until_the_send_waits,
        die_at_a_removal_that_arrives_late,
        wait_with_an_upload_until_the_send_waits,
        die_at_an_upload_that_arrives_late,
        attach_an_upload_that_arrives_late,
        move_the_connection_before_a_send_arrives,
        restore_the_service_before_the_attach,
        restore_the_service_before_the_send,
        restore_the_service_while_the_send_waits,
        restore_the_service_before_the_discard,
        restore_the_service_during_a_deferral,
    ],
    ids=lambda each: each.__name__,
)
def test_no_late_process_and_no_restored_service_breaks_a_promise(begun: Any, schedule: Any) -> None:
    schedule(begun(deferrable=schedule is restore_the_service_during_a_deferral))
