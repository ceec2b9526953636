"""A state machine of a DAG run: a delivery in one task, and one in steps, under whatever can happen to them.

Hypothesis composes schedules of task runs and clears, planned faults, deaths of the task's process at any request,
sources that change between runs and within them, files that are wanted and not wanted any more, a connection that leads
to another account or to a colleague's key, a state store with gaps, a task that is renamed and named back, a run that
is queued again, items of a mapped task that move to other indexes and back, between runs, tries and requests, pickups,
cancels, drafts that grow too old, sending again on purpose, sends that wait for long or for a person, and processes
that outlive their try, or whose last request arrives late (:mod:`.late_requests`). After every step the sandboxes'
ledgers and stored bytes judge, never what a client believes:

* each delivery is billed at most once, whatever its index, name and account, and once more for each transfer of it that
  ``resend`` has named, however often that was read;
* what was sent is just the wanted sources' bytes, whole versions of each and never a mixture;
* a person has approved just these bytes, where that is asked for;
* a task that succeeded has sent; one that failed has not sent itself, or its error names the transfer and says so;
* where nothing is wrong any more and nothing is sent yet, a clear sends, whatever other runs of the DAG have sent; and
  so does one with ``resend`` once it was sent.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import httpx
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from outbound_transfer.client import client
from outbound_transfer.delivery.task_facts import MADE_KEY
from outbound_transfer.operators.approval import ApprovedSendOperator
from outbound_transfer.operators.files import FilesOperator
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer_sandbox.testing import Sandbox
from resilience.fault_matrix.matrix import DELIVERY, KINDS, RETRIES, FaultedRun, Harness, ReleasingClock, says_sent
from resilience.stateful.late_requests import FULL, LateRequests
from resilience.stateful.outliving import OutlivingProcess
from support.connections import connection_json
from support.inputs import ARCHIVE, INPUTS, as_paths, operator_for, stored_digests
from support.tasks import CrashableStateStore, FakeTaskInstance, Person, ProcessCrashed, SimulatedClock

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

#: What a user sets ``resend`` to: what an error names, beside what is there; the newest transfer, or the one before;
#: what is not the task's; nothing. None: it stays as it is.
TOLD, NEWEST, OLDER, FOREIGN = "told", "newest", "older", "somebody else's"
OF_NOBODY = {"unknown": ["tr_unknown"], "taken away": [""]}
ids = st.sampled_from([*[None] * 6, TOLD, TOLD, NEWEST, NEWEST, NEWEST, OLDER, FOREIGN, *OF_NOBODY])


#: Whether a person approves each send; and whether Airflow shows the request of a later try, or that of the first one.
NOT_NEEDED, SHOWS_EACH, SHOWS_FIRST = "not needed", "shows each", "shows the first"
APPROVES, REJECTS = "approves", "rejects"


def kind_of(name: str) -> str:
    """The kind of the delivery that a task is about: one task's, that in steps, or an item of the mapped task."""
    return name if name == "deliver" else "item" if name.startswith("Item") else "send"


def told_by(error: BaseException | None) -> str:
    """The transfer that an error is about, which is the one that ``resend`` may be set to; "" if it names none."""
    told = re.search(r"\btr_\w+", str(error))
    return told[0] if told else ""


def is_for_a_new_run(error: BaseException | None) -> bool:
    """Return whether an error says that only a new run delivers."""
    return "Correct the delivery_key" in str(error)


class ClockWithCallback(SimulatedClock):
    """Time in which something may happen while a client waits.

    :ivar at_wait: done at each wait; returns whether something else may happen.
    :ivar meanwhile: done at the next wait.
    """

    at_wait: Callable[[], bool] = lambda: True
    meanwhile: Callable[[], object] | None = None
    elsewhere: Sandbox | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.elsewhere:
            self.elsewhere.advance_clock(seconds)
        if not self.at_wait():
            return
        # In one step: uploads that run at once may wait at once.
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()


class ReleasingClockWithCallback(ClockWithCallback, ReleasingClock):
    """The same, where answers are held."""


