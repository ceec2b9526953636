"""A state machine of a DAG run: a delivery in one task, and one in steps, under whatever can happen to them.

Hypothesis composes schedules of task runs and clears, planned faults, deaths of the task's process at any request,
sources that change between runs and within them, files that are wanted and not wanted any more, a connection that leads
to another account, items of a mapped task that move to other indexes, pickups, cancels, drafts that grow too old, and
sending again on purpose. After every step the sandboxes' ledgers and stored bytes judge, never what a client believes:

* each delivery is billed at most once, whatever its index and account, and once more for each time that it was told to
  send again;
* what was sent is just the wanted sources' bytes, whole versions of each and never a mixture;
* a task that succeeded has sent; one that failed has not sent, or its error names the transfer and says so.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
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
from support.connections import connection_json
from support.judge import Judge
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
    elsewhere: Sandbox

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.elsewhere.advance_clock(seconds)
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


_numbers = itertools.count()


class DagRun(RuleBasedStateMachine):
    """One DAG run with two deliveries of the same files: ``deliver``, and ``create`` >> ``attach`` >> ``send``."""

    bench: ClassVar[Bench]
    #: What happened in all schedules of the class.
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(deferrable=st.booleans(), late=st.sampled_from([False] * 9 + [True]))
    def begin(self, deferrable: bool, late: bool) -> None:
        self.late = late
        self.number = next(_numbers)
        self.bench.restore_files()
        self.run = Run(self.bench.sandbox(), self.bench.files, late=late)
        self.run.time = (InterruptedReleasing if late else Interrupted)(self.run.sandbox)
        self.sandbox: Sandbox = self.run.sandbox
        self.elsewhere = self.run.time.elsewhere = self.bench.elsewhere()
        self.elsewhere.advance_clock(3600)
        self.connections = {False: self.run.connection, True: connection_json(self.elsewhere, verify=False)}
        self.is_moved = False
        self.known = self.billed()
        self.death = Death()
        self.deferrable = deferrable
        self.resend = False
        #: Positions of the files that are wanted.
        self.wanted = list(FILES)
        self.tasks = {
            "deliver": self.task(lambda: self.delivery(DeliverFilesOperator, files=self.files())),
            "create": self.task(lambda: self.delivery(CreateTransferOperator)),
            "attach": self.task(lambda: (AttachFilesOperator, {"transfer_id": self.draft, "files": self.files()})),
            "send": self.task(lambda: (SendTransferOperator, {"transfer_id": self.draft})),
            "discard": self.task(lambda: (DiscardTransferOperator, {"transfer_id": self.draft})),
        }
        #: Subjects of the mapped task's items, and its instances, by index.
        self.items = [self.item(0)]
        self.indexes: list[TaskInstance] = []
        #: What ``create`` gave, and what of it ``attach`` has attached.
        self.draft = ""
        self.drafts: set[str] = set()
        self.attached: dict[str, set[str]] | None = None
        #: By delivery: how often it may be billed, and what it has been billed for since that was last raised.
        self.allowed = {"deliver": 1, "send": 1, self.item(0): 1}
        self.sent: dict[str, list[str]] = {name: [] for name in self.allowed}
        #: All that each was billed for.
        self.ever: defaultdict[str, set[str]] = defaultdict(set)
        #: By file, the digests that it has had while the task ran.
        self.versions: dict[str, set[str]] = {}

    def files(self) -> list[str]:
        return [str(self.bench.files[number]) for number in self.wanted]

    def delivery(self, operator: type, **arguments: Any) -> tuple[type, dict[str, Any]]:
        return operator, {**DELIVERY, "subject": f"Report {self.number}", **arguments, "resend": self.resend}

    def item(self, number: int) -> str:
        """The subject of an item: schedules share an account, and what one has sent is not another's."""
        return f"Item {number} of {self.number}"

    def task(self, what: Callable[[], tuple[type, dict[str, Any]]], *, map_index: int = -1) -> TaskInstance:
        store = MortalStore()

        def make() -> Any:
            store.dead, self.death.store = False, store
            operator, arguments = what()
            return operator(task_id="task", deferrable=self.deferrable, **arguments)

        return TaskInstance(make, self.run.time, RETRIES, store=store, map_index=map_index)

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

    @rule(wanted=st.sampled_from([[0], [1, 2], [0, 1, 2], [2, 0]]))
    def want_other_files(self, wanted: list[int]) -> None:
        self.wanted = wanted

    @rule()
    def move_connection(self) -> None:
        """Of the delivery in one task: to another account, or back."""
        self.is_moved = not self.is_moved

    @precondition(lambda self: len(self.items) < 4)
    @rule(at=st.integers(0, 3))
    def grow_list(self, at: int) -> None:
        """A new item of the mapped task, which moves those behind it."""
        item = self.item(len(self.items))
        self.items.insert(at, item)
        self.allowed[item], self.sent[item] = 1, []

    @precondition(lambda self: len(self.items) > 1)
    @rule(order=st.permutations(range(4)))
    def reorder_list(self, order: list[int]) -> None:
        self.items = [self.items[at] for at in order if at < len(self.items)]

    @precondition(lambda self: any(self.sent.values()))
    @rule(canceled=st.booleans(), which=st.integers(0, 1))
    def end_a_transfer(self, canceled: bool, which: int) -> None:
        """The recipients collect it, or the sender cancels it: whatever it has come to, it was sent."""
        transfer_id = [sent for of_one in self.sent.values() for sent in of_one][-1 - which :][0]
        for sandbox in (self.sandbox, self.elsewhere):
            try:
                if canceled:
                    sandbox.cancel(transfer_id)
                else:
                    sandbox.pickup(transfer_id, DELIVERY["recipients"][0])
            except httpx.HTTPStatusError:
                pass  # it has ended already, or is in the other account

    @rule(days=st.sampled_from([1, 31]))
    def let_days_pass(self, days: int) -> None:
        """Drafts live 30 days; a sent transfer expires."""
        self.sandbox.advance_clock(days * DAY)
        self.elsewhere.advance_clock(days * DAY)

    # The tasks: run for the first time, or cleared and run again, with their retries.

    @rule(resend=st.sampled_from([False, False, False, True]))
    def deliver(self, resend: bool) -> None:
        if resend and self.tasks["deliver"].try_number:
            self.allowed["deliver"] += 1
            self.sent["deliver"] = []
        self.resend = resend
        self.run.connection = self.connections[self.is_moved]
        result, error = self.go("deliver", self.tasks["deliver"])
        self.run.connection = self.connections[False]
        self.resend = False
        self.judge("deliver", result, error)

    @rule()
    def deliver_mapped(self) -> None:
        """Every index, for the first time or cleared."""
        cleared = bool(self.indexes)
        for index in range(len(self.indexes), len(self.items)):
            self.indexes.append(self.task(functools.partial(self.item_of, index), map_index=index))
        for ti in self.indexes:
            ti.clear_number += cleared
        for item, ti in zip(self.items, self.indexes, strict=True):
            self.judge(item, *self.go(item, ti))

    def item_of(self, index: int) -> tuple[type, dict[str, Any]]:
        return self.delivery(DeliverFilesOperator, files=self.files(), subject=self.items[index])

    @rule()
    def create(self) -> None:
        result, _ = self.go("create", self.tasks["create"])
        if result is not None and result != self.draft:
            self.draft, self.attached = result, None
            self.drafts.add(result)

    @precondition(lambda self: self.draft)
    @rule()
    def attach(self) -> None:
        was_sent = self.draft in self.sent["send"]
        result, error = self.go("attach", self.tasks["attach"])
        if not was_sent:
            self.attached = None if error else self.versions
        assert error or [file["name"] for file in result] == [path.name for path in map(Path, self.files())]

    @precondition(lambda self: self.draft and self.attached)
    @rule()
    def send(self) -> None:
        self.judge("send", *self.go("send", self.tasks["send"]))

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
        gone, error = self.go("discard", self.tasks["discard"])
        assert error or gone is (self.draft not in self.sent["send"])

    def go(self, name: str, ti: TaskInstance) -> tuple[Any, BaseException | None]:
        """Run a task to its end; the transfers that were billed meanwhile are judged."""
        if ti.try_number:
            ti.clear()
        self.versions = {Path(file).name: set() for file in self.files()}
        self.see_versions()
        before = set(self.billed())
        with mock.patch.object(client, "exchange", self.death.exchange):
            result, error = self.run.result_of(ti)
        self.run.settle()
        self.count(name, error)
        self.sandbox.clear_faults()
        self.run.time.meanwhile, self.death.at = None, -1
        for sandbox in (self.sandbox, self.elsewhere):
            sandbox.advance_clock(60)  # the judge asks, too
        for transfer_id in self.billed():
            if transfer_id not in before:
                self.judge_sent(name, transfer_id)
        return result, error

    def count(self, name: str, error: BaseException | None) -> None:
        met = sum(row["state"] == "met" for row in self.sandbox.faults())
        kind = "item" if name.startswith("Item") else name
        self.counts.update({f"{kind} {'failed' if error else 'succeeded'}": 1, "faults met": met})

    def see_versions(self) -> None:
        for path in self.bench.files:
            if path.exists() and path.name in self.versions:
                self.versions[path.name].add(hashlib.sha256(path.read_bytes()).hexdigest())

    # The judge.

    def billed(self) -> list[str]:
        """Every transfer that was billed in either account, in the order of each."""
        return [row["transfer_id"] for row in self.rows("billed")]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return [row for each in (self.sandbox, self.elsewhere) for row in each.ledger() if row["kind"] == kind]

    def judge_sent(self, name: str, transfer_id: str) -> None:
        assert name in self.sent, f"{name} sent {transfer_id}"
        assert (transfer_id in self.drafts) is (name == "send")
        assert self.billed().count(transfer_id) == 1
        self.sent[name].append(transfer_id)
        self.ever[name].add(transfer_id)
        self.allowed[name] -= 1
        assert self.allowed[name] >= 0, f"{name} is billed too often: {self.sent[name]}"
        emailed = [row["recipient"] for row in self.rows("emailed") if row["transfer_id"] == transfer_id]
        assert sorted(emailed) == sorted(DELIVERY["recipients"])
        meant = self.attached if name == "send" else self.versions
        is_here = any(row["transfer_id"] == transfer_id for row in self.sandbox.ledger())
        stored = Judge(self.sandbox if is_here else self.elsewhere, [], []).stored(transfer_id)
        assert meant is not None
        assert stored.keys() == meant.keys(), (
            f"{transfer_id} was sent with {sorted(stored)}, wanted are {sorted(meant)}"
        )
        for file, versions in meant.items():
            assert stored[file] in versions, f"{file} was sent with bytes that no version of it had"

    def judge(self, name: str, result: Any, error: BaseException | None) -> None:
        """What the task says against what was sent: :attr:`sent` has what it may not hide."""
        if error is None:
            assert result["id"] in set(self.billed()) - set(self.known), f"{result['id']} was not sent"
            assert result["id"] in self.ever[name], f"{result['id']} is not what {name} has sent"
            assert (result["id"] in self.drafts) is (name == "send"), f"{result['id']} is the other delivery's"
            return
        if self.sent[name]:
            # An index of the mapped task may have sent another item, and names that.
            told = set().union(*self.ever.values()) if name.startswith("Item") else self.sent[name][-1:]
            assert any(says_sent(error, each) for each in told), f"{name} sent {told}, and does not say so: {error!r}"


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
