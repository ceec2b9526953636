"""Plays the cases of the kill matrix in a running Airflow, many at once, and judges them.

A case is a generator that yields while it waits, so that one thread plays them all: nothing here is in a hurry, since
what must be exact is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from resilience.crash.cases import Case, Clear, Group, Kill, KillTriggerer
from resilience.crash.stack import RECIPIENTS, CrashStack
from resilience.oracle import DeliveryOracle

T = TypeVar("T")

#: Seconds that one step of a case may take: a killed supervisor is noticed late, and the machine is busy.
STEP_TIMEOUT = 180.0
#: Seconds between two looks at everything.
PAUSE = 0.5


@dataclass(frozen=True)
class Outcome:
    """How a case ended: ``tries`` of the task, ``calls`` to the service, ``leaked`` drafts, what was wrong."""

    case: Case
    tries: int = 0
    calls: int = 0
    leaked: int = 0
    violations: tuple[str, ...] = ()


class Broken(Exception):
    """A case cannot go on."""


class CaseRunner:
    """One case in a Dag run: the delivery over connection ``sandbox_{slot}``."""

    def __init__(self, harness: CrashHarness, case: Case, slot: int, map_index: int) -> None:
        self.harness, self.case, self.slot, self.map_index = harness, case, slot, map_index
        self.sandbox = harness.stack.sandboxes[slot]
        self.run_id = ""
        self.orphans: list[int] = []
        self.broken: str | None = None
        self._seen_pids: set[int] = set()
        self._tries_before_clear = 0
        self._met = 0

    def prepare(self) -> None:
        self.sandbox.clear_faults()
        needs_slot = any(isinstance(step, Clear) and step.when == "waits for a slot" for step in self.case.steps)
        self.sandbox.patch_account(outstanding_transfer_limit=0 if needs_slot else 10**6)
        self.judge = DeliveryOracle(self.sandbox, self.harness.stack.files, RECIPIENTS)
        self.plans = [plan for step in self.case.steps for plan in step.plans()]
        if self.plans:
            self.sandbox.plan_faults(*self.plans)

    def steps(self) -> Iterator[None]:
        for step in self.case.steps:
            if isinstance(step, Kill):
                yield from self._kill(step)
            elif isinstance(step, Clear):
                yield from self._clear(step)
            elif isinstance(step, KillTriggerer):
                yield from self._until("deferral", lambda: self._state() == "deferred")
                self.harness.stack.restart_triggerer()

    def guarded(self, steps: Iterable[None]) -> Iterator[None]:
        """``steps`` unless the case is broken, or until it is."""
        if not self.broken:
            try:
                yield from steps
            except Broken as error:
                self.broken = str(error)

    def end(self) -> Iterator[None]:
        """To the task's success, and until nothing of it is under way any more."""
        yield from self._success()
        self.sandbox.release_held_calls()
        yield from self._until("the last request", lambda: all(row["state"] != "held" for row in self.sandbox.faults()))
        yield from self._until("the orphan's end", lambda: not any(map(is_running, self.orphans)))

    def end_of_run(self) -> Iterator[None]:
        yield from self._until("the run's success", self._run_has_succeeded)

    def _run_has_succeeded(self) -> bool:
        return self._run_state() == "success"

    def _run_state(self) -> str:
        return str(self.harness.stack.airflow.call("GET", f"dags/{self.case.dag}/dagRuns/{self.run_id}")["state"])

    def outcome(self) -> Outcome:
        judge, leaked = self.judge, self.judge.leaked()
        calls = len(judge.calls())  # before the judge makes calls of its own
        unmet = [row for row in self.sandbox.faults() if row["state"] != "triggered"]
        violations = [self.broken] if self.broken else []
        violations += [f"never met: {row['method']} {row['path']} {row['effect']}" for row in unmet]
        violations += judge.violations()
        if leaked > self.case.may_leak:
            violations.append(f"leaked {leaked} drafts")
        if not self.broken:
            violations += self._violations_of_success()
        row = self._row()
        tries = row["try_number"] if row else 0
        return Outcome(self.case, tries, calls, leaked, tuple(violations))

    def _violations_of_success(self) -> Iterator[str]:
        airflow, billed = self.harness.stack.airflow, self.judge.billed()
        returned = airflow.xcom(self.case.dag, self.run_id, "deliver", self.map_index)
        if billed != [returned["id"]]:
            yield f"succeeded with {returned['id']}, billed are {billed}"

    def _kill(self, kill: Kill) -> Iterator[None]:
        for _ in range(kill.held_at_once):
            yield from self._held(kill.request)
        pid = yield from self._until("the task's process", self._pid)
        supervisor = psutil.Process(pid).ppid()
        self.harness.stack.kill({"task": [pid], "supervisor": [supervisor], "both": [supervisor, pid]}[kill.victim])
        if kill.victim == "supervisor":
            self.orphans.append(pid)
        if kill.request_fate == "together":
            yield from self._held(f"{kill.request} of the next try")
        if kill.request_fate != "last":
            self.sandbox.release_held_calls()

    def _held(self, what: str) -> Iterator[None]:
        yield from self._until(f"{what} to be held", lambda: self.sandbox.faults()[self._met]["state"] == "held")
        self._met += 1

    def _pid(self) -> int | None:
        row = self._row()
        pid: int | None = row["pid"] if row and row["state"] == "running" else None
        if pid is None or pid in self._seen_pids or not is_running(pid):
            return None
        self._seen_pids.add(pid)
        return pid

    def _clear(self, clear: Clear) -> Iterator[None]:
        if clear.when == "finished":
            yield from self._success()
            # A clear of a task between its end and its run's is lost in Airflow 3.3: the run ends regardless of it.
            yield from self.end_of_run()
        elif clear.when == "sends":
            yield from self._held("send")
        else:
            yield from self._until("deferral", lambda: self._state() == "deferred")
        self.sandbox.patch_account(outstanding_transfer_limit=10**6)
        row = self._row()
        self._tries_before_clear = row["try_number"] if row else 0
        self.harness.clear(self.case.dag, self.run_id, self.map_index if clear.what == "task" else None)

    def _success(self) -> Iterator[None]:
        if self.case.is_waiting:
            (transfer_id, *_) = yield from self._until("the send", self.judge.billed)
            for email in RECIPIENTS:
                self.sandbox.pickup(transfer_id, email)
        yield from self._until("success", self._has_succeeded)

    def _has_succeeded(self) -> bool:
        row = self._row()
        return bool(row and row["state"] == "success" and row["try_number"] > self._tries_before_clear)

    def _row(self) -> dict[str, Any] | None:
        return self.harness.tasks.get((self.run_id, self.map_index))

    def _state(self) -> str | None:
        row = self._row()
        return row["state"] if row else None

    def _until(self, what: str, look: Callable[[], T]) -> Iterator[None]:
        """Yields until ``look`` finds something, and returns that."""
        deadline = time.monotonic() + STEP_TIMEOUT
        while not (found := look()):
            if self._state() in ("failed", "upstream_failed", "skipped"):
                raise Broken(f"the task is {self._state()}, waiting for {what}")
            if time.monotonic() > deadline:
                raise Broken(f"gave up waiting for {what}; the task is {self._state()}")
            yield
        return found