class CrashInjector:
    """A process that dies at one of its requests, before or after it takes effect.

    :ivar at: requests until then; negative: it lives.
    :ivar meanwhile: done before the next create or upload.
    :ivar process: one that outlives its try, and dies otherwise.
    :ivar restored: an id, and that of the transfer which the service shows under it since it was restored.
    """

    def __init__(self) -> None:
        self.at, self.after = -1, False
        self.process: OutlivingProcess | None = None
        self.before_request: Callable[[str], object] = lambda operation: None
        self.restored: tuple[bytes, bytes] | None = None
        self.meanwhile: Callable[[], object] | None = None
        self.store: CrashableStateStore | None = None
        self.real_send = client.send
        self._lock = threading.Lock()

    def _send(self, http: Any, settings: Any, call: Any, *secrets: Any) -> Any:
        if not self.restored:
            return self.real_send(http, settings, call, *secrets)
        ours, theirs = self.restored
        call = replace(call, path=call.path.replace(ours.decode(), theirs.decode()))
        response = self.real_send(http, settings, call, *secrets)
        return replace(response, body=response.body.replace(theirs, ours))

    def send(self, *arguments: Any) -> Any:
        if self.process and self.process.is_here:
            return self.process.send(self._send, *arguments)
        if self.store and self.store.dead:
            raise ProcessCrashed
        self.before_request(arguments[2].operation.value)
        if arguments[2].operation.value in ("create", "attach"):
            with self._lock:  # of uploads that run at once, one goes on with it
                meanwhile, self.meanwhile, store = self.meanwhile, None, self.store
            if meanwhile:
                meanwhile()
                self.store = store
        with self._lock:
            self.at -= 1
            is_now = self.at == -1
        if not is_now:
            return self._send(*arguments)
        if self.after:
            self._send(*arguments)
        assert self.store
        self.store.dead = True
        DeliveryStateMachine.counts["deaths"] += 1
        raise ProcessCrashed


_numbers = itertools.count()

#: Where the connection may lead: also to another account, and to the key of another user of the same.
HERE, ELSEWHERE, COLLEAGUE = "here", "elsewhere", "colleague"


