"""A state machine of the tasks of several runs that deliver under two delivery keys, in one table.

Hypothesis composes schedules of runs and clears, faults, deaths of a task's process at any request, input and sources
that change, tasks that claim a key while another works, which Airflow knows to run or takes for dead, and tasks whose
key changes between two tries, of which the first outlives itself. After every step the sandbox's ledger judges:

* under each key, at most one transfer is billed, and once more for each of them that ``resend`` has named while a task
  delivered under the key, with whole versions of the files;
* a task that is not cleared sends once, whatever keys it has;
* a task that succeeded returns the newest transfer of its key, which has its input;
* where nothing is wrong any more, a clear delivers, or names what was delivered, in place of which it then delivers.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from outbound_transfer.client import client
from outbound_transfer.operators.transfer import DeliverFilesOperator
from resilience.fault_matrix.matrix import DELIVERY, RETRIES, FaultedRun, Harness
from resilience.stateful.outliving import WAIT, OutlivingProcess
from resilience.stateful.state_machine import (
    CONTENTS,
    FILES,
    FOREIGN,
    IMMEDIATE,
    NEWEST,
    OF_NOBODY,
    OLDER,
    TOLD,
    ClockWithCallback,
    CrashInjector,
    ids,
    is_for_a_new_run,
    told_by,
)
from support.inputs import stored_digests
from support.keyed_tasks import STATE_CONN_ID, KeyedTaskInstance, sqlite_connection
from support.tasks import CrashableStateStore

KEYS, RUNS, VERSIONS = ("k1", "k2"), ("one", "two", "three"), ("first", "second")

_numbers = itertools.count()

keys, runs, versions = st.sampled_from(KEYS), st.sampled_from(RUNS), st.sampled_from([*VERSIONS, VERSIONS[0]])


class DeliveryKeyStateMachine(RuleBasedStateMachine):
    """Three runs of a DAG, each of which may deliver either version of the input under either key."""

    harness: ClassVar[Harness]
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(deferrable=st.booleans())
    def begin(self, deferrable: bool) -> None:
        self.number, self.deferrable = next(_numbers), deferrable
        self.harness.restore_files()
        self.run = FaultedRun(self.harness.sandbox(), self.harness.files, late=False)
        self.sandbox, self.death = self.run.sandbox, CrashInjector()
        self.run.time = ClockWithCallback(self.sandbox)
        self.run.time.at_wait, self.death.before_request = self.at_wait, self.step
        #: Requests and waits until a process goes on that has outlived its try.
        self.steps = 0
        self.known = set(self.billed())
        #: States of the tasks that Airflow knows.
        self.airflow: dict[tuple[str, int], str] = {}
        #: The key and the version of the input that each task has now.
        self.requests: dict[str, tuple[str, str]] = {}
        #: What ``resend`` of each task names now, what its last refusal has named, and what was named under each key.
        self.resend: dict[str, list[str]] = {run_id: [] for run_id in RUNS}
        self.told = dict.fromkeys(RUNS, "")
        self.named: defaultdict[str, set[str]] = defaultdict(set)
        self.tasks = {run_id: self.task(run_id) for run_id in RUNS}
        #: By file, the digests that it has ever had.
        self.digests: dict[str, set[str]] = {path.name: set() for path in self.harness.files}
        self.see_digests()
        #: Whether a source has changed since the schedule began.
        self.has_changed = False
        states = self.harness.files[0].parent / f"keys_{self.number}.db"
        self.environment = {"AIRFLOW_CONN_STATES": sqlite_connection(states), STATE_CONN_ID: "states"}

    def task(self, run_id: str) -> KeyedTaskInstance:
        store = CrashableStateStore()

        def make() -> DeliverFilesOperator:
            store.dead, self.death.store = False, store
            key, version = self.requests[run_id]
            self.named[key].update(self.resend[run_id])
            return DeliverFilesOperator(
                task_id="task",
                deferrable=self.deferrable,
                delivery_key=f"{key} {self.number}",
                resend=self.resend[run_id],
                files=[str(path) for path in self.harness.files],
                **{**DELIVERY, "subject": self.subject(key, version)},
            )

        return KeyedTaskInstance(make, self.run.time, RETRIES, store=store, run_id=run_id, airflow=self.airflow)

    def subject(self, key: str, version: str) -> str:
        return f"{key} {version} of {self.number}"

    def billed(self) -> list[str]:
        return [row["transfer_id"] for row in self.sandbox.ledger() if row["kind"] == "billed"]

    def see_digests(self) -> None:
        for path in self.harness.files:
            if path.exists():
                self.digests[path.name].add(hashlib.sha256(path.read_bytes()).hexdigest())

    @rule(kind=st.sampled_from(sorted(IMMEDIATE)), skip=st.integers(0, 6), times=st.sampled_from([1, 1, 2, 8]))
    def plan_fault(self, kind: str, skip: int, times: int) -> None:
        """Of the next task run. Eight in a row are more than a call's tries."""
        self.sandbox.plan_faults({**IMMEDIATE[kind], "skip": skip}, *[IMMEDIATE[kind]] * (times - 1))

    @rule(at=st.integers(0, 7), after=st.booleans())
    def plan_death(self, at: int, after: bool) -> None:
        """In the next task run."""
        self.death.at, self.death.after = at, after

    @rule(number=st.sampled_from(FILES), change=st.sampled_from(["rewritten", "longer"]))
    def change_source(self, number: int, change: str) -> None:
        path = self.harness.files[number]
        path.write_bytes(CONTENTS[change](path.read_bytes()) or b"")
        self.has_changed = True
        self.see_digests()

    @rule(run_id=runs, key=keys, version=versions, resend=ids)
    def deliver(self, run_id: str, key: str, version: str, resend: str | None = None) -> None:
        """A task, for the first time or cleared, perhaps with another key and other input than before."""
        self.set_resend(run_id, key, resend)
        self.go(run_id, key, version)
        self.forget_plans()

    def set_resend(self, run_id: str, key: str, what: str | None) -> None:
        """It stays as it is until it is set anew."""
        sent, others = ([each["id"] for each in self.sent(one)] for one in sorted(KEYS, key=lambda one: one != key))
        named = {TOLD: [self.told[run_id]], NEWEST: sent, OLDER: sent[:-1], FOREIGN: others, **OF_NOBODY}
        if what is not None and named[what]:
            self.resend[run_id] = [*(self.resend[run_id] if what == TOLD else []), named[what][-1]]

    @rule(pair=st.permutations(RUNS), key=keys, version=versions, other=versions, is_taken_for_dead=st.booleans())
    def deliver_at_once(self, pair: list[str], key: str, version: str, other: str, is_taken_for_dead: bool) -> None:
        """A task, and before its create or its first upload, another one under the same key."""
        one, two, _ = pair

        def meanwhile() -> None:
            if is_taken_for_dead:
                self.airflow[one, -1] = "failed"
            self.go(two, key, other)
            self.counts["at once"] += 1

        self.death.meanwhile = meanwhile
        self.go(one, key, version)
        self.forget_plans()

    @rule(run_id=runs, pair=st.permutations(KEYS), version=versions, steps=st.integers(0, 15))
    def change_the_key_of_a_task_that_waits(self, run_id: str, pair: list[str], version: str, steps: int) -> None:
        """Its process waits for a slot, and goes on after some steps of the next tries."""
        ti, before = self.tasks[run_id], len(self.billed())
        if ti.try_number:
            ti.clear()
        self.requests[run_id], self.airflow[run_id, -1] = (pair[0], version), "running"
        self.sandbox.clear_faults()
        self.sandbox.patch_account(outstanding_transfer_limit=0)
        ti.begin_try()
        self.death.process, self.steps = OutlivingProcess(run_id, ti, {}, WAIT, skip=0, dies=False), steps
        with self.in_reach(), self.run.environment():
            self.death.process.start()
            self.requests[run_id] = (pair[1], version)
            _, error = self.run.result_of(ti)
            self.make_room()
            self.wake()
        self.airflow[run_id, -1] = "failed" if error else "success"
        self.counts["key changed"] += 1
        self.forget_plans()
        self.judge()
        assert len(self.billed()) <= before + 1, "a task that was not cleared is billed too often"

    def at_wait(self) -> bool:
        if self.death.process and self.death.process.is_here:
            self.death.process.at_wait()
            return False
        self.make_room()
        self.step(WAIT)
        return True

    def make_room(self) -> None:
        self.sandbox.patch_account(outstanding_transfer_limit=10**6)

    def step(self, operation: str) -> None:
        self.steps -= 1
        if self.steps < 0:
            self.wake()

    def wake(self) -> None:
        if self.death.process and self.death.process.is_stopped:
            self.make_room()
            self.death.process.finish()
        self.death.process = None

    @rule(run_id=runs, key=keys, version=versions)
    def deliver_where_nothing_is_wrong(self, run_id: str, key: str, version: str) -> None:
        self.forget_plans()
        if self.has_changed:
            return  # what was sent may differ
        self.resend[run_id] = []
        result, error = self.go(run_id, key, version)
        if is_for_a_new_run(error):
            return
        before = len(self.sent(key))
        for _ in range(4):  # a refusal may name what another key has delivered
            if len(self.sent(key)) == before:
                assert result or self.told[run_id] in str(error), f"refused although nothing is wrong: {error!r}"
                self.resend[run_id] = [*self.resend[run_id], result["id"] if result else self.told[run_id]]
            result, error = self.go(run_id, key, version)
            if is_for_a_new_run(error):
                return
        assert result, f"refused although nothing is wrong: {error!r}"
        assert len(self.sent(key)) == before + 1, "resend is refused although nothing is wrong"

    def forget_plans(self) -> None:
        self.sandbox.clear_faults()
        self.death.at, self.death.meanwhile = -1, None
        self.sandbox.advance_clock(60)  # the judge asks, too

    def go(self, run_id: str, key: str, version: str) -> tuple[Any, BaseException | None]:
        """Run a task to its end; what was billed is judged."""
        ti = self.tasks[run_id]
        if ti.try_number:
            ti.clear()
        self.requests[run_id], self.airflow[run_id, -1] = (key, version), "running"
        with self.in_reach():
            result, error = self.run.result_of(ti)
        self.airflow[run_id, -1] = "failed" if error else "success"
        self.told[run_id] = told_by(error) or self.told[run_id]
        self.counts["failed" if error else "succeeded"] += 1
        self.judge()
        if error is None:
            assert self.sent(key)[-1]["id"] == result["id"]
            assert result["id"] not in self.resend[run_id]
            assert result["subject"] == self.subject(key, version), f"{result['subject']} is not what was asked for"
        return result, error

    @contextmanager
    def in_reach(self) -> Iterator[None]:
        """The database, and whatever is to happen to requests."""
        with mock.patch.dict(os.environ, self.environment), mock.patch.object(client, "send", self.death.send):
            yield

    def sent(self, key: str) -> list[dict[str, Any]]:
        """What was billed under a key, once for each time."""
        new = [self.sandbox.transfer(each) for each in self.billed() if each not in self.known]
        return [each for each in new if each["subject"] in {self.subject(key, version) for version in VERSIONS}]

    def judge(self) -> None:
        for key in KEYS:
            sent = self.sent(key)
            named = self.named[key].intersection(each["id"] for each in sent)
            assert len(sent) <= 1 + len(named), f"{key} is billed too often, and resend has named {named} of {sent}"
            for transfer in sent:
                stored = stored_digests(self.sandbox, transfer["id"], transfer["files"])
                assert stored.keys() == self.digests.keys()
                for name, versions_of_it in self.digests.items():
                    assert stored[name] in versions_of_it, f"{name} was sent with bytes that no version of it had"


def key_schedules(harness: Harness, examples: int, number: int) -> Counter[str]:
    """Run so many schedules, drawn from the seed ``number``; what happened in them.

    :raises AssertionError: one broke a promise; Hypothesis prints the shortest that does.
    """
    DeliveryKeyStateMachine.counts.clear()
    run_state_machine_as_test(
        seed(number)(type("DeliveryKeyStateMachine", (DeliveryKeyStateMachine,), {"harness": harness})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return DeliveryKeyStateMachine.counts.copy()
