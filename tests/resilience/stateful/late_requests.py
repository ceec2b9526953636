"""What a state machine needs for long waits before a send, and for processes that outlive their try."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from outbound_transfer.airflow_compat.names import AirflowFailException, AirflowSkipException
from outbound_transfer.client import client
from outbound_transfer.operators.transfer import AttachFilesOperator, CreateTransferOperator
from outbound_transfer_sandbox.testing import Sandbox
from resilience.fault_matrix.matrix import FaultedRun, Harness
from resilience.stateful.outliving import WAIT, GivenUp, OutlivingProcess
from support.tasks import FakeTaskInstance

#: Why a task waits before its send, or before it changes a file of the draft: no slot is free, or a response says so.
FULL = "full"
FAULTS = {
    "429": {"kind": "error", "status": 429, "retry_after": "90", "path": "*/send"},
    "503": {"kind": "error", "status": 503, "path": "*/send"},
    "429 at a file": {"kind": "error", "status": 429, "retry_after": "90", "path": "*/files*"},
}
reasons = st.sampled_from([FULL, FULL, *FAULTS])

#: Where a process may stop, by task.
STOPS = {
    "deliver": (WAIT, WAIT, "create", "attach", "discard", "send"),
    "item": (WAIT, WAIT, "attach", "discard", "send"),
    "create": ("create", "discard"),
    "attach": (WAIT, "attach", "attach", "remove"),
    "send": (WAIT, "send"),
}


class Plan(NamedTuple):
    """How the process of a task's next run outlives its try; see :class:`OutlivingProcess`.

    :ivar steps: requests and waits of others until it goes on.
    :ivar is_marked: a user marks the task; otherwise Airflow retries it.
    """

    task: str
    stops_at: str
    skip: int = 0
    steps: int = 99
    dies: bool = False
    is_marked: bool = True


def plans(*tasks: str) -> st.SearchStrategy[Plan]:
    """How the process of one of the tasks outlives its try."""
    stops = st.sampled_from(tasks).flatmap(lambda task: st.tuples(st.just(task), st.sampled_from(STOPS[task])))
    more = st.tuples(st.sampled_from([0, 0, 0, 0, 1, 2]), st.integers(0, 15), st.booleans(), st.booleans())
    return st.builds(lambda stop, rest: Plan(*stop, *rest), stops, more)


class LateRequests(RuleBasedStateMachine):
    """The rules about them, and what they do to a run of a task."""

    harness: ClassVar[Harness]
    counts: ClassVar[Counter[str]]
    run: FaultedRun
    sandbox: Sandbox
    elsewhere: Sandbox
    death: Any
    late: bool
    resend: dict[str, list[str]]
    has_lost_a_record: bool
    has_forgotten: bool
    draft: str
    versions: dict[str, set[str]]
    own: defaultdict[int, list[str]]

    def begin_waits(self) -> None:
        self.plan: Plan | None = None
        self.steps, self.is_full = 0, False
        #: What processes have sent that outlived their try.
        self.sent_late: set[str] = set()
        #: The task that runs.
        self.running = ""
        #: Somebody else's draft, which has an id that was this run's.
        self.theirs = ""
        self.has_restored = False
        self.death.before_request, self.run.time.at_wait = self.step, self.at_wait

    # Long waits.

    @rule(why=reasons)
    def let_a_task_wait(self, why: str) -> None:
        """The next that comes so far."""
        self.sandbox.clear_faults()
        if why == FULL:
            self.set_limit(0)
        else:
            self.sandbox.plan_faults(FAULTS[why])

    def set_limit(self, outstanding: int) -> None:
        self.is_full = not outstanding
        for sandbox in (self.sandbox, self.elsewhere):
            sandbox.patch_account(outstanding_transfer_limit=outstanding)

    def make_room(self) -> None:
        if self.is_full:
            self.set_limit(10**6)

    def at_wait(self) -> bool:
        """Return whether something else may happen now: it is not the process that has outlived its try."""
        process = self.death.process
        if process and process.is_here:
            process.at_wait()
            return False
        self.make_room()
        self.step(WAIT)
        return True

    # Processes that outlive their try.

    @precondition(lambda self: not (self.late or self.death.process))
    @rule(plan=plans("deliver", "deliver", "item"), why=reasons)
    def outlive(self, plan: Plan, why: str = FULL) -> None:
        """A task whose process outlives its try."""
        self.plan = plan
        if plan.stops_at == WAIT:
            self.let_a_task_wait(why)
        if plan.task == "deliver":
            self.deliver()
        else:
            self.deliver_mapped()

    @precondition(lambda self: not (self.late or self.death.process))
    @rule(plan=plans("create", "attach", "attach", "send"), why=reasons)
    def outlive_in_steps(self, plan: Plan, why: str) -> None:
        """The same, of one of the tasks that deliver in steps."""
        self.plan = plan
        if plan.stops_at == WAIT:
            self.let_a_task_wait(why if plan.task == "send" else "429 at a file")
        if plan.task == "attach" and self.draft:
            self.attach()
        else:
            self.deliver_in_steps()

    def result_of(self, name: str, ti: FakeTaskInstance) -> tuple[Any, BaseException | None]:
        """Run a task to its end, perhaps but for the process of its first try."""
        self.running = name
        plan, kind = self.plan, "item" if name.startswith("Item") else name
        if plan is None or plan.task != kind or self.death.process:
            return self.run.result_of(ti)
        self.plan = None
        ti.begin_try()
        process = OutlivingProcess(name, ti, self.versions, plan.stops_at, skip=plan.skip, dies=plan.dies)
        self.death.process, self.steps = process, plan.steps
        with self.run.environment():
            process.start()
        if not process.is_stopped:
            self.death.process, ti.result = None, process.result
            is_final = isinstance(process.error, AirflowFailException | AirflowSkipException)
            if process.error is None or is_final or ti.try_number > ti.max_tries:
                return process.result, process.error
        else:
            self.counts[f"outlived at {plan.stops_at}"] += 1
            if plan.is_marked or ti.try_number > ti.max_tries:
                return None, GivenUp("Airflow has given the task up")
        ti.before_retry()
        return self.run.result_of(ti)

    def step(self, operation: str) -> None:
        """Before a request, or after a wait, of another process than the one that has stopped."""
        process: OutlivingProcess | None = self.death.process
        if process is None or not process.is_stopped:
            return
        self.steps -= 1
        if process.name == "attach" and operation == "send":
            return  # between the read of the draft and the send, only the service could exclude it: a limit
        # Without a record, what arrives after the last search is not found: a limit.
        must_arrive = operation == "attach" and process.has_sent and self.has_lost_a_record
        if self.steps < 0 or must_arrive:
            self.wake()

    def wake_for(self, ti: FakeTaskInstance) -> None:
        """Before another task runs, let a send arrive: what arrives after its last search is not found, a limit."""
        process = self.death.process
        if process and process.has_sent and process.ti is not ti:
            self.wake()

    @precondition(lambda self: self.death.process)
    @rule()
    def wake(self) -> None:
        """The process goes on to its end, and what it has sent is judged."""
        process: OutlivingProcess | None = self.death.process
        if process is None:
            return
        self.make_room()
        before = set(self.billed())
        with self.run.environment(), mock.patch.object(client, "send", self.death.send):
            process.finish()
        self.death.process = None
        for transfer_id in self.billed():
            if transfer_id in before:
                continue
            self.sent_late.add(transfer_id)
            # The send of a shared draft: whichever try sends it, it is sent once.
            is_shared = process.name == "send" and process.ti.state == "running"
            assert process.has_sent or is_shared, f"a try that Airflow has given up has sent {transfer_id}"
            self.judge_sent(process.name, transfer_id, process.versions)
            if not (transfer_id in chain(*self.resend.values()) or self.has_lost_a_record or self.has_forgotten):
                self.own[id(process.ti)].append(transfer_id)

    def teardown(self) -> None:
        self.wake()
        self.make_room()  # for the next schedule

    def abandon(self) -> None:
        """Let no process stay, whatever it does."""
        if process := self.death.process:
            process.abandon()
        self.make_room()

    # A service that is restored from a backup.

    @precondition(lambda self: not (self.late or self.has_restored or self.was_moved))
    @rule(of_steps=st.booleans(), at_wait=st.booleans())
    def restore_the_service(self, of_steps: bool, at_wait: bool = False) -> None:
        """It has given the id of a draft again, to a draft of somebody else.

        :param at_wait: at the next wait of the task that sends, or the next deferral of the delivery in one task: other
            processes that wait do not read the draft again.
        """

        def restore() -> None:
            draft = self.draft if of_steps else self.remembered_draft()
            is_read_again = self.tasks["deliver"].is_deferred or self.running == "send"
            if not draft or self.has_restored or (at_wait and not is_read_again):
                return
            self.wake()  # what is under way to an id cannot know whose that is
            if draft in self.billed():
                return
            self.has_restored, self.theirs = True, self.draft_of_somebody_else()
            self.death.restored = draft.encode(), self.theirs.encode()

        if at_wait:
            self.run.time.meanwhile = restore
        else:
            restore()

    def remembered_draft(self) -> str:
        values = self.tasks["deliver"].store.values
        records = [self.tasks["deliver"].store.get(key) for key in values if "_try_" in key]
        return records[-1]["draft_id"] if records else ""

    def draft_of_somebody_else(self) -> str:
        people = {"subject": "Theirs", "recipients": ["eve@example.com"]}
        file = {"name": "theirs.csv", "content": b"1"}
        create = self.task(lambda: (CreateTransferOperator, people))
        with self.run.environment(), mock.patch.object(client, "send", self.death.real_send):
            transfer_id = str(create.run())
            self.task(lambda: (AttachFilesOperator, {"transfer_id": transfer_id, "files": [file]})).run()
        return transfer_id

    def judge_theirs(self) -> None:
        if self.theirs:
            try:
                transfer = self.sandbox.transfer(self.theirs)
            except httpx.HTTPStatusError:
                raise AssertionError("somebody else's draft is gone") from None
            assert transfer["status"] == "draft", "somebody else's draft was sent"
            assert [file["name"] for file in transfer["files"]] == ["theirs.csv"], "somebody else's draft was changed"