class DeliveryStateMachine(LateRequests):
    """One DAG run with two deliveries of the same files: ``deliver``, and ``create`` >> ``attach`` >> ``send``."""

    harness: ClassVar[Harness]
    #: What happened in all schedules of the class.
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(
        deferrable=st.booleans(),
        late=st.sampled_from([False] * 9 + [True]),
        given=st.sampled_from(sorted(INPUTS)),
        approval=st.sampled_from([NOT_NEEDED, NOT_NEEDED, SHOWS_EACH, SHOWS_FIRST]),
    )
    def begin(self, deferrable: bool, late: bool, given: str, approval: str = NOT_NEEDED) -> None:
        self.late = late
        #: How deliveries get their files.
        self.given = given
        self.number = next(_numbers)
        self.harness.restore_files()
        self.run = FaultedRun(self.harness.sandbox(), self.harness.files, late=late)
        self.run.time = (ReleasingClockWithCallback if late else ClockWithCallback)(self.run.sandbox)
        self.sandbox: Sandbox = self.run.sandbox
        self.elsewhere = self.run.time.elsewhere = self.harness.elsewhere()
        self.elsewhere.advance_clock(3600)
        #: Where the connection may lead, and where it does.
        self.connections = {HERE: self.run.connection, ELSEWHERE: connection_json(self.elsewhere, verify=False)}
        self.at, self.was_moved, self.has_forgotten, self.may_be_shown_as_draft = HERE, False, False, False
        #: Where the connection has led when the mapped task ran, and when the delivery in one task did.
        self.places = {True: {HERE}, False: {HERE}}
        #: Where it has led when each task instance ran.
        self.places_of: defaultdict[int, set[str]] = defaultdict(set)
        #: Whether a person approves each send, what that does next, and the texts that it has approved.
        self.approval, self.does, self.approved = approval, APPROVES, list[str]()
        self.known = self.billed()
        self.death = CrashInjector()
        self.deferrable = deferrable
        #: By kind of delivery, what ``resend`` names, what it has named when a task ran, and by task instance, what its
        #: last error has named.
        self.resend: dict[str, list[str]] = {"deliver": [], "send": [], "item": []}
        self.named: defaultdict[str, set[str]] = defaultdict(set)
        self.told: defaultdict[str, dict[int, str]] = defaultdict(dict)
        #: How each task instance has ended last.
        self.errors: dict[int, BaseException | None] = {}
        #: The delivery in one task in other runs of the DAG, and whether this run's has lost a record.
        self.other_runs: list[FakeTaskInstance] = []
        self.has_lost_a_record = self.has_deleted_a_task = False
        #: Arguments of a delivery whose trigger fails.
        self.wait: dict[str, Any] = {}
        #: What is in the way of the task that runs; see :data:`troubles`.
        self.trouble: str | None = None
        #: Positions of the files that are wanted.
        self.wanted = list(FILES)

        def one_task() -> FakeTaskInstance:
            return self.task(lambda: self.delivery("deliver", operator_for(self.given), **self.input(), **self.wait))

        self.tasks = {
            "deliver": one_task(),
            "create": self.task(lambda: self.delivery("send", CreateTransferOperator)),
            "attach": self.task(lambda: (AttachFilesOperator, {"transfer_id": self.draft, **self.attached_input()})),
            "send": self.task(lambda: (SendTransferOperator, {"transfer_id": self.draft})),
            "discard": self.task(lambda: (DiscardTransferOperator, {"transfer_id": self.draft})),
        }
        #: The same task under the name that it has not now, and whether its run was queued again without a clear.
        self.other_name, self.is_queued_again = one_task(), False
        self.tasks["deliver"].of_other_runs = self.other_runs
        self.tasks["attach"].upstream = {"create": self.tasks["create"]}
        self.tasks["send"].upstream = {"create": self.tasks["create"], "attach": self.tasks["attach"]}
        #: Subjects of the mapped task's items, and its instances, by index; items that were taken out.
        self.items = [self.item(0), self.item(1)]
        self.indexes: list[FakeTaskInstance] = []
        self.removed: list[str] = []
        #: By index, the item of its last run, and the clears then.
        self.last_items: dict[int, tuple[str, int]] = {}
        #: Clears of the mapped task's run, and an order that its list gets while an index is up for retry.
        self.clears = 0
        self.order_at_retry: list[int] | None = None
        #: What ``create`` gave, and what of it ``attach`` has attached.
        self.draft = ""
        self.drafts: set[str] = set()
        self.attached: dict[str, set[str]] | None = None
        #: By delivery, what it was billed for, and by task instance what it has sent and may not hide.
        self.sent: dict[str, list[str]] = {name: [] for name in ["deliver", "send", *self.items]}
        self.own: defaultdict[int, list[str]] = defaultdict(list)
        #: By file, the digests that it has had while the task ran.
        self.versions: dict[str, set[str]] = {}
        self.begin_waits()

    def files(self) -> list[str]:
        files = [str(self.harness.files[number]) for number in self.wanted]
        return [*files, f"{files[0]}.missing"] if self.trouble == NO_FILE else files

    def input(self) -> dict[str, Any]:
        return INPUTS[self.given]([Path(file) for file in self.files()])

    def attached_input(self) -> dict[str, Any]:
        """Of the delivery in steps: no operator attaches the results of queries."""
        return self.input() if self.given != "query" else as_paths([Path(file) for file in self.files()])

    def delivery(self, name: str, operator: type, **arguments: Any) -> tuple[type, dict[str, Any]]:
        resend = self.resend[kind_of(name)]
        self.named[kind_of(name)].update(resend)
        return operator, {**DELIVERY, "subject": f"Report {self.number}", **arguments, "resend": resend}

    def item(self, number: int) -> str:
        """The subject of an item: schedules share an account, and what one has sent is not another's."""
        return f"Item {number} of {self.number}"

    def task(self, what: Callable[[], tuple[type, dict[str, Any]]], *, map_index: int = -1) -> FakeTaskInstance:
        store = CrashableStateStore()

        def make() -> Any:
            store.dead, self.death.store = False, store
            operator, arguments = what()
            if self.death.process and issubclass(operator, FilesOperator):  # it goes on between two uploads
                arguments = {**arguments, "max_parallel_uploads": 1}
            if self.approval != NOT_NEEDED and issubclass(operator, ApprovedSendOperator):
                arguments = {**arguments, "require_approval": True, "approval_timeout": timedelta(hours=1)}
            return operator(task_id="task", **{"deferrable": self.deferrable, **arguments})

        person = Person(self.respond, keeps_first=self.approval == SHOWS_FIRST)
        ti = FakeTaskInstance(make, self.run.time, RETRIES, store=store, map_index=map_index, person=person)
        ti.before_retry = self.before_retry
        return ti

    def before_retry(self) -> None:
        """The service is back; the list of a mapped task may have another order."""
        if self.trouble in AWAY:
            self.trouble = None
            for sandbox in (self.sandbox, self.elsewhere):
                sandbox.clear_faults()
        # The first try of an index asks nothing.
        if self.order_at_retry and all(ti.try_number for ti in self.indexes[: len(self.items)]):
            order, self.order_at_retry = self.order_at_retry, None
            self.reorder(order)

    def respond(self, shown: SimpleNamespace) -> str | None:
        """A person takes a minute, in which anything may happen."""
        does, self.does = self.does, APPROVES
        self.counts[f"a person {does}"] += 1
        self.run.time.sleep(60)
        if does == APPROVES:
            self.approved.append(shown.body)
        return {APPROVES: Person.approves, REJECTS: Person.rejects}.get(does, lambda _: None)(shown)

    @precondition(lambda self: self.approval != NOT_NEEDED)
    @rule(does=st.sampled_from([REJECTS, "is away"]))
    def plan_person(self, does: str) -> None:
        self.does = does

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

    @precondition(lambda self: not self.has_forgotten)
    @rule(to=st.sampled_from([HERE, ELSEWHERE, COLLEAGUE]))
    def move_connection(self, to: str) -> None:
        """Of the delivery in one task and of the mapped one: to another account, to a colleague's key, or back."""
        if to not in self.connections:
            key = self.sandbox.new_key("colleague@example.com")
            self.connections[to] = json.dumps({**json.loads(self.run.connection), "password": key})
        self.at, self.was_moved = to, True

    @precondition(lambda self: not self.has_deleted_a_task)
    @rule(which=st.integers(0, 4))
    def lose_newest_state(self, which: int) -> None:
        """What the newest try of a task stored is gone, and what those before it stored is there: also where the
        connection led, so it was never moved.
        """
        ti = [self.tasks["deliver"], *self.indexes][: which + 1][-1]
        records = [key for key in ti.store.values if "_try_" in key]
        if len(records) > 1 and self.places[ti.map_index >= 0] == {HERE}:
            del ti.store.values[records[-1]]
            self.own[id(ti)] = []
            self.has_lost_a_record = True

    # Without any state, it is a first try: a limit.
    @precondition(lambda self: not (self.other_name.try_number or self.has_forgotten))
    @rule(which=st.integers(0, 4))
    def delete_task_instance(self, which: int) -> None:
        """Through Airflow's API, which keeps its state: its tries count from 1 again, in a run that is cleared."""
        [self.tasks["deliver"], *self.indexes][: which + 1][-1].delete()
        self.clears += 1
        self.has_lost_a_record = self.has_deleted_a_task = True

    @precondition(lambda self: len(self.items) < 4)
    @rule(at=st.integers(0, 3), is_restored=st.booleans())
    def grow_list(self, at: int, is_restored: bool) -> None:
        """A new item of the mapped task, or one that it had, which moves those behind it."""
        if is_restored and self.removed:
            self.items.insert(at, self.removed.pop())
        elif (item := self.item(len(self.items) + len(self.removed))) not in self.sent:
            self.items.insert(at, item)
            self.sent[item] = []

    @precondition(lambda self: len(self.items) > 1)
    @rule(at=st.integers(0, 3))
    def shrink_list(self, at: int) -> None:
        """The last index is removed, with its state, and comes back when the list grows."""
        self.removed.append(self.items.pop(min(at, len(self.items) - 1)))

    @precondition(lambda self: len(self.items) > 1)
    @rule(order=st.permutations(range(4)))
    def reorder_list(self, order: list[int]) -> None:
        self.reorder(order)

    def reorder(self, order: list[int]) -> None:
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
        self.theirs = ""
        self.sandbox.advance_clock(days * DAY)
        self.elsewhere.advance_clock(days * DAY)

    def set_resend(self, kind: str, what: str | None) -> None:
        """It stays as it is until it is set anew."""
        sent, others = [], [*self.known]
        for name, of_one in self.sent.items():
            (sent if kind_of(name) == kind else others).extend(of_one)
        named = {TOLD: [*self.told[kind].values()], NEWEST: sent, OLDER: sent[:-1], FOREIGN: others, **OF_NOBODY}
        if what is not None and named[what]:
            self.counts[f"resend: {what}"] += 1
            self.resend[kind] = [*(self.resend[kind] if what == TOLD else []), named[what][-1]]

    # The tasks: run for the first time, or cleared and run again, with their retries.

    @rule(trouble=troubles, resend=ids)
    def deliver(self, trouble: str | None = None, resend: str | None = None) -> None:
        ti, other = self.tasks["deliver"], self.other_name
        ti.other_tasks, is_new_name = int(other.try_number > 0), not ti.try_number and other.try_number > 0
        ti.clear_number = max(ti.clear_number, other.clear_number) + (is_new_name and not self.is_queued_again)
        if not (place := self.where(ti)):
            return
        self.set_resend("deliver", resend)
        if ti.try_number:
            ti.clear()
        with self.connection_to(place, ti):
            result, error = self.go("deliver", ti, trouble)
        if self.has_forgotten:
            self.own[id(ti)] = []
        self.judge("deliver", ti, result, error)

    @rule()
    def deliver_in_another_run(self) -> None:
        """The like, in a run that is due before or at the time of this one."""
        ti = self.task(lambda: self.delivery("deliver", operator_for(self.given), **self.input()))
        name = len(self.other_runs)
        ti.run_id, ti.start_date = f"other run {name}", self.tasks["deliver"].start_date - timedelta(minutes=name)
        before = set(self.billed())
        self.run.result_of(ti)
        self.run.settle()
        self.known += [each for each in self.billed() if each not in before]
        self.other_runs.append(ti)

    @precondition(lambda self: not (self.was_moved or self.has_forgotten or self.has_lost_a_record or self.late))
    @precondition(lambda self: not self.has_restored and self.approval != SHOWS_FIRST)
    @rule()
    def deliver_in_order(self) -> None:
        """Nothing is in the way: what was not sent is sent, and then sent once more in its place, and only once."""
        self.clear_the_way()
        self.deliver()
        # Under another name, a task does not know what it made in other runs: a limit.
        is_renamed = self.other_name.try_number or self.tasks["deliver"].of_other_runs is not self.other_runs
        sent = self.sent["deliver"]
        assert sent or is_renamed, "the delivery is refused although nothing is wrong"
        if not is_renamed:
            before = len(sent)
            self.deliver(resend=NEWEST)
            self.deliver()
            assert len(sent) == before + 1, "resend is refused although nothing is wrong"

    @precondition(lambda self: not self.has_deleted_a_task)  # a task with a new name would not know of it: a limit
    @rule(is_queued_again=st.booleans(), trouble=troubles)
    def rename_and_deliver(self, is_queued_again: bool, trouble: str | None) -> None:
        """The delivery in one task gets its other name, with that one's state; it runs after a clear, or as the run's
        state is set to queued two hours later, which sets the run's start anew.
        """
        self.tasks["deliver"], self.other_name = self.other_name, self.tasks["deliver"]
        self.is_queued_again = is_queued_again
        if is_queued_again:
            self.elsewhere.advance_clock(7200)
            now = datetime.fromisoformat(self.sandbox.advance_clock(7200))
            self.tasks["deliver"].restarted = self.other_name.restarted = now
        self.deliver(trouble=trouble)

    @precondition(lambda self: not self.was_moved)
    @rule(forgets=st.booleans())
    def deliver_and_lose_the_trigger(self, forgets: bool) -> None:
        """The task waits for the pickup and its trigger fails, while the state store may forget everything."""
        ti, self.plan = self.tasks["deliver"], None
        self.wake()

        def fail() -> None:
            self.wait = {}
            if forgets:
                self.has_forgotten = True
                ti.store.values.clear()

        self.wait, ti.at_trigger_failure = {"wait": True, "deferrable": True}, fail
        self.deliver()
        self.wait, ti.at_trigger_failure = {}, None

    def clear_the_way(self) -> None:
        self.harness.restore_files()
        self.sandbox.clear_faults()
        self.death.at, self.run.time.meanwhile, self.plan, self.does = -1, None, None, APPROVES
        self.wake()
        self.make_room()

    def where(self, *tis: FakeTaskInstance) -> str | None:
        """Where the connection leads now, if each task remembers where it led; if not, it was never moved: without any
        state, another key is not known to be another. Nor is it for an item that comes back to its index, for an index
        that did not run where others have sent, or for a task with two names. None: the tasks cannot run, as one does
        not remember it.
        """
        has_two_names = tis[0].map_index < 0 and self.other_name.try_number
        if not has_two_names and all(
            ti.store.values and not self.comes_back(ti) and self.knows_each_place(ti) for ti in tis
        ):
            return self.at
        return HERE if self.places[tis[0].map_index >= 0] == {HERE} else None

    def knows_each_place(self, ti: FakeTaskInstance) -> bool:
        return ti.map_index < 0 or self.places_of[id(ti)] >= self.places[True]

    @contextmanager
    def connection_to(self, place: str, *tis: FakeTaskInstance) -> Iterator[None]:
        """The connection leads there while the tasks run."""
        self.places[tis[0].map_index >= 0].add(place)
        for ti in tis:
            self.places_of[id(ti)].add(place)
        here, self.run.connection = self.run.connection, self.connections[place]
        yield
        self.run.connection = here

    @rule(in_the_way=st.tuples(troubles, troubles, troubles), order=st.permutations(range(4)), resend=ids)
    def deliver_mapped(
        self, in_the_way: Sequence[str | None] = (), order: list[int] | None = None, resend: str | None = None
    ) -> None:
        """Every index, for the first time or cleared, some in trouble.

        :param order: of the list at the first automatic retry.
        """
        self.clears += bool(self.indexes)
        tis = self.indexes_of_items()
        if not (place := self.where(*tis)):
            return
        self.set_resend("item", resend)
        self.order_at_retry = order
        with self.connection_to(place, *tis):
            for index, (ti, trouble) in enumerate(itertools.zip_longest(tis, in_the_way[: len(tis)])):
                self.go_mapped(index, ti, trouble)
        self.order_at_retry = None

    @precondition(lambda self: self.indexes and not (self.was_moved or self.has_lost_a_record or self.late))
    @precondition(lambda self: self.approval != SHOWS_FIRST)
    @rule(index=st.integers(0, 3))
    def resend_mapped_in_order(self, index: int) -> None:
        """Nothing is in the way: what an index has returned, or a refusal of it names, is sent once more, and once;
        or the refusal says that a new run delivers it.
        """
        self.clear_the_way()
        self.deliver_mapped()
        index %= len(self.items)
        sent, ti = self.sent[self.items[index]], self.indexes[index]
        before = len(sent)
        for _ in range(4):  # a refusal may name another than the one before
            if len(sent) == before:
                named = ti.result["id"] if ti.result else self.told["item"][id(ti)]
                self.resend["item"] = [*self.resend["item"], named]
            self.deliver_mapped()
            if is_for_a_new_run(self.errors[id(ti)]):
                return
        assert len(sent) == before + 1, "resend is refused although nothing is wrong"

    @rule(
        runs=st.lists(
            st.tuples(
                st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
                st.tuples(troubles, troubles, troubles),
            ),
            min_size=2,
            max_size=3,
        ),
        to=st.sampled_from([HERE, HERE, ELSEWHERE, COLLEAGUE]),
    )
    def deliver_mapped_with_other_lists(
        self, runs: list[tuple[list[int], Sequence[str | None]]], to: str = HERE
    ) -> None:
        """Runs one after another, each with its choice of the items, in its order, some in trouble.

        :param to: where the connection leads in the last.
        """
        for number, (positions, in_the_way) in enumerate(runs, 1):
            if number == len(runs) and to != HERE and not self.has_forgotten:
                self.move_connection(to)
            known = sorted(self.items + self.removed)
            self.items = [known[at] for at in positions if at < len(known)] or known
            self.removed = [item for item in known if item not in self.items]
            self.deliver_mapped(in_the_way)

    @precondition(lambda self: len(self.items) > 1)
    @rule(indexes=st.permutations(range(4)), at_wait=st.booleans())
    def deliver_at_two_indexes(self, indexes: list[int], at_wait: bool = False) -> None:
        """One index; while it creates or uploads, or waits for a slot, its item moves to another index, and that runs,
        too. Each is cleared alone, or runs for the first time in a run that was cleared before.
        """
        tis = self.indexes_of_items()
        one, two = [index for index in indexes if index < len(tis)][:2]
        is_asked = at_wait and not self.sent[self.items[one]]  # after the wait, if nobody had sent it before
        if not (tis[one].try_number or self.clears or is_asked):
            return  # before its first try, an index of a run that was not cleared is not asked about: a limit
        if not (place := self.where(tis[one], tis[two])):
            return
        results: list[tuple[str, Any, BaseException | None]] = []

        def meanwhile() -> None:
            self.items[one], self.items[two] = self.items[two], self.items[one]
            self.clears += bool(tis[two].try_number)
            results.append((self.items[two], *self.result_of_mapped(tis[two])))

        with self.connection_to(place, tis[one], tis[two]):
            self.clears += bool(tis[one].try_number)
            if at_wait:
                self.let_a_task_wait(FULL)
                self.run.time.meanwhile = meanwhile
            else:
                self.death.meanwhile = meanwhile
            self.go_mapped(one, tis[one])
            self.death.meanwhile = None
        for item, result, error in results:
            self.judge(item, tis[two], result, error)

    def indexes_of_items(self) -> list[FakeTaskInstance]:
        for index in range(len(self.indexes), len(self.items)):
            self.indexes.append(self.task(functools.partial(self.item_of, index), map_index=index))
        return self.indexes[: len(self.items)]

    def go_mapped(self, index: int, ti: FakeTaskInstance, trouble: str | None = None) -> None:
        self.prepare_mapped(ti)
        item = self.items[index]
        result, error = self.go(item, ti, trouble)
        self.judge(self.items[index], ti, result, error, before=item)

    def comes_back(self, ti: FakeTaskInstance) -> bool:
        """Whether an index of the mapped task has its last item again, after another run of the task."""
        item, clears = self.last_items.get(ti.map_index, ("", 0))
        return item == dict(enumerate(self.items)).get(ti.map_index) and clears < self.clears - 1

    def prepare_mapped(self, ti: FakeTaskInstance) -> None:
        if ti.try_number:
            ti.clear()
        ti.clear_number = self.clears
        self.last_items[ti.map_index] = (self.items[ti.map_index], self.clears)

    def result_of_mapped(self, ti: FakeTaskInstance) -> tuple[Any, BaseException | None]:
        """Of an index that runs within the run of another."""
        self.prepare_mapped(ti)
        before = set(self.billed())
        result, error = self.run.result_of(ti)
        self.own[id(ti)] += [each for each in self.billed() if each not in before]
        return result, error

    def item_of(self, index: int) -> tuple[type, dict[str, Any]]:
        item = self.items[index]
        return self.delivery(item, operator_for(self.given), **self.input(), subject=item)

    @rule()
    def create(self) -> None:
        self.go_create()

    def go_create(self) -> None:
        self.clear("create")
        result, _ = self.go("create", self.tasks["create"])
        if result is not None and result != self.draft:
            self.draft, self.attached = result, None
            self.drafts.add(result)
        elif result is None and self.has_restored:
            self.draft = ""  # as the XComs that the others would get it from

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

    @rule(trouble=troubles, resend=ids)
    def deliver_in_steps(self, trouble: str | None = None, resend: str | None = None) -> None:
        """As a DAG does it: each task where the one before has succeeded."""
        self.set_resend("send", resend)
        self.go_create()
        if self.draft:
            self.attach()
        if self.attached:
            self.go_send(trouble)

    def clear(self, name: str) -> None:
        if self.tasks[name].try_number:
            self.tasks[name].clear()

    @precondition(lambda self: self.draft)
    @rule(move=st.booleans())
    def discard(self, move: bool) -> None:
        create, discard = self.tasks["create"], self.tasks["discard"]
        discard.upstream = {"create": create}
        # To another account, if the task that made the draft has told which one it was made in.
        move = move and any(made["transfer_id"] == self.draft for made in create.xcoms.get(MADE_KEY, ()))
        self.clear("discard")
        here, self.run.connection = self.run.connection, self.connections[ELSEWHERE if move else HERE]
        gone, error = self.go("discard", discard)
        self.run.connection = here
        assert error or (gone is (self.draft not in self.sent["send"]) and not move)

    def go(self, name: str, ti: FakeTaskInstance, trouble: str | None = None) -> tuple[Any, BaseException | None]:
        """Run a task to its end; the transfers that were billed meanwhile are judged."""
        self.versions = {Path(file).name: set() for file in self.files()}
        self.see_versions()
        self.wake_for(ti)
        before = set(self.billed())
        ti.state = "running"
        with mock.patch.object(client, "send", self.death.send), self.in_trouble(trouble):
            result, error = self.result_of(name, ti)
        ti.state = "failed" if error else "success"
        self.errors[id(ti)] = error
        if told := told_by(error):
            self.told[kind_of(name)][id(ti)] = told
        self.run.settle()
        self.make_room()
        self.count(name, error)
        self.sandbox.clear_faults()
        self.run.time.meanwhile, self.death.at = None, -1
        for sandbox in (self.sandbox, self.elsewhere):
            sandbox.advance_clock(60)  # the judge asks, too
        sent_by_others = set().union(*self.own.values())
        self.judge_theirs()
        for transfer_id in self.billed():
            if transfer_id not in before | self.sent_late:
                self.judge_sent(name, transfer_id, self.versions)
                if transfer_id not in sent_by_others:
                    self.own[id(ti)].append(transfer_id)
        return result, error

    @contextmanager
    def in_trouble(self, trouble: str | None) -> Iterator[None]:
        """Nothing else is in the way then. The service is back at the next try, credit after the task."""
        self.trouble = trouble
        sandboxes = (self.sandbox, self.elsewhere) if trouble else ()
        for sandbox in sandboxes:
            sandbox.clear_faults()
            if trouble == NO_CREDIT:
                sandbox.patch_account(billing="per_transfer", credits=0)
            elif trouble != NO_FILE:
                away = {"kind": "error", "status": 503, "method": "POST", "path": AWAY.get(trouble or "", "*")}
                sandbox.plan_faults(*[away] * 30)
        yield
        self.trouble = None
        for sandbox in sandboxes:
            sandbox.patch_account(billing="included")
            sandbox.clear_faults()

    def count(self, name: str, error: BaseException | None) -> None:
        met = sum(row["state"] == "triggered" for row in self.sandbox.faults())
        kind = "item" if name.startswith("Item") else name
        self.counts[f"given as {self.given}"] += 1
        self.counts.update({f"{kind} {'failed' if error else 'succeeded'}": 1, "faults met": met})

    def see_versions(self) -> None:
        for path in self.harness.files:
            if path.exists() and path.name in self.versions:
                self.versions[path.name].add(hashlib.sha256(path.read_bytes()).hexdigest())

    # The judge.

    def billed(self) -> list[str]:
        """Every transfer that was billed in either account, in the order of each."""
        return [row["transfer_id"] for row in self.rows("billed")]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return [row for each in (self.sandbox, self.elsewhere) for row in each.ledger() if row["kind"] == kind]

    def judge_sent(self, name: str, transfer_id: str, versions: dict[str, set[str]]) -> None:
        """:param versions: by file that was to be sent, the digests that it has had."""
        is_here = any(row["transfer_id"] == transfer_id for row in self.sandbox.ledger())
        sandbox = self.sandbox if is_here else self.elsewhere
        transfer = sandbox.transfer(transfer_id)
        # An index may have got another item between two tries.
        name = transfer["subject"] if name.startswith("Item") else name
        assert name in self.sent, f"{name} sent {transfer_id}"
        assert (transfer_id in self.drafts) is (name == "send")
        assert self.billed().count(transfer_id) == 1
        self.sent[name].append(transfer_id)
        alike = self.sent[name] if name.startswith("Item") else self.sent["deliver"] + self.sent["send"]
        named = self.named[kind_of(name)].intersection(alike)
        assert len(self.sent[name]) <= 1 + len(named), f"{name} is billed too often: {self.sent[name]}, named: {named}"
        emailed = [row["recipient"] for row in self.rows("emailed") if row["transfer_id"] == transfer_id]
        assert sorted(emailed) == sorted(DELIVERY["recipients"])
        meant = self.attached if name == "send" else versions
        stored = stored_digests(sandbox, transfer_id, transfer["files"])
        assert meant is not None
        sent = [sandbox.stored_file(transfer_id, file["id"])["sha256"] for file in transfer["files"]]
        is_approved = any(all(digest in body for digest in sent) for body in self.approved)
        assert self.approval == NOT_NEEDED or is_approved, f"nobody has approved {transfer_id}"
        assert stored.keys() == meant.keys(), (
            f"{transfer_id} was sent with {sorted(stored)}, wanted are {sorted(meant)}"
        )
        for file, digests in meant.items():
            assert stored[file] in digests, f"{file} was sent with bytes that no version of it had"

    def judge(
        self, name: str, ti: FakeTaskInstance, result: Any, error: BaseException | None, *, before: str = ""
    ) -> None:
        """What the task says against what was sent: :attr:`own` has what it may not hide.

        :param before: the item of the index when it began; it may have another since.
        """
        own, resend = self.own[id(ti)], self.resend[kind_of(name)]
        for each in resend:
            if each in own:  # its user knows of it, and of those before it
                own[:] = own[own.index(each) + 1 :]
        if error is None:
            assert result["id"] in set(self.billed()) - set(self.known), f"{result['id']} was not sent"
            sent = [*self.sent[name], *self.sent.get(before, ())]
            assert result["id"] in sent, f"{result['id']} is not what {name} has sent"
            assert (result["id"] in self.drafts) is (name == "send"), f"{result['id']} is the other delivery's"
            assert result["id"] not in resend or name == "send", f"{result['id']} is not sent once more"
            return
        # Who died says nothing, and who is shown a draft knows of no send.
        if own and not (isinstance(error, ProcessCrashed) or self.may_be_shown_as_draft):
            # An index of the mapped task may find what another has sent, and name that.
            told = list(itertools.chain(*self.sent.values())) if name.startswith("Item") else own[-1:]
            assert any(says_sent(error, each) for each in told), f"{name} sent {told}, and does not say so: {error!r}"


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
