"""Random schedules of a DAG run's tasks against the ledger, in small; 2,000 of them: ``make test-stateful``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.delivery import evidence
from outbound_transfer.delivery.decision import Resend
from outbound_transfer.delivery.draft_writer import DraftWriter
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.delivery.memory_store import TaskMemoryStore
from outbound_transfer.delivery.task_facts import TaskFacts
from outbound_transfer.operators import approval
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.endpoints import get_transfer
from outbound_transfer.tasks.approval import Approval
from resilience.fault_matrix import mutants
from resilience.fault_matrix.matrix import Harness
from resilience.fault_matrix.mutants import forgetting_the_draft, never_asking
from resilience.stateful.late_requests import FULL, Plan
from resilience.stateful.outliving import WAIT
from resilience.stateful.state_machine import (
    ELSEWHERE,
    NEWEST,
    NOT_NEEDED,
    REJECTS,
    SHOWS_FIRST,
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


# Tests of the tests: a task run meets what is planned for it; with a safeguard taken out, the judge must find it.


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


def test_the_machine_finds_a_second_delivery_after_a_clear(begun: Any, monkeypatch: Any) -> None:
    never_asking(monkeypatch)
    machine = begun()
    machine.deliver()
    with pytest.raises(AssertionError, match="billed too often"):
        machine.deliver()


def test_the_machine_finds_an_approval_of_what_an_earlier_try_has_shown(begun: Any, monkeypatch: Any) -> None:
    def correct_what_is_rejected() -> DeliveryStateMachine:
        machine: DeliveryStateMachine = begun(approval=SHOWS_FIRST)
        machine.plan_person(REJECTS)
        machine.deliver()
        machine.change_source(0, "longer")
        machine.deliver()
        return machine

    assert not correct_what_is_rejected().sent["deliver"]
    monkeypatch.setattr(approval, "parse_response", lambda event, code, users: Approval(code, "ann", ""))
    with pytest.raises(AssertionError, match="nobody has approved"):
        correct_what_is_rejected()


def test_the_machine_finds_an_id_that_is_taken_for_a_resend_again(begun: Any, monkeypatch: Any) -> None:
    def leave_it_set() -> None:
        machine = begun()
        machine.deliver()
        machine.deliver(resend=NEWEST)
        machine.deliver()
        assert len(machine.sent["deliver"]) == 2

    leave_it_set()
    monkeypatch.setattr(Memory, "what_names", lambda self, resend: Resend.NAMED if resend else Resend.NONE)
    with pytest.raises(AssertionError, match="billed too often"):
        leave_it_set()


def test_the_machine_finds_a_resend_of_what_another_index_has_sent(begun: Any, monkeypatch: Any) -> None:
    def name_what_the_last_index_has_sent() -> None:
        machine = begun()
        machine.deliver_mapped()
        machine.deliver_mapped(resend=NEWEST)
        assert [len(machine.sent[item]) for item in machine.items] == [1, 2]

    name_what_the_last_index_has_sent()
    monkeypatch.setattr(Memory, "what_names", lambda self, resend: Resend.NAMED if resend else Resend.NONE)
    with pytest.raises(AssertionError, match="billed too often"):
        name_what_the_last_index_has_sent()


def test_the_machine_finds_a_number_that_is_not_taken_for_evidence(begun: Any, monkeypatch: Any) -> None:
    def lose_the_record_and_the_task_instance() -> None:
        machine = begun()
        machine.deliver(trouble="no service")
        machine.deliver()
        machine.lose_newest_state(0)
        machine.delete_task_instance(0)
        machine.deliver()
        machine.deliver()

    lose_the_record_and_the_task_instance()
    get = TaskMemoryStore._get
    monkeypatch.setattr(TaskMemoryStore, "_get", lambda *given: get(*given) if given[1] == "try" else None)
    with pytest.raises(AssertionError, match="billed too often"):
        lose_the_record_and_the_task_instance()


def test_the_machine_finds_a_refused_resend(begun: Any, monkeypatch: Any) -> None:
    def resend_in_order() -> None:
        machine = begun()
        machine.deliver_in_order()
        machine.deliver_mapped()
        machine.resend_mapped_in_order(0)

    resend_in_order()
    monkeypatch.setattr(Memory, "what_names", lambda *_: Resend.NONE)
    with pytest.raises(AssertionError, match="is not sent once more"):
        resend_in_order()


def test_the_machine_finds_old_bytes(begun: Any, monkeypatch: Any) -> None:
    """A source that changed after a refused send, taken for what the draft holds of it."""
    monkeypatch.setattr(DeliverFilesOperator, "_is_final", lambda *_: False)  # the draft stays
    machine = begun()
    machine.plan_fault("401", skip=4, times=1)
    machine.deliver()
    machine.change_source(0, "rewritten")
    monkeypatch.setattr(evidence, "holds_only", lambda *_: True)
    with pytest.raises(AssertionError, match=r"a\.csv was sent with bytes"):
        machine.deliver()


def test_the_machine_finds_a_success_that_sent_nothing(begun: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(DraftWriter, "send", lambda self, _: self.client.perform(get_transfer(self.memory.draft_id)))
    with pytest.raises(AssertionError, match="was not sent"):
        begun().deliver()


def test_the_machine_finds_a_false_alarm(begun: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(TaskFacts, "was_made_by_another_run", lambda *_: False)
    machine = begun()
    machine.deliver(trouble="no file")
    machine.deliver_in_another_run()
    machine.want_other_files([1, 0])
    with pytest.raises(AssertionError, match="refused although nothing is wrong"):
        machine.deliver_in_order()


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
    ("schedule", "taken_out", "found"),
    [
        (move_an_item_while_its_index_waits, [mutants.checking_once], "billed too often"),
        (give_up_a_try_that_waits, [mutants.checking_once], "a try that Airflow has given up has sent"),
        (lose_the_record_of_a_send_that_arrives_late, [mutants.dropping_the_question], "billed too often"),
        (
            wait_with_a_removal_until_the_send_waits,
            [mutants.checking_once, mutants.trusting_every_writer],
            r"was sent with \['a.csv'",
        ),
        (
            die_at_a_removal_that_arrives_late,
            [mutants.comparing_no_files, mutants.trusting_every_writer],
            r"was sent with \['a.csv'",
        ),
        (wait_with_an_upload_until_the_send_waits, [mutants.checking_once], r"wanted are \['a.csv', 'b.csv'\]"),
        (move_the_connection_before_a_send_arrives, [mutants.delivering_elsewhere], "billed too often"),
        (die_at_an_upload_that_arrives_late, [mutants.trusting_every_writer], r"wanted are \['a.csv', 'b.csv'\]"),
        (attach_an_upload_that_arrives_late, [mutants.comparing_no_files], r"wanted are \['a.csv', 'c.csv'\]"),
        (restore_the_service_before_the_attach, [mutants.comparing_no_identity], "else's draft was changed"),
        (restore_the_service_before_the_send, [mutants.comparing_no_identity, mutants.comparing_no_files], "was sent"),
        (
            restore_the_service_while_the_send_waits,
            [mutants.comparing_no_identity, mutants.comparing_no_files],
            "else's draft was sent",
        ),
        (restore_the_service_before_the_discard, [mutants.comparing_no_identity], "else's draft is gone"),
        (restore_the_service_during_a_deferral, [mutants.comparing_no_identity], "else's draft is gone"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_machine_finds_it(begun: Any, monkeypatch: Any, schedule: Any, taken_out: Any, found: str) -> None:
    is_deferrable = schedule is restore_the_service_during_a_deferral
    schedule(begun(deferrable=is_deferrable))
    for take_out in taken_out:
        take_out(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        schedule(begun(deferrable=is_deferrable))
