"""The fault matrix of a task's memory: what a delivery does where what it remembers cannot be read or written.

A schedule is the one access to the memory that fails, and one service fault or none that ends the first try; then the
task is retried, and cleared. The sandbox's ledger judges: nothing is sent twice, and whoever is not served reads why.

The same for a delivery in three tasks, of which one attaches: it is retried, then cleared with other files each time,
and what is sent holds the files of the last clear.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from resilience.fault_matrix.matrix import BY_NAME, DELIVERY, RETRIES, SEND, FaultedRun, Harness, Outcome
from support import memory
from support.oracle import says_sent
from support.tasks import FakeTaskInstance

_numbers = itertools.count()

#: Accesses to the memory that a delivery with a retry and two clears makes at most.
MOMENTS = range(70)

#: What ends the first try, or does not.
FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "no fault": (),
    **{
        f"{name} at {where}": ({**BY_NAME[name].fault, "skip": skip}, *[{**BY_NAME["503"].fault}] * 9)
        for name in ("500 after", "reset before", "503")
        for where, skip in (("create", 0), ("attach", 2), ("send", SEND))
    },
}

#: Accesses to the memory that a task makes at most that attaches files, and is cleared twice.
ATTACH_MOMENTS = range(80)

#: What ends the first try of that task, or does not: its first call reads the draft.
ATTACH_FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "no fault": (),
    "500 after at attach": ({**BY_NAME["500 after"].fault, "skip": 1}, *[{**BY_NAME["503"].fault}] * 9),
}

#: Positions of the files that the task wants at first, and after each clear.
ATTACH_WANTED = ([0], [1], [2])


@dataclass(frozen=True)
class MemorySchedule:
    """The access to the memory that fails, beside one fault of the service."""

    at: int
    fault: str
    is_attach: bool = False

    def __str__(self) -> str:
        step = "attach, " if self.is_attach else ""
        return f"{step}memory fails at {self.at}, {self.fault}"


def memory_schedules() -> list[MemorySchedule]:
    """Every one."""
    whole = [MemorySchedule(at, fault) for at in MOMENTS for fault in FAULTS]
    return [*whole, *(MemorySchedule(at, fault, is_attach=True) for at in ATTACH_MOMENTS for fault in ATTACH_FAULTS)]


def run_memory_schedule(harness: Harness, schedule: MemorySchedule) -> Outcome:
    """Deliver, with a retry; then clear, twice."""
    if schedule.is_attach:
        return _run_attach(harness, schedule)
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    run.plan(*FAULTS[schedule.fault])
    # Schedules share an account, and what one has sent might be another's.
    ti = run.task(subject=f"Report {next(_numbers)}")
    memory.at_access(ti, schedule.at, memory.refuse)
    violations = []
    for clear in range(3):
        if clear:
            ti.clear()
        run.result, run.error = run.result_of(ti)
        run.sandbox.clear_faults()  # the judge asks, too
        violations += [*run.judge.violations(), *_untold(run)]
    billed = run.judge.billed()
    if run.error is not None:
        violations.append(f"failed in the end: {run.error!r}")
    return Outcome((), "sent" if billed else "failed, not sent", run.judge.leaked(), tuple(violations), str(schedule))


def _untold(run: FaultedRun) -> Iterator[str]:
    billed = run.judge.billed()
    if run.error is None and billed != [run.result["id"]]:
        yield f"succeeded with {run.result['id']}, billed are {billed}"
    # Who cannot remember what was sent reads of the memory.
    if run.error is not None and not _is_of_the_memory(run.error):
        for transfer_id in billed:
            if not says_sent(run.error, transfer_id):
                yield f"sent {transfer_id}, and the task's error does not say so: {run.error!r}"


def _is_of_the_memory(error: BaseException | None) -> bool:
    return error is not None and (
        isinstance(error, memory.MemoryFailed) or _is_of_the_memory(error.__cause__ or error.__context__)
    )


def _run_attach(harness: Harness, schedule: MemorySchedule) -> Outcome:
    """Create a draft; attach, with a retry; clear, twice, with other files; send."""
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    wanted: list[str] = []
    create = _step(run, "create", lambda: CreateTransferOperator(task_id="create", **DELIVERY))
    draft, error = run.result_of(create)
    assert error is None
    ti = _step(run, "attach", lambda: AttachFilesOperator(task_id="attach", transfer_id=draft, files=list(wanted)))
    memory.at_access(ti, schedule.at, memory.refuse)
    run.plan(*ATTACH_FAULTS[schedule.fault])
    for clear, numbers in enumerate(ATTACH_WANTED):
        if clear:
            ti.clear()
        wanted[:] = [str(run.files[number]) for number in numbers]
        run.result, run.error = run.result_of(ti)
        run.sandbox.clear_faults()
    violations = []
    if run.error is None:
        send = _step(run, "send", lambda: SendTransferOperator(task_id="send", transfer_id=draft))
        send.upstream = {"create": create, "attach": ti}
        _, run.error = run.result_of(send)
        held = sorted(file["name"] for file in run.sandbox.transfer(draft)["files"])
        if run.error or held != sorted(Path(file).name for file in wanted):
            violations.append(f"sent {held} ({run.error!r}), wanted {wanted}")
    return Outcome((), "failed, not sent" if run.error else "sent", 0, tuple(violations), str(schedule))


def _step(run: FaultedRun, task_id: str, make: Callable[[], Any]) -> FakeTaskInstance:
    return FakeTaskInstance(make, run.time, RETRIES, task_id=task_id)