class CrashHarness:
    """Plays groups of cases, as many at once as there are sandboxes."""

    def __init__(self, stack: CrashStack) -> None:
        self.stack = stack
        self.tasks: dict[tuple[str, int], dict[str, Any]] = {}
        self._free = set(range(stack.count))

    def play(self, groups: Iterable[Group]) -> Iterator[Outcome]:
        """The outcomes, as they come."""
        waiting, playing = list(groups), []
        while waiting or playing:
            while waiting and len(waiting[0]) <= len(self._free):
                group = waiting.pop(0)
                playing.append(self._group(group, [self._free.pop() for _ in group]))
            if not playing:
                raise RuntimeError(f"{len(waiting)} groups are left, and too many sandboxes are spoiled to play them")
            self.stack.processes.check()
            self.tasks = self.stack.deliveries()
            for steps in list(playing):
                outcomes = next(steps, None)
                if outcomes is None:
                    playing.remove(steps)
                yield from outcomes or ()
            time.sleep(PAUSE)

    def _group(self, group: Group, slots: list[int]) -> Iterator[tuple[Outcome, ...]]:
        dag = group[0].dag
        index = 0 if dag.startswith("mapped") else -1
        plays = [
            CaseRunner(self, case, slot, index + number)
            for number, (case, slot) in enumerate(zip(group, slots, strict=True))
        ]
        for play in plays:
            play.prepare()
        run_id = self.stack.airflow.trigger(dag, {"connections": [f"sandbox_{play.slot}" for play in plays]})
        for play in plays:
            play.run_id = run_id
        for steps in (_side_by_side(play.guarded(play.steps()) for play in plays), self._ends(plays)):
            for _ in steps:
                yield ()
        outcomes = tuple(play.outcome() for play in plays)
        for play in plays:
            play.sandbox.clear_faults()
        # What is stuck may still call its sandbox one day.
        self._free |= {play.slot for play in plays if not play.broken}
        yield outcomes

    @staticmethod
    def _ends(plays: list[CaseRunner]) -> Iterator[None]:
        yield from _side_by_side(play.guarded(play.end()) for play in plays)
        yield from plays[0].guarded(plays[0].end_of_run())

    def clear(self, dag: str, run_id: str, map_index: int | None) -> None:
        """Clear one task instance, or the whole run where ``map_index`` is None."""
        if map_index is None:
            self.stack.airflow.call("POST", f"dags/{dag}/dagRuns/{run_id}/clear", {"dry_run": False})
            return
        task = "deliver" if map_index < 0 else ["deliver", map_index]
        body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": [task]}
        self.stack.airflow.call("POST", f"dags/{dag}/clearTaskInstances", body)


def _side_by_side(plays: Iterable[Iterator[None]]) -> Iterator[None]:
    alive = list(plays)
    while alive:
        alive = [steps for steps in alive if next(steps, alive) is not alive]
        yield


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
