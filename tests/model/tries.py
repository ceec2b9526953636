"""What a process of a try does: one call or one write at a time, as the production's table decides.

Only the executor (:mod:`outbound_transfer.delivery.delivery`) is modelled. What a try does next comes from
:func:`.decide`; what it remembers is a :class:`.Memory`, written by the production's functions; and whether somebody
else may have sent it is for :class:`.TaskFacts` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from model.world import (
    CONNECTIONS,
    GONE,
    MEMORIES,
    PEOPLE,
    SIZES,
    Context,
    Event,
    Process,
    Slot,
    Store,
    Transfer,
    World,
    change,
    input_of,
    intern,
    new_transfer,
    remember,
    replaced,
    scope,
    without,
)
from outbound_transfer.delivery.decision import (
    Action,
    ById,
    Check,
    Evidence,
    Input,
    Phase,
    Reason,
    Search,
    Step,
    decide,
)
from outbound_transfer.delivery.memory import Likeness, Memory, Writer
from outbound_transfer.delivery.task_facts import TaskFacts
from outbound_transfer.files.attached import AttachedFile

Steps = Iterator[tuple[Event, World]]

#: What a draft holds once it is filled.
FILES: Final = {"report.csv": AttachedFile(1, "digest", "id")}

#: What needs a write of the memory, which fails once a later try has begun.
_STORES: Final = (
    "BEGUN",
    "DISCARDED",
    "HEARD",
    "FORGET",
    "CREATE",
    "RESUME",
    "WITHDRAW",
    "ANNOUNCE",
)

#: What ends a try.
_ENDS: Final = ("RETURN", "REFUSE")

#: The calls that have an effect on a draft, by the step that makes them.
_CALLS: Final = {"FILL": "upload", "SEND": "send", "DISCARD": "discard"}

#: States of a task that runs, or is going to.
_ACTIVE: Final = ("running", "deferred")


class Rules(NamedTuple):
    """What a scenario models, and which mend is taken out of the executor.

    :ivar kinds: of each task: deliver (one task does all), or create, attach and send.
    :ivar keys: the delivery keys that tasks may have; the first is theirs at first.
    :ivar is_row: a task's memory is one row; otherwise each try has a record of its own.
    :ivar is_instant: nothing happens between the last checks and the send, which are milliseconds apart.
    :ivar checks_once: before the first attempt at the send only.
    :ivar forgets_question: a later try does not inherit it.
    :ivar ignores_identity: an id alone identifies a draft.
    :ivar ignores_key: what was begun under another delivery key is not settled.
    :ivar leaves_taken_key: nor while another task goes on with it.
    :ivar is_unfenced: a try that Airflow has given up goes on reading and writing the memory.
    :ivar keeps_hand_over: a draft that is continued still counts as handed on.
    :ivar hands_on_unwritten: a try hands on a draft that it has only looked at.
    :ivar discards_handed_on: a draft is discarded while it still counts as handed on.
    :ivar loads_first: a try loads the memory before it excludes the earlier ones.
    :ivar discards_sending: a draft is discarded while it still counts as one that may be sent.
    :ivar forgets_refusal: that a discard was refused, as the draft is sent, is not stored.
    :ivar forgets_read: that a read shows it sent is not stored.
    :ivar keeps_checks: what was asked before a wait among the checks is not asked again.
    :ivar asks_after_waits: three tasks, mapped: a retry, and a run that was cleared, do not open the question.
    :ivar attaches_unasked: three tasks: files are removed and uploaded without asking whether the try is still wanted.
    """

    kinds: tuple[str, ...] = ("deliver",)
    keys: tuple[str, ...] = ()
    is_mapped: bool = False
    is_redelivery: bool = False
    is_row: bool = False
    is_instant: bool = True
    checks_once: bool = False
    forgets_question: bool = False
    ignores_identity: bool = False
    ignores_key: bool = False
    leaves_taken_key: bool = False
    is_unfenced: bool = False
    keeps_hand_over: bool = False
    hands_on_unwritten: bool = False
    discards_handed_on: bool = False
    loads_first: bool = False
    discards_sending: bool = False
    forgets_refusal: bool = False
    forgets_read: bool = False
    keeps_checks: bool = False
    asks_after_waits: bool = False
    attaches_unasked: bool = False


class _Facts(TaskFacts):
    """What Airflow says of a try of the model."""

    is_mapped = False

    def __init__(self, context: Context, *, is_mapped: bool) -> None:
        self.writer, self.delivery_key, self.is_mapped = writer_of(context), context.key, is_mapped
        self.clear_number = context.clear_number
        self._has_removed_tasks = context.has_other_tasks

    def has_removed_tasks(self) -> bool:
        return self._has_removed_tasks


class Executor:
    """The steps of every process, by the rules of a scenario."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.facts = cache(lambda context: _Facts(context, is_mapped=rules.is_mapped))
        self.decide = cache(self._decide)
        self.prepared = cache(self._prepared)

    def steps(self, world: World, index: int) -> Steps:
        """Yield what a process may do next, the usual outcome first."""
        process = world.processes[index]
        is_first_store = process.next == "BEGUN" and self.rules.loads_first
        if process.next in _STORES and not is_first_store and not self._is_own(world, process):
            yield self._end(self._event(process, "stores", "a later try has begun: it stops"), world, index, "failed")
        else:
            yield getattr(self, f"_{process.next.lower()}")(world, index, process)

    # What others question.

    def kind(self, number: int) -> str:
        return self.rules.kinds[number]

    def makers(self, numbers: tuple[int, ...]) -> list[int]:
        """Return those of the tasks that make drafts."""
        return [number for number in numbers if self.kind(number) in ("deliver", "create")]

    def draft(self, process: Process) -> int:
        """Return the draft that a process works on."""
        return int(MEMORIES[process.memory].draft_id)

    def is_unsent(self, world: World, process: Process) -> bool:
        """Return whether the draft that a process works on is still one."""
        return world.transfers[self.draft(process)].status == "draft"

    def is_in_an_instant(self, world: World) -> int | None:
        """Return the process that is between its last checks and the send, if nothing else happens there."""
        if self.rules.is_instant:
            for index, process in enumerate(world.processes):
                is_late = process.is_late or process.then == "unchecked"
                if process.step == "SEND" and not is_late and self.is_checked(process):
                    return index
        return None

    def is_checked(self, process: Process) -> bool:
        """Return whether a process has made a check for its next attempt at the send."""
        has_checked = self.rules.is_redelivery and process.outdated == "NO"
        return process.wanted == "YES" or process.search == "NONE" or has_checked

    def call(self, world: World, process: Process) -> tuple[str, int, str] | None:
        """Return the call with an effect on a draft that a process is at; None if it is at none."""
        if process.next in _CALLS and self.is_unsent(world, process):
            return _CALLS[process.next], self.draft(process), ""
        return None

    def apply(self, world: World, call: tuple[str, int, str], writer: tuple[int, int] = (-1, 0)) -> World:
        """Return the world in which the service has applied a call of a process that is gone."""
        what, number, _ = call
        if what == "send":
            return self.sent(world, number)
        return gone(world, number) if what == "discard" else filled(world, number, writer)

    def upstream(self, number: int) -> range:
        """Return the tasks before one that share its draft: of three tasks, mapped, those of its index."""
        kinds = self.rules.kinds[: number + 1]
        first = max((at for at, kind in enumerate(kinds) if kind == "create"), default=number)
        return range(first, number)

    def may_start(self, world: World, number: int) -> bool:
        """Return whether all tasks upstream have succeeded."""
        return all(world.slots[each].state == "success" for each in self.upstream(number))

    # Evidence and decisions.

    def evidence(self, process: Process) -> Evidence:
        memory, is_settling = MEMORIES[process.memory], process.mode == "settle"
        is_shared = self._is_shared(process)
        is_asked = not is_shared or self._cannot_search(process)
        return Evidence(
            phase=memory.phase,
            input=Input.OTHER if is_settling else input_evidence(memory, process.context, is_shared=is_shared),
            by_id=ById[process.by_id],
            question=not is_settling and memory.question is not None and is_asked,
            search=Search[process.search],
            is_outdated=Check[process.outdated],
            is_wanted=Check[process.wanted],
        )

    def _decide(self, process: Process) -> Process:
        """Return the process with what it does next, as the table says."""
        memory = MEMORIES[process.memory]
        if process.mode == "settle" and memory.phase is Phase.EMPTY:
            return change(process, next="SETTLED")
        action, reason = decide(Step[process.step], self.evidence(process))
        if process.mode == "settle" and action is Action.REFUSE:
            reason = Reason.OTHER_KEY
        if action is not Action.REFUSE:
            return change(process, next=self.discarding(process) if action is Action.DISCARD else action.name)
        assert reason is not None
        if process.step == "SEND":  # its own unsent draft is discarded first
            return change(process, next=self.discarding(process), then=reason.name)
        return change(process, next="REFUSE", then=reason.name)

    def discarding(self, process: Process, *, is_unsent: bool = False) -> str:
        """Return the first step of a discard: store that the draft was not sent, if that is known."""
        is_refused = process.step == "SEND" and not process.in_doubt
        phase, is_known = MEMORIES[process.memory].phase, is_unsent or is_refused or process.by_id == "DRAFT"
        is_withdrawn = {
            Phase.DRAFT: True,
            Phase.HANDED_ON: not self.rules.discards_handed_on,
            Phase.SENDING: is_known and not self.rules.discards_sending,
        }
        return "WITHDRAW" if is_withdrawn.get(phase, False) else "DISCARD"

    def _is_shared(self, process: Process) -> bool:
        """Return whether other tasks fill and send the draft: the one that sends it searches, and knows its files."""
        return self.rules.kinds[process.context.slot] == "create"

    def _prepared(self, process: Process) -> Process:
        """Return the process with the question that Airflow's facts raise, and what it does next."""
        context, memory = process.context, MEMORIES[process.memory]
        is_shared = self._is_shared(process)
        asked = new_transfer(context.item, is_shared=is_shared)
        is_own = memory.input is not None and not memory.input.differences(asked, None)
        is_elsewhere = memory.question is not None or self.rules.is_mapped
        if question := self.facts(context).find_question(memory, is_own=is_own):
            is_elsewhere |= is_own or memory.input is None
            question = question.or_wider(Likeness.SAME_PEOPLE) if is_shared else question
            memory = replace(memory, question=question.or_wider(memory.question))
        if memory.input is None:
            memory = replace(memory, input=input_of(context.item, context.connection, is_shared=is_shared))
        process = change(process, memory=remember(memory), is_elsewhere=is_elsewhere, mode="deliver", step="PREPARE")
        return self.decide(process)

    # What all steps share.

    def _go(self, event: Event, world: World, index: int, process: Process, **changes: Any) -> tuple[Event, World]:
        """Return the world in which a process goes on, or ends if that is what it has decided."""
        if process.next == "RETURN":
            if process.by_id in ("GONE", "HIDDEN"):
                changes["broken"] = world.broken or "a task returns what the service does not show"
            return self._end(event, world, index, "success", self.draft(process), **changes)
        if process.next == "REFUSE":
            number, named = process.context.slot, self._named(process)
            slots = replaced(world.slots, number, change(world.slots[number], named=named))
            changes = {"broken": world.broken or self._untrue(world, process), "slots": slots, **changes}
            detail = f"{event.detail}; it refuses: {process.then}".removeprefix("; ")
            return self._end(event._replace(detail=detail), world, index, "refused", **changes)
        return event, world._replace(processes=replaced(world.processes, index, process), **changes)

    def _decided(self, event: Event, world: World, index: int, process: Process, **changes: Any) -> tuple[Event, World]:
        return self._go(event, world, index, self.decide(process), **changes)

    def _end(
        self, event: Event, world: World, index: int, state: str, result: int = -1, **changes: Any
    ) -> tuple[Event, World]:
        """Return the world without the process. Its task has ended with it, unless Airflow has given the try up."""
        process = world.processes[index]
        context = process.context
        after = world._replace(processes=without(world.processes, index), **changes)
        slot = after.slots[context.slot]
        row = process.store
        if state == "success" and context.key and self._is_own(world, process) and after.stores[row].records:
            after = after._replace(stores=replaced(after.stores, row, change(after.stores[row], is_sent=True)))
        if slot.tries != context.number or slot.state != "running":
            return event, after
        if state == "success" and not after.broken:
            after = after._replace(broken=self._broken_by_success(after, slot, context, result))
        ended = change(slot, state=state, result=result)
        return event, after._replace(slots=replaced(after.slots, context.slot, ended))

    def _broken_by_success(self, world: World, slot: Slot, context: Context, result: int) -> str:
        if self.rules.kinds[context.slot] in ("create", "attach"):
            return ""
        transfer = world.transfers[result]
        item = context.published[1] if context.published else context.item
        if transfer.status not in ("sent", "hidden") or transfer.item != item:
            return "a task succeeds, and what it returns is not its delivery, sent"
        is_of_key = bool(transfer.key) and transfer.key == context.key
        if transfer.maker not in (context.slot, *self.upstream(context.slot)) and not is_of_key:
            return "a task succeeds, and returns what another has sent"
        return ""

    @staticmethod
    def _named(process: Process) -> str:
        """Return the transfer that the text of a refusal names."""
        return str(process.found) if process.found >= 0 else MEMORIES[process.memory].draft_id

    def _untrue(self, world: World, process: Process) -> str:
        """Return what is wrong about what a refusal says; "" if it is so."""
        memory, context = MEMORIES[process.memory], process.context
        here, then = scope(context.connection), memory.scope
        has_moved = (here.account, here.key_check) != (then.account, then.key_check)
        transfer = world.transfers[int(memory.draft_id)] if memory.draft_id else GONE
        found = world.transfers[process.found] if process.found >= 0 else GONE
        was_sent, is_settling = transfer.status in ("sent", "hidden"), process.mode == "settle"
        is_other, is_shown = transfer.item != context.item, is_visible(transfer, context.connection)
        is_so = {
            "OTHER_INPUT": was_sent and (is_other or is_settling),
            "MADE_ELSEWHERE": has_moved and memory.phase in (Phase.DRAFT, Phase.SENDING),
            "IN_DOUBT": memory.phase is Phase.SENDING and not (is_shown and transfer.item == memory.identity),
            "CANNOT_SEARCH": has_moved,
            "OTHER_KEY": memory.phase is Phase.SENDING or was_sent or has_moved,
            "MAY_BE_SENT": found is not GONE and PEOPLE[found.item] == PEOPLE[context.item],
        }
        return "" if is_so.get(process.then, True) else f"it refuses, and what it says is not so: {process.then}"

    def _event(self, process: Process, what: str, detail: str = "") -> Event:
        return Event((process.context.slot, process.context.number), what, detail)

    def _is_own(self, world: World, process: Process) -> bool:
        return self.rules.is_unfenced or world.stores[process.store].claim == process.claim

    def _save(self, world: World, process: Process, memory: Memory) -> tuple[World, Process]:
        """Return the world and the process once a memory is stored."""
        number = remember(memory)
        store = self._stored(world.stores[process.store], process, number)
        return world._replace(stores=replaced(world.stores, process.store, store)), change(process, memory=number)

    def _stored(self, store: Store, process: Process, memory: int, **changes: Any) -> Store:
        number = process.context.number
        is_row = self.rules.is_row or process.store >= len(self.rules.kinds)
        others = () if is_row else tuple(each for each in store.records if each[0] != number)
        return change(store, records=tuple(sorted((*others, (number, memory))))[-2:], **changes)

    def _after(self, process: Process, action: Action, **known: Any) -> Memory:
        memory, writer = MEMORIES[process.memory], self.writer(process)
        return memory.after(action, writer, **known)

    def writer(self, process: Process) -> Writer:
        return writer_of(process.context, is_keyed=process.store >= len(self.rules.kinds))

    def sent(self, world: World, number: int, **changes: Any) -> World:
        """Return the world in which a draft has been sent."""
        draft = world.transfers[number]
        broken = world.broken
        if draft.maker == -2:
            broken = "the draft of a stranger is sent"
        elif draft.content != "whole":
            broken = "a transfer is sent with the wrong files"
        elif draft.is_outdated:
            broken = "a recipient who has picked up gets it again"
        earlier = sum(each.status in ("sent", "hidden") for each in world.transfers)
        transfers = replaced(world.transfers, number, change(draft, status="sent", after=earlier))
        messages = tuple(each for each in world.messages if each[1] != number)
        return world._replace(transfers=transfers, messages=messages, broken=broken, **changes)

    # The beginning.

    def _begin(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        context = process.context
        number = context.slot
        store = world.stores[number]
        event = self._event(process, "begins")
        if store.claim > context.number and not self.rules.is_unfenced:
            return self._end(event._replace(detail="a later try has begun: it stops"), world, index, "failed")
        at, newest = next((each for each in reversed(store.records) if each[0] <= context.number), (0, -1))
        expected = max(store.claim, context.number if context.is_resumed else context.number - 1)
        is_complete = at >= expected
        memory = remember(self.begun(newest, context, is_complete=is_complete))
        begun = change(
            process,
            next="BEGUN",
            store=number,
            claim=context.number,
            memory=memory,
            own=memory,
            is_complete=is_complete,
            is_again=context.is_resumed,
            outdated=self._not_checked,
        )
        event = event._replace(detail=MEMORIES[memory].phase.value + ("" if is_complete else ", a memory is missing"))
        after = store if self.rules.loads_first else change(store, claim=context.number)
        return self._go(event, world, index, begun, stores=replaced(world.stores, number, after))

    def _begun(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Store what a try begins with."""
        number, store = process.context.slot, world.stores[process.context.slot]
        after = self._stored(store, process, process.memory, claim=max(store.claim, process.claim))
        event, world = (
            self._event(process, "stores what it begins with"),
            world._replace(stores=replaced(world.stores, number, after)),
        )
        return self._go(event, world, index, self._located(process, MEMORIES[process.own]))

    def _located(self, process: Process, own: Memory) -> Process:
        """Return the process with what it has to settle first, if the task has worked elsewhere."""
        before, key = own.scope, process.context.key
        is_here = (before.account, before.delivery_key) == (scope(process.context.connection).account, key)
        if before.delivery_key and not is_here and not self.rules.ignores_key:
            return change(process, next="CLAIM_OLD", mode="settle")
        if not key:
            return self.prepared(process)
        if not before.delivery_key and not self.rules.ignores_key:
            return self.decide(change(process, mode="settle"))
        return change(process, next="CLAIM_KEY")

    @property
    def _not_checked(self) -> str:
        return "OPEN" if self.rules.is_redelivery else "NO"

    def begun(
        self,
        stored: int,
        context: Context,
        *,
        is_complete: bool,
        is_keyed: bool = False,
        question: Likeness | None = None,
    ) -> Memory:
        """Return the memory as a try begins with it.

        :param stored: the memory that was found; -1 if none was.
        :param is_keyed: whether it is the memory of a delivery key.
        """
        writer = writer_of(context, is_keyed=is_keyed)
        here = scope(context.connection, context.key if is_keyed else "")
        before = MEMORIES[stored] if stored >= 0 else Memory(writer, here)
        if not is_complete:
            question = self.facts(context).missing_memory.or_wider(question)
        memory = before.continued(writer, question, is_complete=is_complete)
        if self.rules.forgets_question:
            memory = replace(memory, question=question)
        return memory

    def _claim_old(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Settle what the task has begun under another key; a retry does, while another task goes on with it."""
        context, own = process.context, MEMORIES[process.memory]
        number = self._rule(own.scope.delivery_key)
        row = world.stores[number]
        event = self._event(process, "looks at what it has begun under another key")
        old = change(process, store=number, claim=row.claim, mode="settle")
        newest = row.records[-1][1] if row.records else -1
        if not row.is_sent and row.owner not in (-1, context.slot) and world.slots[row.owner].state in _ACTIVE:
            event = event._replace(detail="it is in use")
            if self.rules.leaves_taken_key:
                return self._go(event, world, index, change(process, next="SETTLED"))
            return self._end(event, world, index, "failed")
        if row.is_sent:
            return self._decided(event, world, index, change(old, memory=newest))
        memory = self.begun(newest, context, is_complete=newest >= 0, is_keyed=True)
        old = change(old, claim=row.claim + 1, memory=remember(memory))
        claimed = self._stored(row, old, old.memory, claim=old.claim, owner=context.slot)
        world = world._replace(stores=replaced(world.stores, number, claimed))
        return self._go(event, world, index, self.decide(old))

    def _rule(self, key: str) -> int:
        return len(self.rules.kinds) + self.rules.keys.index(key)

    def _settled(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Go on with the task's own memory, or with that of its key."""
        context, question = process.context, MEMORIES[process.memory].question
        if world.stores[context.slot].claim != context.number:
            return self._end(self._event(process, "a later try has begun: it stops"), world, index, "failed")
        own = self._reset(process)
        own = change(own, store=context.slot, claim=context.number, question=question.name if question else "")
        if context.key:
            return self._claim_key(world, index, own)
        own_memory = MEMORIES[process.own]
        memory = replace(own_memory, question=question.or_wider(own_memory.question)) if question else own_memory
        world, own = self._save(world, own, memory)
        return self._go(self._event(process, "goes on without a key"), world, index, self.prepared(own))

    def _claim_key(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        context = process.context
        if world.stores[context.slot].claim != context.number:
            return self._end(self._event(process, "stores", "a later try has begun: it stops"), world, index, "failed")
        here = scope(context.connection, context.key)
        before = MEMORIES[process.own].scope
        was_here = (before.account, before.delivery_key) == (here.account, here.delivery_key)
        left_open, question = process.question, MEMORIES[process.own].question
        question = Likeness[left_open].or_wider(question) if left_open else question
        world, process = self._save(world, process, Memory(writer_of(context), here, question=question))
        number = self._rule(context.key)
        row = world.stores[number]
        event = self._event(process, "claims its key")
        newest = row.records[-1][1] if row.records else -1
        if row.is_sent:
            process = change(process, store=number, claim=row.claim, memory=newest, mode="deliver")
            return self._decided(event._replace(detail="it is sent"), world, index, process)
        is_active = row.owner not in (-1, context.slot) and world.slots[row.owner].state in _ACTIVE
        if is_active:
            return self._end(event._replace(detail="it is in use"), world, index, "failed")
        is_complete = newest >= 0 or not was_here
        memory = self.begun(newest, context, is_complete=is_complete, is_keyed=True, question=question)
        process = change(process, store=number, claim=row.claim + 1, memory=remember(memory), is_complete=is_complete)
        claimed = self._stored(row, process, process.memory, claim=process.claim, owner=context.slot)
        world = world._replace(stores=replaced(world.stores, number, claimed))
        return self._go(event, world, index, self.prepared(process))

    # What there is already.

    def _retrieve(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        seen = self._seen(world, process)
        event = self._event(process, "reads the transfer", seen.lower())
        process = change(process, by_id=seen)
        if seen == "SENT":
            if MEMORIES[process.memory].phase is not Phase.SENDING and not self.rules.forgets_read:
                return self._go(event, world, index, change(process, next="HEARD"))
            world = self._heard_of(world, process)
        return self._decided(event, world, index, process)

    def _heard_of(self, world: World, process: Process) -> World:
        """Return the world in which a try has heard that its draft was sent, and may store it."""
        number = self.draft(process)
        if not self._is_own(world, process):
            return world
        transfer = change(world.transfers[number], is_heard=True)
        return world._replace(transfers=replaced(world.transfers, number, transfer))

    def _heard(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Store that the draft was sent: it may be deleted before the next try looks for it."""
        world, process = self._save(world, process, replace(MEMORIES[process.memory], phase=Phase.SENDING))
        world, event = self._heard_of(world, process), self._event(process, "stores that it was sent")
        if process.then:
            return self._go(event, world, index, change(process, next="REFUSE"))
        return self._decided(event, world, index, process)

    def _seen(self, world: World, process: Process) -> str:
        """Return what the remembered id shows."""
        memory, context = MEMORIES[process.memory], process.context
        here, then = scope(context.connection), memory.scope
        if here.account != then.account:
            return "HIDDEN"
        transfer = world.transfers[int(memory.draft_id)]
        if transfer.status == "discarded":
            return "DISCARDED"
        if not is_visible(transfer, context.connection):
            return "GONE" if here.key_check == then.key_check else "HIDDEN"
        if transfer.item != memory.identity and not self.rules.ignores_identity:
            return "GONE"
        return transfer.status.upper()

    def _search(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        found = self._find(world, process)
        search = "NONE" if found < 0 else "FOUND"
        if self._cannot_search(process):
            search, found = "IMPOSSIBLE", -1
        event = self._event(process, "searches", search.lower())
        memory = MEMORIES[process.memory]
        if found >= 0 and memory.question is Likeness.EXACT:
            wider = replace(memory, question=Likeness.SAME_PEOPLE)
            if memory.phase is Phase.EMPTY and self._is_own(world, process):  # it is stored as the try ends
                world, process = self._save(world, process, wider)
            process = change(process, memory=remember(wider))
        return self._decided(event, world, index, change(process, search=search, found=found))

    @staticmethod
    def _cannot_search(process: Process) -> bool:
        memory, here = MEMORIES[process.memory], scope(process.context.connection)
        has_moved = (memory.scope.account, memory.scope.key_check) != (here.account, here.key_check)
        return has_moved and process.is_elsewhere and memory.question is not Likeness.EXACT

    def _find(self, world: World, process: Process) -> int:
        """Return a sent transfer that may be this delivery; -1 if there is none."""
        if world.run.is_clock_behind:
            return -1
        memory, context = MEMORIES[process.memory], process.context
        is_exact = memory.question is Likeness.EXACT
        for number, transfer in newest_first(world):
            if (
                transfer.status != "sent"
                or str(number) == memory.draft_id
                or not is_visible(transfer, context.connection)
            ):
                continue
            is_keyed = bool(context.key) and transfer.key not in ("", context.key)
            if is_keyed and world.stores[self._rule(transfer.key)].is_sent:
                continue
            is_alike = not is_exact and PEOPLE[transfer.item] == PEOPLE[context.item]
            if SIZES[transfer.item] == SIZES[context.item] or is_alike:
                return number
        return -1

    def _withdraw(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Store that the draft was seen unsent: the discard may still be under way when another try reads that."""
        world, process = self._save(world, process, replace(MEMORIES[process.memory], phase=Phase.DRAFT))
        event = self._event(process, "stores that the draft was not sent")
        return self._go(event, world, index, change(process, next="DISCARD"))

    def _discard(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        number = self.draft(process)
        draft = world.transfers[number]
        if draft.status == "sent":
            event = self._event(process, "discards the draft", "409: it was sent")
            if process.step == "SEND":  # the send finds that out, too
                return self._go(event, world, index, change(process, next="SEND", then=""))
            process = change(process, by_id="NOT_RETRIEVED")
            if MEMORIES[process.memory].phase is not Phase.SENDING and not self.rules.forgets_refusal:
                return self._go(event, world, index, change(process, next="HEARD"))
            world = self._heard_of(world, process)
            if process.then:
                return self._go(event, world, index, change(process, next="REFUSE"))
            return self._decided(event, world, index, process)
        event = self._event(process, "discards the draft", "204" if draft.status == "draft" else "404")
        if draft.status == "draft":
            if draft.maker == -2:
                world = world._replace(broken="the draft of a stranger is discarded")
            world = gone(world, number)
        return self._go(event, world, index, change(process, next="DISCARDED"))

    def _discarded(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        world, process = self._save(world, process, self._after(process, Action.DISCARD))
        event = self._event(process, "stores that the draft is gone")
        if process.then:
            return self._go(event, world, index, change(process, next="REFUSE"))
        if process.step == "SEND":
            return self._go(event, world, index, self.prepared(self._reset(process)))
        return self._decided(event, world, index, self._reset(process))

    def _reset(self, process: Process) -> Process:
        """Return the process as it is about to look for what it remembers."""
        return change(
            process,
            step="PREPARE",
            by_id="NOT_RETRIEVED",
            search="NOT_SEARCHED",
            wanted="OPEN",
            outdated=self._not_checked,
            found=-1,
            is_writer=False,
        )

    def _forget(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        world, process = self._save(world, process, self._after(process, Action.FORGET))
        event = self._event(process, f"stores: {Action.FORGET.value}")
        return self._decided(event, world, index, self._reset(process))

    # The draft.

    def _create(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        # A crash between the create and the store is one before the create: nobody knows the draft.
        context, number = process.context, len(world.transfers)
        if process.by_id in ("DRAFT", "DISCARDED") and MEMORIES[process.memory].draft_id:
            world = world._replace(broken=world.broken or "a draft that is known to be unsent is superseded")
        is_shared = self._is_shared(process)
        memory = self._after(
            process,
            Action.CREATE,
            draft_id=str(number),
            identity=context.item,
            input=input_of(context.item, context.connection, is_shared=is_shared),
            scope=scope(context.connection, context.key),
            phase=Phase.SENDING if is_shared else Phase.DRAFT,
        )
        world, process = self._save(world, process, memory)
        writer = (context.slot, context.number)
        draft = intern(Transfer(context.item, context.connection, "draft", context.slot, writer, key=context.key))
        event = self._event(process, "creates a draft", str(number))
        process = change(process, next="PUBLISH" if is_shared else "FILL", is_writer=True)
        return self._go(event, world, index, process, transfers=(*world.transfers, draft))

    def _resume(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        context = process.context
        memory = self._after(process, Action.RESUME, scope=scope(context.connection, context.key))
        if self.rules.keeps_hand_over:
            memory = replace(memory, phase=Phase.HANDED_ON)
        world, process = self._save(world, process, memory)
        event = self._event(process, "continues with the draft")
        number = int(memory.draft_id)
        draft = change(world.transfers[number], writer=(context.slot, context.number))
        process = change(process, next="ANNOUNCE" if memory.files else "FILL", is_writer=True)
        return self._go(event, world, index, process, transfers=replaced(world.transfers, number, draft))

    def _fill(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        number = self.draft(process)
        status = world.transfers[number].status
        event = self._event(process, "uploads")
        if status != "draft":
            return self._end(event._replace(detail=f"the draft is {status}: it fails"), world, index, "failed")
        after = filled(world, number, (process.context.slot, process.context.number))
        return self._go(event, after, index, change(process, next="ANNOUNCE"))

    # The send.

    def _announce(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        memory = self._after(process, Action.SEND, files=FILES)
        if self.rules.keeps_hand_over and MEMORIES[process.memory].phase is Phase.HANDED_ON:
            memory = replace(memory, phase=Phase.HANDED_ON)
        world, process = self._save(world, process, memory)
        event = self._event(process, "stores that it is about to send")
        return self._attempt(event, world, index, change(process, step="SEND", by_id="NOT_RETRIEVED"))

    def _attempt(self, event: Event, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Return the world in which a process is about to attempt the send."""
        if self.rules.checks_once and process.wanted == "YES":
            return self._go(event, world, index, change(process, next="SEND", then="unchecked"))
        if process.is_again and self.rules.is_mapped:
            memory = MEMORIES[process.memory]
            process = change(
                process, memory=remember(replace(memory, question=Likeness.EXACT.or_wider(memory.question)))
            )
        unknown = {"search": "NOT_SEARCHED", "outdated": self._not_checked, "wanted": "OPEN"}
        process = change(process, is_late=False, **unknown)
        return self._decided(event, world, index, process)

    def _check(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        is_outdated = world.transfers[self.draft(process)].is_outdated
        event = self._event(process, "checks who has picked up", "somebody" if is_outdated else "nobody")
        return self._decided(event, world, index, change(process, outdated="YES" if is_outdated else "NO"))

    def _confirm(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        slot = world.slots[process.context.slot]
        is_wanted = slot.state == "running" and self._is_own(world, process)
        event = self._event(process, "asks Airflow", "it is still wanted" if is_wanted else "it is not wanted any more")
        decided = self.decide(change(process, wanted="YES" if is_wanted else "NO"))
        if decided.next == "STOP":
            return self._close(event, world, index, decided, "failed")
        return self._go(event, world, index, decided)

    def _send(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        number = self.draft(process)
        status = world.transfers[number].status
        event = self._event(process, "sends", str(number))
        if status == "draft":
            if self.rules.is_instant and world.slots[process.context.slot].state != "running":
                world = world._replace(broken="a try that Airflow has given up sends")
            return self._end(event, self._heard_of(self.sent(world, number), process), index, "success", number)
        if status == "sent":
            world = self._heard_of(world, process)
            return self._end(event._replace(detail=f"{number}: 409, it was sent"), world, index, "success", number)
        return self._end(event._replace(detail=f"{number}: 404, it fails"), world, index, "failed")

    # What a trouble makes a process do.

    def waits(self, world: World, index: int, *, is_in_doubt: bool = False) -> tuple[Event, World]:
        """Return the world in which an attempt at the send has failed, and the next is about to come."""
        process = world.processes[index]
        event = self._event(process, "is refused the send, and waits")
        waiting = change(process, is_again=True, in_doubt=process.in_doubt or is_in_doubt)
        return self._attempt(event, world, index, waiting)

    def waits_in_checks(self, world: World, index: int) -> tuple[Event, World]:
        """Return the world in which a call of the checks has been told to wait: what was asked has aged by then."""
        process = world.processes[index]
        if not self.rules.keeps_checks:
            event = self._event(process, "waits among its checks, and begins them again")
            return self._attempt(event, world, index, change(process, is_again=True))
        event, after = next(self.steps(world, index))
        waiting = [at for at, each in enumerate(after.processes) if each.context is process.context]
        for at in waiting:
            late = change(after.processes[at], is_late=True)
            after = after._replace(processes=replaced(after.processes, at, late))
        return event._replace(what=f"{event.what}, and waits among its checks"), after

    def ends(self, world: World, index: int, state: str) -> tuple[Event, World]:
        """Return the world in which a try has ended in its own process, by an error or a deferral."""
        process = world.processes[index]
        what = "defers" if state == "deferred" else "fails"
        return self._close(self._event(process, what, f"before: {process.next.lower()}"), world, index, process, state)

    def _close(self, event: Event, world: World, index: int, process: Process, state: str) -> tuple[Event, World]:
        """Store how a try has ended: with no call in doubt, the next one may continue with its draft."""
        memory = MEMORIES[process.memory]
        if memory.phase is Phase.SENDING and process.step == "SEND" and not process.in_doubt:
            memory = replace(memory, phase=Phase.DRAFT)
        is_in_flight = process.next == "FILL" and state == "failed"
        is_writer = process.is_writer or (self.rules.hands_on_unwritten and process.by_id == "DRAFT")
        if not self._is_own(world, process) or process.mode == "settle":
            return self._end(event, world, index, state)
        if memory.phase is Phase.DRAFT and is_writer and not is_in_flight:
            memory = memory.after(Action.RESUME, self.writer(process), phase=Phase.HANDED_ON)
            world, process = self._save(world, process, memory)
            event = event._replace(detail=f"{event.detail}; it hands its draft on")
        elif memory.phase is Phase.EMPTY:
            world, process = self._save(world, process, memory)
        return self._end(event, world, index, state)


@cache
def writer_of(context: Context, *, is_keyed: bool = False) -> Writer:
    return Writer(context.number, context.max_tries, f"task {context.slot}" if is_keyed else "")


_COMPARED: Final[dict[tuple[int, str, str, bool, bool], Input]] = {}


def input_evidence(memory: Memory, context: Context, *, is_shared: bool) -> Input:
    """Compare what a task is asked to deliver with what is remembered."""
    if memory.input is None:
        return Input.SAME
    is_same_key = memory.scope.key_check == scope(context.connection).key_check
    key = (id(memory.input), context.item, context.connection, is_same_key, is_shared)
    if key not in _COMPARED:
        api_key = CONNECTIONS[context.connection].key
        _COMPARED[key] = memory.input.compare(
            new_transfer(context.item, is_shared=is_shared), api_key, is_same_key=is_same_key
        )
    return _COMPARED[key]


def is_visible(transfer: Transfer, connection: str) -> bool:
    """Return whether a connection's key sees a transfer."""
    there, here = CONNECTIONS[transfer.connection], CONNECTIONS[connection]
    return transfer.status in ("draft", "sent") and (there.account, there.user) == (here.account, here.user)


def newest_first(world: World) -> list[tuple[int, Transfer]]:
    """Return the transfers with their numbers, as a listing shows them."""
    return sorted(enumerate(world.transfers), key=lambda each: (each[1].after, each[0]), reverse=True)


def gone(world: World, number: int) -> World:
    """Return the world in which the service has removed a draft: what is still under way to it meets a 404."""
    messages = tuple(each for each in world.messages if each[1] != number)
    return world._replace(transfers=replaced(world.transfers, number, GONE), messages=messages)


def filled(world: World, number: int, writer: tuple[int, int]) -> World:
    """Return the world in which an upload of a try has been applied."""
    draft = world.transfers[number]
    content = "whole" if draft.writer == writer and draft.content != "mixed" else "mixed"
    broken = "a stranger's draft gets a file" if draft.maker == -2 else world.broken
    return world._replace(transfers=replaced(world.transfers, number, change(draft, content=content)), broken=broken)
