"""The fault matrix of uploads that run at once: what becomes of one of them, while another is on its way.

A schedule delivers six files, of which the largest goes first and the others four at a time. One of these meets a
fault, once or until its attempts are used up, or its process dies there. Another one, before it in the queue, is held
meanwhile, before or after it takes effect, or is not; it goes on when the client has given it up, or, if the process is
dead by then, in the middle of the next one.
Then the task is retried, perhaps with other bytes in its files or without one of them, and cleared if it failed. The
sandbox judges as in :mod:`.matrix`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from outbound_transfer.operators.transfer import DeliverFilesOperator
from resilience.fault_matrix.matrix import DELIVERY, KINDS, RETRIES, FaultedRun, FaultKind, Harness, Outcome
from support.calls import ATTACH, die, intercepted, process
from support.tasks import FakeTaskInstance

SIZES = {"a.csv": 1_000, "b.csv": 1, "c.csv": 100_000, "d.csv": 70_000, "e.csv": 0, "f.csv": 300_000}
#: Faults in a row that use up the attempts of a call.
ALL_ATTEMPTS = 9
#: Uploads after the largest: the first that run at once, and the last.
POSITIONS = (1, 2, 5)

HELD = ("", "before", "after")

_numbers = itertools.count()

UPLOAD = {"method": "POST", "path": "*/files"}


@dataclass(frozen=True)
class UploadSchedule:
    """What happens to one of the uploads that run at once.

    :ivar fault: its kind; None: the process dies.
    :ivar at: uploads that are let pass before.
    :ivar times: faults in a row, of whichever uploads come next.
    :ivar after: the process dies after the upload took effect.
    :ivar held: ``before`` or ``after``: what the upload that comes before the fault waits for; "" if none does.
    :ivar change: of the files before the first retry: ``rewritten``, all of them, or ``fewer``; "" if there is none.
    """

    fault: FaultKind | None
    at: int
    times: int = 1
    after: bool = False
    held: str = ""
    is_deferrable: bool = False
    change: str = ""

    def __str__(self) -> str:
        what = f"{self.fault.name} {self.times} times" if self.fault else f"death {'after' if self.after else 'before'}"
        held = f", one held {self.held}" if self.held else ""
        change = f", then {self.change}" if self.change else ""
        return f"uploads: {what} at upload {self.at}{held}, {'deferring' if self.is_deferrable else 'holding'}{change}"

    def plans(self) -> list[dict[str, Any]]:
        """The faults: each means the uploads that follow the one before it."""
        held = [{"kind": "hold", "effect": self.held, **UPLOAD, "skip": self.at - 1}] if self.held else []
        if self.fault is None:
            return held
        fault = {**self.fault.fault, **UPLOAD}
        return [*held, {**fault, "skip": 0 if self.held else self.at}, *[fault] * (self.times - 1)]


def upload_schedules() -> list[UploadSchedule]:
    """Every one."""
    return [*_faults(), *_deaths()]


def _faults() -> Iterator[UploadSchedule]:
    kinds = [kind for kind in KINDS if kind.needs != "sent transfer"]
    for kind, at, held in itertools.product(kinds, POSITIONS, HELD):
        for times, is_deferrable in itertools.product((1, ALL_ATTEMPTS), (False, True)):
            yield UploadSchedule(kind, at, times, held=held, is_deferrable=is_deferrable)
        for change in ("rewritten", "fewer"):
            yield UploadSchedule(kind, at, ALL_ATTEMPTS, held=held, change=change)


def _deaths() -> Iterator[UploadSchedule]:
    for at, after, held, change in itertools.product(range(6), (False, True), HELD, ("", "rewritten", "fewer")):
        if at or not held:
            yield UploadSchedule(None, at, after=after, held=held, change=change)


@dataclass
class DyingProcess:
    """The processes of a task, of which the first dies at one of its uploads, whatever its other threads do.

    :ivar at: the upload; negative: it lives.
    :ivar release: lets go of what is held: done when the next process, which has seen the draft, uploads.
    """

    release: Callable[[], object]
    at: int = -1
    after: bool = False

    def __post_init__(self) -> None:
        self._lock, self._uploads = threading.Lock(), 0

    def restart(self) -> None:
        self._is_first = True

    def handle(self, request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        is_upload = ATTACH.matches(request)
        with self._lock:
            number, self._uploads = self._uploads, self._uploads + is_upload
            is_next, self._is_first = is_upload and number > 0 and self._is_first, self._is_first and not is_upload
        is_last = is_upload and number == self.at
        if is_next:
            self.release()
        if process.is_dead or (is_last and not self.after):
            die()
        response = make()
        if is_last or process.is_dead:
            response.close()  # it comes to nobody
            die()
        return response


def run_upload_schedule(harness: Harness, schedule: UploadSchedule) -> Outcome:
    """Deliver, with retries; then clear what failed."""
    folder = harness.files[0].parent / "uploads"
    folder.mkdir(exist_ok=True)
    files = [folder / name for name in SIZES]
    for path in files:
        path.write_bytes(path.name.encode()[:1] * SIZES[path.name])
    is_late = bool(schedule.held) or (schedule.fault is not None and schedule.fault.late)
    run = FaultedRun(harness.sandbox(), files, late=is_late)
    dying = DyingProcess(run.settle, schedule.at if schedule.fault is None else -1, schedule.after)

    # Schedules share an account, and with other files what one has sent might be another's.
    subject = f"Report {next(_numbers)}"

    def make() -> DeliverFilesOperator:
        dying.restart()
        wanted = [str(path) for path in run.judge.files]
        arguments = {**DELIVERY, "subject": subject, "files": wanted, "deferrable": schedule.is_deferrable}
        return DeliverFilesOperator(task_id="deliver", **arguments)

    def change() -> None:
        if ti.try_number == 1 and schedule.change == "fewer":
            run.judge.files = [path for path in files if path.name != "d.csv"]
        for path in files if ti.try_number == 1 and schedule.change == "rewritten" else ():
            path.write_bytes(path.read_bytes().upper())

    ti = FakeTaskInstance(make, run.time, RETRIES, before_retry=change)
    run.plan(*schedule.plans())
    with intercepted(dying.handle):
        run.deliver(ti)
        run.settle()
        # Which upload meets which fault, and whether all of them come, is a matter of chance.
        run.sandbox.clear_faults()
        must_succeed = schedule.fault is None or (schedule.fault.passes and schedule.times == 1)
        outcome = run.judged(must_succeed=must_succeed)
    return Outcome((), outcome.result, outcome.leaked, outcome.violations, str(schedule))
