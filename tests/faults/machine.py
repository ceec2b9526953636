"""A state machine of a DAG run: a delivery in one task, and one in steps, under whatever can happen to them.

Hypothesis composes schedules of task runs and clears, planned faults, deaths of the task's process at any request,
sources that change between runs and within them, pickups, cancels, drafts that grow too old, and sending again on
purpose. After every step the sandbox's ledger and stored bytes judge, never what the client believes:

* each of the two is billed at most once, and once more for each time that it was told to send again;
* what was sent is the sources' bytes, whole versions of each and never a mixture;
* a task that succeeded has sent; one that failed has not sent, or its error names the transfer and says so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar
from unittest import mock

import httpx
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from faults.matrix import DELIVERY, KINDS, RETRIES, Bench, Releasing, Run, says_sent
from outbound_transfer.client import client
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import Dead, MortalStore, TaskInstance, Time

DAY = 86_400
STEPS = 20
FILES = range(3)
#: Late answers are waited for in real time: few schedules have them.
PROMPT = {kind.name: kind.fault for kind in KINDS if not kind.late}
LATE = {kind.name: kind.fault for kind in KINDS if kind.late and not kind.name.startswith("delay")}

#: What another program may do to a file: of its own size and of another, empty, gone.
CONTENTS: dict[str, Callable[[bytes], bytes | None]] = {
    "rewritten": lambda old: bytes(byte ^ 1 for byte in old),
    "longer": lambda old: old + b"more",
    "empty": lambda old: b"",
    "deleted": lambda old: None,
}


class Interrupted(Time):
    """Time in which something may happen while a client waits.

    :ivar meanwhile: done at the next wait.
    """

    meanwhile: Callable[[], object] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if meanwhile := self.meanwhile:
            self.meanwhile = None
            meanwhile()


class InterruptedReleasing(Interrupted, Releasing):
    """The same, where answers are held."""


class Death:
    """A process that dies at one of its requests, before or after it takes effect.

    :ivar at: requests until then; negative: it lives.
    """

    def __init__(self) -> None:
        self.at, self.after = -1, False
        self.store: MortalStore | None = None
        self._exchange = client.exchange

    def exchange(self, *arguments: Any) -> Any:
        self.at -= 1
        if self.at != -1:
            return self._exchange(*arguments)
        if self.after:
            self._exchange(*arguments)
        assert self.store
        self.store.dead = True
        DagRun.counts["deaths"] += 1
        raise Dead


class DagRun(RuleBasedStateMachine):
    """One DAG run with two deliveries of the same files: ``deliver``, and ``create`` >> ``attach`` >> ``send``."""

    bench: ClassVar[Bench]
    #: What happened in all schedules of the class.
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(deferrable=st.booleans(), late=st.sampled_from([False] * 9 + [True]))
    def begin(self, deferrable: bool, late: bool) -> None:
        self.late = late
        self.bench.restore_files()
        self.run = Run(self.bench.sandbox(), self.bench.files, late=late)
        self.run.time = (InterruptedReleasing if late else Interrupted)(self.run.sandbox)
        self.sandbox: Sandbox = self.run.sandbox
        self.billed_before = len(self.billed())
        self.death = Death()
        files = [str(path) for path in self.bench.files]
        self.resend = False
        self.tasks = {
            "deliver": self.task(lambda: self.delivery(DeliverFilesOperator, files=files), deferrable),
            "create": self.task(lambda: self.delivery(CreateTransferOperator), deferrable),
            "attach": self.task(lambda: (AttachFilesOperator, {"transfer_id": self.draft, "files": files}), deferrable),
            "send": self.task(lambda: (SendTransferOperator, {"transfer_id": self.draft}), deferrable),
            "discard": self.task(lambda: (DiscardTransferOperator, {"transfer_id": self.draft}), deferrable),
        }
        #: What ``create`` gave, and what of it ``attach`` has attached.
        self.draft = ""
        self.drafts: set[str] = set()
        self.attached: list[set[str]] | None = None
        #: By delivery: how often it may be billed, and what it has been billed for since that was last raised.
        self.allowed = {"deliver": 1, "send": 1}
        self.sent: dict[str, list[str]] = {"deliver": [], "send": []}
        self.versions: list[set[str]] = []

    def delivery(self, operator: type, **arguments: Any) -> tuple[type, dict[str, Any]]:
        return operator, {**DELIVERY, **arguments, "resend": self.resend}

    def task(self, what: Callable[[], tuple[type, dict[str, Any]]], deferrable: bool) -> TaskInstance:
        store = MortalStore()

        def make() -> Any:
            store.dead, self.death.store = False, store
            operator, arguments = what()
            return operator(task_id="task", deferrable=deferrable, **arguments)

        return TaskInstance(make, self.run.time, RETRIES, store=store)

    # What happens around the tasks.

    @rule(kind=st.sampled_from(sorted(PROMPT)), skip=st.integers(0, 6), times=st.sampled_from([1, 1, 1, 2, 8]))
    def plan_fault(self, kind: str, skip: int, times: int) -> None:
        """Of the next task run. Eight in a row are more than a call's tries."""
        self.sandbox.plan_faults({**PROMPT[kind], "skip": skip}, *[PROMPT[kind]] * (times - 1))

    @precondition(lambda self: self.late)
    @rule(kind=st.sampled_from(sorted(LATE)), skip=st.integers(0, 6))
    def plan_late_answer(self, kind: str, skip: int) -> None:
        self.sandbox.plan_faults({**LATE[kind], "skip": skip})

    @rule(at=st.integers(0, 7), after=st.booleans())
    def plan_death(self, at: int, after: bool) -> None:
        """In the next task run."""
        self.death.at, self.death.after = at, after

    @rule(number=st.sampled_from(FILES), change=st.sampled_from(sorted(CONTENTS)))
    def change_source(self, number: int, change: str) -> None:
        path = self.bench.files[number]
        old = path.read_bytes() if path.exists() else b"new"
        content = CONTENTS[change](old)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)

    @rule(number=st.sampled_from(FILES), change=st.sampled_from(sorted(CONTENTS)))
    def change_source_at_the_next_wait(self, number: int, change: str) -> None:
        def meanwhile() -> None:
            self.change_source(number, change)
            self.see_versions()

        self.run.time.meanwhile = meanwhile

    @rule()
    def restore_sources(self) -> None:
        self.bench.restore_files()

    @precondition(lambda self: any(self.sent.values()))
    @rule(canceled=st.booleans(), which=st.integers(0, 1))
    def end_a_transfer(self, canceled: bool, which: int) -> None:
        """The recipients collect it, or the sender cancels it: whatever it has come to, it was sent."""
        transfer_id = (self.sent["deliver"] + self.sent["send"])[-1 - which :][0]
        try:
            if canceled:
                self.sandbox.cancel(transfer_id)
            else:
                self.sandbox.pickup(transfer_id, DELIVERY["recipients"][0])
        except httpx.HTTPStatusError:
            pass  # it has ended already

    @rule(days=st.sampled_from([1, 31]))
    def let_days_pass(self, days: int) -> None:
        """Drafts live 30 days; a sent transfer expires."""
        self.sandbox.advance_clock(days * DAY)

    # The tasks: run for the first time, or cleared and run again, with their retries.

    @rule(resend=st.sampled_from([False, False, False, True]))
    def deliver(self, resend: bool) -> None:
        if resend and self.tasks["deliver"].try_number:
            self.allowed["deliver"] += 1
            self.sent["deliver"] = []
        self.resend = resend
        result, error = self.go("deliver")
        self.resend = False
        self.judge("deliver", result, error)

    @rule()
    def create(self) -> None:
        result, _ = self.go("create")
        if result is not None and result != self.draft:
            self.draft, self.attached = result, None
            self.drafts.add(result)

    @precondition(lambda self: self.draft)
    @rule()
    def attach(self) -> None:
        was_sent = self.draft in self.sent["send"]
        result, error = self.go("attach")
        if not was_sent:
            self.attached = None if error else self.versions
        assert error or [file["name"] for file in result] == [path.name for path in self.bench.files]

    @precondition(lambda self: self.draft and self.attached)
    @rule()
    def send(self) -> None:
        self.judge("send", *self.go("send"))

    @rule()
    def deliver_in_steps(self) -> None:
        """As a DAG does it: each task where the one before has succeeded."""
        self.create()
        if self.draft:
            self.attach()
        if self.attached:
            self.send()

    @precondition(lambda self: self.draft)
    @rule()
    def discard(self) -> None:
        gone, error = self.go("discard")
        assert error or gone is (self.draft not in self.sent["send"])

    def go(self, name: str) -> tuple[Any, BaseException | None]:
        """Run a task to its end; the transfers that were billed meanwhile are judged."""
        ti = self.tasks[name]
        if ti.try_number:
            ti.clear()
        self.versions = [set() for _ in FILES]
        self.see_versions()
        before = self.billed()
        with mock.patch.object(client, "exchange", self.death.exchange):
            result, error = self.run.result_of(ti)
        self.run.settle()
        self.count(name, error)
        self.sandbox.clear_faults()
        self.run.time.meanwhile, self.death.at = None, -1
        self.sandbox.advance_clock(60)  # the judge asks, too
        for transfer_id in self.billed()[len(before) :]:
            self.judge_sent(name, transfer_id)
        return result, error

    def count(self, name: str, error: BaseException | None) -> None:
        met = sum(row["state"] == "met" for row in self.sandbox.faults())
        self.counts.update({f"{name} {'failed' if error else 'succeeded'}": 1, "faults met": met})

    def see_versions(self) -> None:
        for path, versions in zip(self.bench.files, self.versions, strict=True):
            versions |= {hashlib.sha256(path.read_bytes()).hexdigest()} if path.exists() else set()

    # The judge.

    def billed(self) -> list[str]:
        """Every transfer that was billed on this sandbox, in order."""
        return [row["transfer_id"] for row in self.rows("billed")]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.sandbox.ledger() if row["kind"] == kind]

    def judge_sent(self, name: str, transfer_id: str) -> None:
        assert name in self.sent, f"{name} sent {transfer_id}"
        assert (transfer_id in self.drafts) is (name == "send")
        assert self.billed().count(transfer_id) == 1
        self.sent[name].append(transfer_id)
        self.allowed[name] -= 1
        assert self.allowed[name] >= 0, f"{name} is billed too often: {self.sent[name]}"
        emailed = [row["recipient"] for row in self.rows("emailed") if row["transfer_id"] == transfer_id]
        assert sorted(emailed) == sorted(DELIVERY["recipients"])
        meant = self.versions if name == "deliver" else self.attached
        stored = self.run.judge.stored(transfer_id)
        assert meant is not None
        assert set(stored) == {path.name for path in self.bench.files}
        for path, versions in zip(self.bench.files, meant, strict=True):
            assert stored[path.name] in versions, f"{path.name} was sent with bytes that no version of it had"

    def judge(self, name: str, result: Any, error: BaseException | None) -> None:
        """What the task says against what was sent: :attr:`sent` has what it may not hide."""
        if error is None:
            assert result["id"] in self.billed()[self.billed_before :], f"{result['id']} was not sent"
            assert (result["id"] in self.drafts) is (name == "send"), f"{result['id']} is the other delivery's"
            return
        for transfer_id in self.sent[name][-1:]:
            assert says_sent(error, transfer_id), f"{name} sent {transfer_id}, and does not say so: {error!r}"


def schedules(bench: Bench, examples: int, number: int) -> Counter[str]:
    """Run so many schedules, drawn from the seed ``number``; what happened in them.

    :raises AssertionError: one broke a promise; Hypothesis prints the shortest that does.
    """
    DagRun.counts.clear()
    machine = seed(number)(type("DagRun", (DagRun,), {"bench": bench}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return DagRun.counts.copy()
