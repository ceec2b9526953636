"""Replay a schedule of the model on the real operators, and compare what has happened with what the model says."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from itertools import compress, count
from operator import is_not
from pathlib import Path
from typing import Any, Final
from unittest import mock

from greenlet import getcurrent

from model.replay.comparison import Seen, find_differences
from model.replay.processes import CONNECTION, Fate, Gate, LateCall, Process, gates
from model.replay.sample import Schedule, Step
from model.replay.service import Service, make_late_call
from model.replay.tasks import CONTENTS, RETRIES, Instance, ProcessTaskInstance, Tasks
from model.world import MEMORIES, scope
from model.world import Process as ModelProcess
from outbound_transfer.airflow_compat.names import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
    timezone,
)
from outbound_transfer.airflow_compat.task_try import StaleTry
from outbound_transfer.client import Upload
from outbound_transfer.delivery.memory_store import StateLost
from outbound_transfer.delivery.task_facts import DISCARDED_KEY
from outbound_transfer.protocol.errors import DraftChanged
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.warehouse import config
from support.keyed_tasks import STATE_CONN_ID, sqlite_connection
from support.tasks import ProcessCrashed, SimulatedClock

#: Where a real process stops before what the model's does next.
GATES: Final = {
    **dict.fromkeys(("begin", "ATTACH"), Gate.BEGIN),
    **dict.fromkeys(("BEGUN", "DISCARDED", "HEARD", "FORGET", "RESUME"), Gate.WRITE),
    **dict.fromkeys(("WITHDRAW", "ANNOUNCE", "PLAN", "ATTACHED"), Gate.WRITE),
    **dict.fromkeys(("CLAIM_OLD", "CLAIM_KEY"), Gate.CLAIM),
    **dict.fromkeys(("RETRIEVE", "ATTACH_READ", "READ"), Gate.READ),
    **dict.fromkeys(("SEARCH", "SEARCH_SHARED"), Gate.LIST),
    **dict.fromkeys(("CONFIRM", "CONFIRM_SHARED"), Gate.ASK),
    **dict.fromkeys(("FILL", "UPLOAD"), Gate.UPLOAD),
    "CHECK": Gate.READ_FIRST,
    "CREATE": Gate.CREATE,
    "REMOVE": Gate.REMOVE,
    "DISCARD": Gate.DISCARD,
    "SEND": Gate.SEND,
}

#: What changes something at the service.
CALLS: Final = (Gate.CREATE, Gate.UPLOAD, Gate.REMOVE, Gate.DISCARD, Gate.SEND)

#: Writes of the model that may store what is stored already.
MAY_BE_OLD: Final = ("WITHDRAW", "PLAN", "ATTACHED")

#: A Retry-After that no call waits for, and one that is waited for.
_FOR_EVER, _IN_PROCESS = "9999999", "2"


class Differs(AssertionError):
    """What happens is not what the model says."""


class Replay:
    """One schedule on the real operators."""

    def __init__(self, service: Service, schedule: Schedule, name: str, folder: Path) -> None:
        self.service, self.schedule, self._folder, self._name = service, schedule, folder, name
        scenario = schedule.scenario
        self._rules = rules = scenario.rules
        self._clock = _Clock(service, self._note_wait)
        first_id = self._send_first() if rules.is_redelivery else ""
        self._first_id = first_id
        self.instances = [
            Instance(
                f"{kind}_{number}" if len(rules.kinds) > 1 and not rules.is_mapped else kind,
                kind,
                number if rules.is_mapped else -1,
                slot.state,
            )
            for number, (kind, slot) in enumerate(zip(rules.kinds, scenario.first().slots, strict=True))
        ]
        #: The task of the run that removes drafts; one that creates a draft asks for what it has removed.
        self._removing = Instance("remove", "discard")
        self._tasks = Tasks(name, first_id, is_deferrable="deferral" in scenario.limits)
        self._began = timezone.utcnow() - timedelta(minutes=1)
        self._clear_number = 0
        self.processes: dict[tuple[int, int], Process] = {}
        #: The arguments with which a deferred try goes on, by slot.
        self._deferred: dict[int, Any] = {}
        #: The real ids of the model's transfers, each with its connection, and what nobody knows.
        self.ids: dict[int, tuple[str, str]] = {}
        self.orphans: list[str] = []
        self._late: list[tuple[tuple[str, int, str], LateCall]] = []

    # The run.

    def run(self) -> None:
        """Replay the schedule.

        :raises Differs: something is not as the model says.
        """
        with self._environment(), gates(self._running):
            try:
                for at, step in enumerate(self.schedule.steps):
                    try:
                        self._do(step)
                    except Differs as error:
                        raise Differs(f"{error}\nat {at}. {step.event}\n{self.schedule}") from None
                seen = Seen(self.instances, self.ids, self.orphans)
                if differences := list(find_differences(self.service, self.schedule, seen)):
                    raise Differs("\n".join([*differences, str(self.schedule)]))
            finally:
                for process in self.processes.values():
                    process.abandon()

    @contextmanager
    def _environment(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict("os.environ", {CONNECTION: ""}))
            file = self._folder / f"{self._name}.db"
            if self._rules.is_row:
                environment = {"AIRFLOW_CONN_STATES": sqlite_connection(file), STATE_CONN_ID: "states"}
                stack.enter_context(mock.patch.dict("os.environ", environment))
            elif self._rules.keys:
                stack.enter_context(mock.patch.object(config, "find_local_file", return_value=file))
            yield

    def _running(self) -> Process | None:
        here = getcurrent()
        return next((each for each in self.processes.values() if each._greenlet is here), None)

    def _note_wait(self) -> None:
        if process := self._running():
            process.wait()

    def _do(self, step: Step) -> None:
        what, who = step.event.what, step.event.who
        if step.trouble == "try" or what == "goes on after its deferral":
            self._start(step, is_resumed=step.trouble != "try")
        elif step.trouble:
            HANDLERS[step.trouble](self, step)
        elif who is None:
            self._arrive(step)
        else:
            self._go_on(step)

    # Processes.

    def _start(self, step: Step, *, is_resumed: bool) -> None:
        assert step.event.who is not None
        number = step.event.who[0]
        model = next(each for each in step.after.processes if each.context[:2] == step.event.who)
        instance, context = self.instances[number], model.context
        if not is_resumed:
            instance.try_number += 1
            instance.xcoms.clear()
        instance.state = "running"
        others = [each for each in self.instances if each is not instance]
        deferred = self._deferred.pop(number, None)
        draft_id = ""
        if instance.kind in ("attach", "send"):
            draft_id = str(self.instances[0].result)
        ti = ProcessTaskInstance(
            partial(self._tasks.operator, instance, context.item, context.key, draft_id=draft_id),
            self._clock,
            RETRIES,
            try_number=instance.try_number,
            start_date=self._began,
            store=instance.store,
            clear_number=self._clear_number,
            map_index=instance.map_index,
            run_id=self._name,
            task_id=instance.task_id,
            other_tasks=int(context.has_other_tasks),
            other_indexes=len(others),
            upstream=self._upstream(number),
            instance=instance,
            of_run=self.instances,
            is_resumed=is_resumed,
        )
        ti.max_tries = instance.max_tries
        ti.xcoms = instance.xcoms
        process = Process(
            instance.kind,
            partial(self._execute, ti, deferred if is_resumed else None),
            self.service.connections[context.connection],
            self.service,
            first_id=self._first_id,
        )
        self.processes[step.event.who] = process
        process.start()
        self._note(step, process)

    def _upstream(self, number: int) -> dict[str, Any]:
        """Return the tasks that a task asks for XComs."""
        kind = self.instances[number].kind
        before = self.instances[:number] if kind in ("attach", "send") else [self._removing] if kind == "create" else []
        return {each.task_id: each for each in before}

    @staticmethod
    def _execute(ti: ProcessTaskInstance, deferred: Any) -> Any:
        operator, context = ti._operator(), ti.context()
        if deferred is None:
            return operator.execute(context=context)
        given = {**(deferred.kwargs or {}), "event": timezone.utcnow()}
        return operator.resume_execution(next_method=deferred.method_name, next_kwargs=given, context=context)

    def _process(self, step: Step) -> tuple[ModelProcess, Process]:
        model = step.process
        assert model is not None
        assert step.event.who is not None
        return model, self.processes[step.event.who]

    def _go_on(self, step: Step) -> None:
        model, process = self._process(step)
        if process.skip_to(_gate(model), may_be_old=model.next in MAY_BE_OLD):
            process.go()
        elif (process.is_alive or not _is_over(step)) and not (_is_unseen(model, step) or _is_behind(process, model)):
            raise Differs(f"the model's process is at {model.next}, the real one {_where(process)}")
        self._note(step, process)

    def _meet(self, step: Step, fate: Fate, **options: Any) -> None:
        """Let a process meet its fate at its next call."""
        model, process = self._process(step)
        is_there = fate is Fate.DIE or process.skip_to(_gate(model))
        if not is_there and not _is_behind(process, model):
            raise Differs(f"the model's process is at {model.next}, the real one {_where(process)}")
        if process.is_alive:
            process.go(fate, **options)
        elif is_there or options.get("ends") == "soon":
            process.error = ProcessCrashed()  # right before its end
        self._note(step, process)

    def _note(self, step: Step, process: Process) -> None:
        """Note what a process has made, and how it has ended."""
        who = step.event.who
        assert who is not None
        known = {*self.orphans, *(each for each, _ in self.ids.values())}
        for made in process.created:
            if made not in known:
                self._note_draft(step, made)
        new = Counter(step.after.messages) - Counter(step.before.messages)
        if new and process.late:
            self._late.append((next(iter(new)), process.late.pop()))
        is_over = _is_over(step)
        if is_over:
            process.skip_to(None)
        if process.is_alive:
            if is_over:
                raise Differs(f"the model's process has ended, the real one {_where(process)}")
            return
        if not is_over:
            return  # the model may have a step left that nobody sees
        del self.processes[who]
        self._end(who, process)

    def _note_draft(self, step: Step, transfer_id: str) -> None:
        if step.event.what == "creates a draft" and step.process:
            self.ids[int(step.event.detail)] = transfer_id, step.process.context.connection
        else:
            self.orphans.append(transfer_id)

    def _end(self, who: tuple[int, int], process: Process) -> None:
        """Let Airflow know how a process has ended, if it still runs the try."""
        instance = self.instances[who[0]]
        if instance.try_number != who[1] or instance.state != "running":
            if process.error is None and instance.kind == "create":
                instance.result = process.result  # it is what has returned last
            return
        instance.error, instance.result = process.error, process.result
        match process.error:
            case None:
                instance.state = "success"
            case TaskDeferred():
                instance.state, self._deferred[who[0]] = "deferred", process.error
            case AirflowFailException() | AirflowSkipException():
                instance.state = "refused"
            case DraftChanged() if instance.kind == "send":
                instance.state = "refused"
            case _:
                instance.state = "failed"

    # What arrives late, and from outside.

    def _arrive(self, step: Step) -> None:
        gone = Counter(step.before.messages) - Counter(step.after.messages)
        at = next(at for at, (message, _) in enumerate(self._late) if message in gone)
        _, late = self._late.pop(at)
        make_late_call(late.settings, late.request)

    def clear(self, step: Step) -> None:
        numbers = [int(each) for each in re.findall(r"task (\d+)", step.event.what)]
        self._clear_number += 1
        for number in numbers:
            self.instances[number].clear()

    def crash(self, step: Step) -> None:
        fate = Fate.DIE_AFTER if step.event.detail.startswith("after") else Fate.DIE
        self._kill(step, fate)

    def crash_in_call(self, step: Step) -> None:
        self._kill(step, Fate.DIE_IN_CALL)

    def _kill(self, step: Step, fate: Fate) -> None:
        self._meet(step, fate)
        assert step.event.who is not None
        self.instances[step.event.who[0]].state = "failed"

    def give_up(self, step: Step) -> None:
        assert step.event.who is not None
        self.instances[step.event.who[0]].state = "failed"

    def wait(self, step: Step) -> None:
        is_deferrable = "deferral" in self.schedule.scenario.limits
        if is_deferrable or self.schedule.number % 2:
            self._meet(step, Fate.FAULT, fault={"status": 429, "retry_after": _IN_PROCESS})
        else:
            self._meet(step, Fate.FULL)

    def lose_response(self, step: Step) -> None:
        self._meet(step, Fate.LOSE)

    def fail(self, step: Step) -> None:
        self._meet(step, Fate.FAULT, fault={"status": 429, "retry_after": _FOR_EVER}, ends="soon")

    def defer(self, step: Step) -> None:
        self._meet(step, Fate.FAULT, fault={"status": 409, "code": "transfer_limit_reached"}, ends="soon")

    def fail_for_good(self, step: Step) -> None:
        model, _ = self._process(step)
        refusals = {"FILL": {"status": 413}, "SEND": {"status": 403, "code": "sending_not_permitted"}}
        self._meet(step, Fate.FAULT, fault=refusals[model.next], ends="for good")

    def lose_memory(self, step: Step) -> None:
        self._change_memory(step, lambda stored: None)

    def restore_memory(self, step: Step) -> None:
        self._change_memory(
            step, lambda stored: {**stored, "phase": "empty", "draft_id": "", "identity": "", "files": {}}
        )

    def _change_memory(self, step: Step, changed: Callable[[Any], Any]) -> None:
        """Change what the newest try has stored; None deletes it."""
        at = next(compress(count(), map(is_not, step.before.stores, step.after.stores)), None)
        if at is None:  # it had stored nothing else
            return
        if at < len(self.instances) and not self._rules.is_row:
            values = self.instances[at].store.values
            newest = max((key for key in values if "_try_" in key), key=lambda key: int(key.rpartition("_")[2]))
            if memory := changed(json.loads(values[newest])):
                values[newest] = json.dumps(memory)
            else:
                del values[newest]
            return
        is_task = at < len(self.instances)
        key = None if is_task else self._tasks.delivery_key(self._rules.keys[at - len(self.instances)])
        with config.require_memory_place("a test").open().warehouse.transaction() as tx:
            tx.execute("SELECT memory FROM outbound_transfer_memory WHERE delivery_key IS ?", (key,))
            stored = json.loads(tx.fetchone()[0])
            memory = {name: new for name, value in stored.items() if (new := changed(value))}
            tx.execute(
                "UPDATE outbound_transfer_memory SET memory = ?, sent_at = NULL WHERE delivery_key IS ?",
                (json.dumps(memory), key),
            )

    def delete_task(self, step: Step) -> None:
        (number,) = map(int, re.findall(r"task (\d+)", step.event.what))
        self.instances[number].delete()

    def set_clock_back(self, step: Step) -> None:
        self._began += timedelta(hours=2)  # what was sent by the service's clock is before the run

    def keep(self, step: Step) -> None:
        """The next start sees it."""

    def rename(self, step: Step) -> None:
        self.instances[0].state, self.instances[1].state = "removed", "new"

    def rename_back(self, step: Step) -> None:
        self.instances[0].state, self.instances[1].state = "queued", "removed"

    def hide(self, step: Step) -> None:
        number = int(step.event.what.split()[1])
        transfer_id, connection = self.ids[number]
        self.service.account(connection).remove(transfer_id)

    def send_twin(self, step: Step) -> None:
        self.ids[len(step.before.transfers)] = self._send_as_others(self._tasks, "X"), "first"

    def pick_up(self, step: Step) -> None:
        self.service.account("first").sandbox.pickup(self._first_id, "eve@example.com")

    def remove_draft(self, step: Step) -> None:
        draft_id, connection = self.ids[int(step.event.what.split()[-1])]
        with self.service.client(connection) as client:
            client.discard_transfer(draft_id)
            self._removing.xcoms[DISCARDED_KEY] = {"transfer_id": draft_id, "account": client.settings.account}

    def restore(self, step: Step) -> None:
        number = int(re.findall(r"restored: (\d+)", step.event.what)[0])
        ours, connection = self.ids[number]
        with self.service.client(connection) as client:
            new = build_new_transfer(subject=f"Theirs of {self._name}", recipients=["zoe@example.com"])
            theirs = client.create_transfer(new).id
            upload = Upload("theirs.csv", 3, lambda: iter([b"bad"]))
            client.attach_file(theirs, upload)
        account = self.service.account(connection)
        account.remove(ours)
        account.rename(theirs, ours)

    def _send_first(self) -> str:
        tasks = Tasks(self._name)
        return self._send_as_others(tasks, "X", more_recipients=["eve@example.com"])

    def _send_as_others(self, tasks: Tasks, item: str, more_recipients: list[str] | None = None) -> str:
        given = tasks.new_transfer(item)
        given["recipients"] = [*given["recipients"], *(more_recipients or ())]
        content = CONTENTS[item]
        with self.service.client("first") as client:
            draft = client.create_transfer(build_new_transfer(**given))
            upload = Upload("report.csv", len(content), lambda: iter([content]))
            client.attach_file(draft.id, upload)
            return client.send_transfer(draft.id).id


def _where(process: Process) -> str:
    return f"has ended: {process.error!r}" if process.gate is None else f"is at {process.gate.name}"


def _is_behind(process: Process, model: ModelProcess) -> bool:
    """Return whether the real process has ended rightly, and the model's has steps left that change nothing.

    The real one also stores what is no news, and is told there that a later try has begun. After a lost response, it
    reads whether it has sent before it checks anything else.
    """
    if process.has_lost_response and not process.is_alive and process.error is None:
        return True
    is_told = not process.is_alive and isinstance(process.error, StateLost | StaleTry)
    return is_told and _gate(model) not in CALLS


def _is_over(step: Step) -> bool:
    """Return whether the process of a step has ended with it."""
    return all(each.context[:2] != step.event.who for each in step.after.processes)


def _gate(model: ModelProcess) -> Gate | None:
    """Return where a real process stops before what the model's does next; None if nobody sees that."""
    if model.next == "SETTLED":
        return Gate.CLAIM if model.context.key else None
    return GATES.get(model.next)


