"""A state machine of a Dag run: a delivery in one task, and one in steps, under what happens to services and files.

Hypothesis composes schedules of task runs and clears, planned faults, deaths of the task's process at any request,
sources that change between runs and within them, files that are wanted and not wanted any more, pickups, cancels, and
drafts that grow too old. After every step the sandbox's ledger and stored bytes judge, never what a client believes:

* each delivery is billed at most once;
* what was sent is just the wanted sources' bytes, whole versions of each and never a mixture;
* a task that succeeded has sent; one that failed has not sent itself, or its error names the transfer and says so;
* where nothing is wrong any more and nothing is sent yet, a clear sends; unless another task of the run has had no
  answer that says whether its send of the same took effect.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import httpx
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer_sandbox.testing import Sandbox
from resilience.fault_matrix.matrix import DELIVERY, KINDS, RETRIES, FaultedRun, Harness, ReleasingClock
from resilience.inputs import ARCHIVE, INPUTS, as_paths, operator_for, stored_digests
from support.calls import ProcessCrashed, die, intercepted, process
from support.oracle import says_sent
from support.tasks import FakeTaskInstance, SimulatedClock

DAY = 86_400
STEPS = 20
FILES = range(3)
#: Late answers are waited for in real time: few schedules have them.
IMMEDIATE = {kind.name: kind.fault for kind in KINDS if not kind.late}
LATE = {kind.name: kind.fault for kind in KINDS if kind.late and not kind.name.startswith("delay")}

#: What another program may do to a file: of its own size and of another, empty, gone.
CONTENTS: dict[str, Callable[[bytes], bytes | None]] = {
    "rewritten": lambda old: bytes(byte ^ 1 for byte in old),
    "longer": lambda old: old + b"more",
    "empty": lambda old: b"",
    "deleted": lambda old: None,
}


#: What keeps one task from sending: a documented refusal, a source that is missing, a service that is away for all of
#: its tries, or until its next one.
NO_CREDIT, NO_FILE, NO_SERVICE = "no credit", "no file", "no service"
AWAY = {"away at the create": "/v1/transfers", "away at the send": "*/send"}
troubles = st.sampled_from([None, None, None, None, NO_CREDIT, NO_FILE, NO_SERVICE, *AWAY])


class ClockWithCallback(SimulatedClock):
    """Time in which something may happen while a client waits.

    :ivar meanwhile: done at the next wait.
    """

    meanwhile: Callable[[], object] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        # In one step: uploads that run at once may wait at once.
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()


class ReleasingClockWithCallback(ClockWithCallback, ReleasingClock):
    """The same, where answers are held."""


class CrashInjector:
    """A process that dies at one of its requests, before or after it takes effect.

    :ivar at: requests until then; negative: it lives.
    :ivar in_doubt: transfers of which a send was not refused: what was not billed may have been, for all that is known.
    """

    def __init__(self) -> None:
        self.at, self.after = -1, False
        self.in_doubt: set[str] = set()
        self._lock = threading.Lock()

    def handle(self, request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if process.is_dead:
            raise ProcessCrashed
        with self._lock:
            self.at -= 1
            is_now = self.at == -1
        response = None
        try:
            response = make() if self.after or not is_now else None
        finally:
            if request.url.path.endswith("/send") and not (response and response.is_client_error):
                self.in_doubt.add(request.url.path.split("/")[-2])
        if is_now or response is None:
            DeliveryStateMachine.counts["deaths"] += 1
            die()
        return response


_numbers = itertools.count()


class DeliveryStateMachine(RuleBasedStateMachine):
    """One Dag run with two deliveries of the same files: ``deliver``, and ``create`` >> ``attach`` >> ``send``."""

    harness: ClassVar[Harness]
    #: What happened in all schedules of the class.
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(
        deferrable=st.booleans(), late=st.sampled_from([False] * 9 + [True]), given=st.sampled_from(sorted(INPUTS))
    )
    def begin(self, deferrable: bool, late: bool, given: str) -> None:
        self.late = late
        #: How deliveries get their files.
        self.given = given
        self.number = next(_numbers)
        self.harness.restore_files()
        self.run = FaultedRun(self.harness.sandbox(), self.harness.files, late=late)
        self.run.time = (ReleasingClockWithCallback if late else ClockWithCallback)(self.run.sandbox)
        self.sandbox: Sandbox = self.run.sandbox
        #: Whether the service may have shown as a draft what was sent.
        self.may_be_shown_as_draft = False
        self.death = CrashInjector()
        self.deferrable = deferrable
        #: What is in the way of the task that runs; see :data:`troubles`.
        self.trouble: str | None = None
        #: Positions of the files that are wanted.
        self.wanted = list(FILES)

        self.tasks = {
            "deliver": self.task("deliver", lambda: self.delivery(operator_for(self.given), **self.input())),
            "create": self.task("create", lambda: self.delivery(CreateTransferOperator)),
            "attach": self.task(
                "attach", lambda: (AttachFilesOperator, {"transfer_id": self.draft, **self.attached_input()})
            ),
            "send": self.task("send", lambda: (SendTransferOperator, {"transfer_id": self.draft})),
            "discard": self.task("discard", lambda: (DiscardTransferOperator, {"transfer_id": self.draft})),
        }
        self.tasks["attach"].upstream = {"create": self.tasks["create"]}
        self.tasks["send"].upstream = {"create": self.tasks["create"], "attach": self.tasks["attach"]}
        #: What ``create`` gave, and what of it ``attach`` has attached.
        self.draft = ""
        self.drafts: set[str] = set()
        self.attached: dict[str, set[str]] | None = None
        #: By delivery, what it was billed for, and by task instance what it has sent and may not hide.
        self.sent: dict[str, list[str]] = {"deliver": [], "send": []}
        self.own: defaultdict[int, list[str]] = defaultdict(list)
        #: By file, the digests that it has had while the task ran.
        self.versions: dict[str, set[str]] = {}

    def files(self) -> list[str]:
        files = [str(self.harness.files[number]) for number in self.wanted]
        return [*files, f"{files[0]}.missing"] if self.trouble == NO_FILE else files

    def input(self) -> dict[str, Any]:
        return INPUTS[self.given]([Path(file) for file in self.files()])

    def attached_input(self) -> dict[str, Any]:
        """Of the delivery in steps: no operator attaches the results of queries."""
        return self.input() if self.given != "query" else as_paths([Path(file) for file in self.files()])

    def delivery(self, operator: type, **arguments: Any) -> tuple[type, dict[str, Any]]:
        return operator, {**DELIVERY, "subject": f"Report {self.number}", **arguments}

    def task(self, name: str, what: Callable[[], tuple[type, dict[str, Any]]]) -> FakeTaskInstance:
        def make() -> Any:
            operator, arguments = what()
            return operator(task_id=name, **{"deferrable": self.deferrable, **arguments})

        ti = FakeTaskInstance(make, self.run.time, RETRIES, task_id=name)
        ti.before_retry = self.before_retry
        return ti

    def before_retry(self) -> None:
        """The service is back."""
        if self.trouble in AWAY:
            self.trouble = None
            self.sandbox.clear_faults()

    # What happens around the tasks.

    @rule(kind=st.sampled_from(sorted(IMMEDIATE)), skip=st.integers(0, 6), times=st.sampled_from([1, 1, 1, 2, 8]))
    def plan_fault(self, kind: str, skip: int, times: int) -> None:
        """Of the next task run. Eight in a row are more than a call's tries."""
        self.sandbox.plan_faults({**IMMEDIATE[kind], "skip": skip}, *[IMMEDIATE[kind]] * (times - 1))
        self.may_be_shown_as_draft |= kind == "a draft still"

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
        path = self.harness.files[number]
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
        self.harness.restore_files()

    @rule(wanted=st.sampled_from([[0], [1, 0], [0, 1, 2], [2, 0]]))
    def want_other_files(self, wanted: list[int]) -> None:
        """All choices have one in common: without one, it is another delivery."""
        self.wanted = wanted

    @precondition(lambda self: any(self.sent.values()))
    @rule(canceled=st.booleans(), which=st.integers(0, 1))
    def end_a_transfer(self, canceled: bool, which: int) -> None:
        """The recipients collect it, or the sender cancels it: whatever it has come to, it was sent."""
        transfer_id = [sent for of_one in self.sent.values() for sent in of_one][-1 - which :][0]
        with suppress(httpx.HTTPStatusError):  # it has ended already
            if canceled:
                self.sandbox.cancel(transfer_id)
            else:
                self.sandbox.pickup(transfer_id, DELIVERY["recipients"][0])

    @rule(days=st.sampled_from([1, 31]))
    def let_days_pass(self, days: int) -> None:
        """Drafts live 30 days; a sent transfer expires."""
        self.sandbox.advance_clock(days * DAY)

    # The tasks: run for the first time, or cleared and run again, with their retries.

    @rule(trouble=troubles)
    def deliver(self, trouble: str | None = None) -> None:
        self.go_deliver(trouble)

    def go_deliver(self, trouble: str | None = None) -> BaseException | None:
        ti = self.tasks["deliver"]
        self.clear("deliver")
        result, error = self.go("deliver", ti, trouble)
        self.judge("deliver", ti, result, error)
        return error

    @precondition(lambda self: not self.late)
    @rule()
    def deliver_in_order(self) -> None:
        """Nothing is in the way: what was not sent is sent."""
        self.clear_the_way()
        error = self.go_deliver()
        # A try after a clear is refused where another task of the run has sent the like, or may have.
        is_in_doubt = self.draft in self.death.in_doubt and self.draft in str(error)
        assert self.sent["deliver"] or self.sent["send"] or is_in_doubt, "refused although nothing is wrong"

    def clear_the_way(self) -> None:
        self.harness.restore_files()
        self.sandbox.clear_faults()
        self.death.at, self.run.time.meanwhile = -1, None

    @rule()
    def create(self) -> None:
        self.go_create()

    def go_create(self) -> None:
        self.clear("create")
        result, _ = self.go("create", self.tasks["create"])
        if result is not None and result != self.draft:
            self.draft, self.attached = result, None
            self.drafts.add(result)

    @precondition(lambda self: self.draft)
    @rule()
    def attach(self) -> None:
        was_sent = self.draft in self.sent["send"]
        self.clear("attach")
        result, error = self.go("attach", self.tasks["attach"])
        if not was_sent:
            self.attached = None if error else self.versions
        names = [ARCHIVE] if self.given == "archive" else [path.name for path in map(Path, self.files())]
        is_gone = was_sent and not all(Path(each).exists() for each in self.files())  # and cannot be compared
        assert error or is_gone or [file["name"] for file in result] == names

    @precondition(lambda self: self.draft and self.attached)
    @rule(trouble=troubles)
    def send(self, trouble: str | None) -> None:
        self.go_send(trouble)

    def go_send(self, trouble: str | None = None) -> None:
        ti = self.tasks["send"]
        self.clear("send")
        self.judge("send", ti, *self.go("send", ti, trouble))

    @rule(trouble=troubles)
    def deliver_in_steps(self, trouble: str | None = None) -> None:
        """As a Dag does it: each task where the one before has succeeded."""
        self.go_create()
        if self.draft:
            self.attach()
        if self.attached:
            self.go_send(trouble)

    def clear(self, name: str) -> None:
        if self.tasks[name].try_number:
            self.tasks[name].clear()

    @precondition(lambda self: self.draft)
    @rule()
    def discard(self) -> None:
        discard = self.tasks["discard"]
        discard.upstream = {"create": self.tasks["create"]}
        self.clear("discard")
        gone, error = self.go("discard", discard)
        assert error or gone is (self.draft not in self.sent["send"])

    def go(self, name: str, ti: FakeTaskInstance, trouble: str | None = None) -> tuple[Any, BaseException | None]:
        """Run a task to its end; the transfers that were billed meanwhile are judged."""
        self.versions = {Path(file).name: set() for file in self.files()}
        self.see_versions()
        before = set(self.billed())
        ti.state = "running"
        with intercepted(self.death.handle), self.in_trouble(trouble):
            result, error = self.run.result_of(ti)
        ti.state = "failed" if error else "success"
        self.run.settle()
        self.count(name, error)
        self.sandbox.clear_faults()
        self.run.time.meanwhile, self.death.at = None, -1
        self.sandbox.advance_clock(60)  # the judge asks, too
        for transfer_id in self.billed():
            if transfer_id not in before:
                self.judge_sent(name, transfer_id)
                self.own[id(ti)].append(transfer_id)
        return result, error

    @contextmanager
    def in_trouble(self, trouble: str | None) -> Iterator[None]:
        """Nothing else is in the way then. The service is back at the next try, credit after the task."""
        self.trouble = trouble
        if trouble:
            self.sandbox.clear_faults()
        if trouble == NO_CREDIT:
            self.sandbox.patch_account(billing="per_transfer", credits=0)
        elif trouble and trouble != NO_FILE:
            away = {"kind": "error", "status": 503, "method": "POST", "path": AWAY.get(trouble, "*")}
            self.sandbox.plan_faults(*[away] * 30)
        yield
        self.trouble = None
        if trouble:
            self.sandbox.patch_account(billing="included")
            self.sandbox.clear_faults()

    def count(self, name: str, error: BaseException | None) -> None:
        met = sum(row["state"] == "triggered" for row in self.sandbox.faults())
        self.counts[f"given as {self.given}"] += 1
        self.counts.update({f"{name} {'failed' if error else 'succeeded'}": 1, "faults met": met})

    def see_versions(self) -> None:
        for path in self.harness.files:
            if path.exists() and path.name in self.versions:
                self.versions[path.name].add(hashlib.sha256(path.read_bytes()).hexdigest())

    # The judge.

    def billed(self) -> list[str]:
        """Every transfer that was billed, in order."""
        return [row["transfer_id"] for row in self.sandbox.ledger() if row["kind"] == "billed"]

    def judge_sent(self, name: str, transfer_id: str) -> None:
        transfer = self.sandbox.transfer(transfer_id)
        assert name in self.sent, f"{name} sent {transfer_id}"
        assert (transfer_id in self.drafts) is (name == "send")
        assert self.billed().count(transfer_id) == 1
        self.sent[name].append(transfer_id)
        assert len(self.sent[name]) == 1, f"{name} is billed too often: {self.sent[name]}"
        rows = [row for row in self.sandbox.ledger() if row["transfer_id"] == transfer_id]
        assert sorted(row["recipient"] for row in rows if row["kind"] == "emailed") == sorted(DELIVERY["recipients"])
        meant = self.attached if name == "send" else self.versions
        stored = stored_digests(self.sandbox, transfer_id, transfer["files"])
        assert meant is not None
        assert stored.keys() == meant.keys(), (
            f"{transfer_id} was sent with {sorted(stored)}, wanted are {sorted(meant)}"
        )
        for file, digests in meant.items():
            assert stored[file] in digests, f"{file} was sent with bytes that no version of it had"

    def judge(self, name: str, ti: FakeTaskInstance, result: Any, error: BaseException | None) -> None:
        """What the task says against what was sent: :attr:`own` has what it may not hide."""
        own = self.own[id(ti)]
        if error is None:
            assert result["id"] in self.sent[name], f"{result['id']} is not what {name} has sent"
            return
        # Who died says nothing, and who is shown a draft knows of no send.
        if own and not (isinstance(error, ProcessCrashed) or self.may_be_shown_as_draft):
            assert says_sent(error, own[-1]), f"{name} sent {own}, and does not say so: {error!r}"


def schedules(harness: Harness, examples: int, number: int) -> Counter[str]:
    """Run so many schedules, drawn from the seed ``number``; what happened in them.

    :raises AssertionError: one broke a promise; Hypothesis prints the shortest that does.
    """
    DeliveryStateMachine.counts.clear()
    machine = seed(number)(type("DeliveryStateMachine", (DeliveryStateMachine,), {"harness": harness}))
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
    return DeliveryStateMachine.counts.copy()