def _is_unseen(model: ModelProcess, step: Step) -> bool:
    """Return whether what the model's process does is nothing that anybody sees."""
    if _gate(model) is None:
        return True
    here = scope(model.context.connection).account
    return model.next == "RETRIEVE" and MEMORIES[model.memory].scope.account != here


class _Clock(SimulatedClock):
    """One clock for all processes and both accounts."""

    def __init__(self, service: Service, at_wait: Callable[[], object]) -> None:
        self.now, self.waits, self._service, self._at_wait = 0.0, [], service, at_wait

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._service.advance_clock(seconds)
        self._at_wait()


#: What lets each trouble happen.
HANDLERS: Final[dict[str, Callable[[Replay, Step], object]]] = {
    **dict.fromkeys(("clear", "clear one", "clear an index"), Replay.clear),
    "crash": Replay.crash,
    "crash in a call": Replay.crash_in_call,
    "zombie": Replay.give_up,
    "wait": Replay.wait,
    "lost response": Replay.lose_response,
    "failure": Replay.fail,
    "deferral": Replay.defer,
    "failure for good": Replay.fail_for_good,
    **dict.fromkeys(("lost memory", "memory lost during a send"), Replay.lose_memory),
    **dict.fromkeys(("lost memory of a key", "memory of a key lost during a send"), Replay.lose_memory),
    **dict.fromkeys(("older memory", "older memory of a key"), Replay.restore_memory),
    "clock behind": Replay.set_clock_back,
    "deleted task": Replay.delete_task,
    **dict.fromkeys(("order", "early order"), Replay.keep),
    **dict.fromkeys(("other input", "other file", "changed source", "first input"), Replay.keep),
    "other file of task 1": Replay.keep,
    **dict.fromkeys(("key given", "key change", "key removed"), Replay.keep),
    **dict.fromkeys(("new key", "other user", "other account", "first scope"), Replay.keep),
    **dict.fromkeys(("early other account", "late other account"), Replay.keep),
    "twin": Replay.send_twin,
    **dict.fromkeys(("deleted transfer", "deleted before it was heard of"), Replay.hide),
    "new name": Replay.rename,
    "former name": Replay.rename_back,
    **dict.fromkeys(("pickup", "pickup after the check"), Replay.pick_up),
    "restored service": Replay.restore,
    "removed by a task": Replay.remove_draft,
}
