"""What happens to the tasks: Airflow's retries and clears, and every trouble that a scenario allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from msgspec.structs import replace

from model.shared import BEGINS
from model.tries import Executor, Steps, gone
from model.world import (
    MEMORIES,
    Context,
    Event,
    Process,
    Store,
    Transfer,
    World,
    change,
    intern,
    remember,
    replaced,
    without,
)
from outbound_transfer.delivery.decision import Phase

Trouble: TypeAlias = Callable[[Executor, World], Steps]

#: The calls that may fail without an effect.
_FAILING: Final = (
    "RETRIEVE",
    "SEARCH",
    "DISCARD",
    "CREATE",
    "FILL",
    "CHECK",
    "SEND",
    "UPLOAD",
    "REMOVE",
)


#: The calls that ask, right before the send, what must hold for it. A wait may come between two of each.
_CHECKS: Final = ("SEARCH", "CHECK", "CONFIRM", "SEARCH_SHARED", "CONFIRM_SHARED")


def starts(executor: Executor, world: World) -> Steps:
    """Let Airflow start a try: the first, a retry, or one after a clear."""
    for number, slot in enumerate(world.slots):
        if slot.state in ("new", "queued", "failed") and executor.may_start(world, number):
            yield start(executor, world, number)


def start(executor: Executor, world: World, number: int, *, is_resumed: bool = False) -> tuple[Event, World]:
    """Return the world in which a try has started; Airflow has removed what its task had returned."""
    slot, run = world.slots[number], world.run
    upstream = [world.slots[each] for each in executor.upstream(number)]
    tries = slot.tries if is_resumed else slot.tries + 1
    context = Context(
        slot=number,
        number=tries,
        item=slot.item,
        max_tries=slot.cleared,
        clear_number=run.clear_number,
        connection=run.connection,
        key=slot.key,
        is_resumed=is_resumed,
        has_other_tasks=run.has_other_tasks,
        published=upstream[0].published if upstream else None,
        attached=upstream[-1].attached if upstream else "",
    )
    process = intern(Process(intern(context), BEGINS[executor.kind(number)], is_again=is_resumed))
    running = change(slot, tries=tries, state="running", published=None, attached="")
    return (
        Event((number, tries), "goes on after its deferral" if is_resumed else "starts", slot.item),
        world._replace(
            slots=replaced(world.slots, number, running),
            processes=tuple(sorted((*world.processes, process), key=lambda each: each.context[:2])),
        ),
    )


def resumes(executor: Executor, world: World) -> Steps:
    """Let deferred tries go on, each in a process of its own."""
    for number, slot in enumerate(world.slots):
        if slot.state == "deferred":
            yield start(executor, world, number, is_resumed=True)


def clear(world: World, numbers: tuple[int, ...]) -> World:
    """Return the world in which a user has cleared some tasks of the run."""
    slots = list(world.slots)
    for number in numbers:
        slot = slots[number]
        slots[number] = change(slot, state="queued", cleared=slot.cleared + 1, result=-1, named="")
    run = change(world.run, clear_number=world.run.clear_number + 1)
    return world._replace(slots=tuple(slots), run=run)


def clearable(world: World) -> tuple[int, ...]:
    """Return the tasks that have run, and do not run now."""
    idle = ("queued", "failed", "refused", "success")
    return tuple(number for number, slot in enumerate(world.slots) if slot.state in idle and slot.tries)


def _clears(which: str) -> Trouble:
    def clears(executor: Executor, world: World) -> Steps:
        cleared = clearable(world)
        choices = {
            "all": [cleared] if cleared else [],
            "one": [(number,) for number in cleared],
            "index": [tuple(each for each in cleared if each in (at, at + 1)) for at in cleared if at % 2 == 0],
        }
        for numbers in choices[which]:
            names = " and ".join(f"task {number}" for number in numbers)
            yield Event(None, f"a user clears {names}"), clear(world, numbers)

    return clears


def _live(world: World) -> Iterator[int]:
    """Yield the processes whose try Airflow has not given up."""
    for index, process in enumerate(world.processes):
        slot = world.slots[process.context.slot]
        if slot.state == "running" and slot.tries == process.context.number:
            yield index


def crash(executor: Executor, world: World) -> Steps:
    """Kill a process: before its next call, or once that is applied and before it is known."""
    for index in _live(world):
        process = world.processes[index]
        killed = _killed(world, index)
        yield Event(process.context[:2], "is killed", f"before: {process.next.lower()}"), killed
        if call := executor.call(world, process):
            applied = executor.apply(killed, call, process.context[:2])
            yield Event(process.context[:2], "is killed", f"after: {process.next.lower()}"), applied


def crash_in_call(executor: Executor, world: World) -> Steps:
    """Kill a process whose call the service has not received yet."""
    for index in _live(world):
        process = world.processes[index]
        if call := executor.call(world, process):
            messages = tuple(sorted((*world.messages, call)))
            yield (
                Event(process.context[:2], "is killed", f"its {call[0]} is under way"),
                _killed(world, index)._replace(messages=messages),
            )


def _killed(world: World, index: int) -> World:
    number = world.processes[index].context.slot
    failed = change(world.slots[number], state="failed")
    return world._replace(processes=without(world.processes, index), slots=replaced(world.slots, number, failed))


def give_up(executor: Executor, world: World) -> Steps:
    """Let Airflow take a try for dead, whose process lives on."""
    for index in _live(world):
        context = world.processes[index].context
        slots = replaced(world.slots, context.slot, change(world.slots[context.slot], state="failed"))
        yield (
            Event((context.slot, context.number), "is given up by Airflow; its process lives on"),
            world._replace(slots=slots),
        )


def wait(executor: Executor, world: World) -> Steps:
    """Refuse a send, or a check before it, for now: the account is full, the key has used its calls up, …"""
    for index, process in enumerate(world.processes):
        if process.next == "SEND" and executor.is_unsent(world, process):
            yield executor.waits(world, index)
        elif process.step == "SEND" and process.next in _CHECKS:
            yield executor.waits_in_checks(world, index)


def lose_response(executor: Executor, world: World) -> Steps:
    """Let an attempt at the send time out, and be applied later."""
    for index, process in enumerate(world.processes):
        if process.next == "SEND" and executor.is_unsent(world, process):
            message = ("send", executor.draft(process), "")
            event, after = executor.waits(world, index, is_in_doubt=True)
            yield (
                event._replace(what="sends; the response is lost, and it waits"),
                after._replace(messages=tuple(sorted((*after.messages, message)))),
            )


def fail(executor: Executor, world: World) -> Steps:
    """End a try in its own process, with an error of a call that a retry may mend."""
    for index, process in enumerate(world.processes):
        if process.next in _FAILING:
            yield executor.ends(world, index, "failed")


def defer(executor: Executor, world: World) -> Steps:
    """Let the triggerer wait for the next attempt at a call."""
    for index in _live(world):
        if world.processes[index].next in _FAILING:
            yield executor.ends(world, index, "deferred")


def fail_for_good(executor: Executor, world: World) -> Steps:
    """End a try with an error that no retry mends: its draft is discarded."""
    for index, process in enumerate(world.processes):
        if process.next in ("FILL", "SEND") and executor.is_unsent(world, process) and not process.in_doubt:
            failed = change(process, next=executor.discarding(process, is_unsent=True), step="PREPARE", then="an error")
            yield (
                Event(process.context[:2], "fails for good"),
                world._replace(processes=replaced(world.processes, index, failed)),
            )


def _loses(what: str, *, is_sending: bool) -> Trouble:
    def lose(executor: Executor, world: World) -> Steps:
        """Lose the newest memory of a task or of a delivery key; or only while a send of an earlier try is under way.

        Not while a try that Airflow runs is about to send: it is the same once the try has ended.
        """
        live = {world.processes[index].context.slot for index in _live(world) if world.processes[index].step == "SEND"}
        sending = {each.context.slot for each in world.processes if each.step == "SEND"} - live
        sending |= {world.transfers[number].maker for call, number, _ in world.messages if call == "send"}
        for number, store in enumerate(world.stores):
            is_keyed = number >= len(world.slots)
            tasks = set(range(len(world.slots))) if is_keyed else {number}
            if not store.records or is_keyed != (what == "a delivery key") or tasks & live:
                continue
            if bool(tasks & sending) == is_sending:
                lost = change(store, records=store.records[:-1], is_sent=False)
                yield (
                    Event(None, f"the newest memory of {what if is_keyed else f'task {number}'} is lost"),
                    world._replace(stores=replaced(world.stores, number, lost)),
                )

    return lose


def _restores(*, is_keyed: bool) -> Trouble:
    def restore_memory(executor: Executor, world: World) -> Steps:
        """Restore a backup of the memory: as the newest try of a task, or the last claim of a key, began with it."""
        stores = world.stores[len(world.slots) :] if is_keyed else world.stores[: len(world.slots)]
        for number, store in enumerate(stores, start=len(world.slots) if is_keyed else 0):
            if not store.records or world.processes:
                continue
            at, newest = store.records[-1]
            older = remember(replace(MEMORIES[newest], phase=Phase.EMPTY, draft_id="", identity="", files={}))
            restored = change(store, records=(*store.records[:-1], (at, older)), is_sent=False)
            yield (
                Event(None, f"an older memory of {'a delivery key' if is_keyed else f'task {number}'} is restored"),
                world._replace(stores=replaced(world.stores, number, restored)),
            )

    return restore_memory


def set_clock_back(executor: Executor, world: World) -> Steps:
    """Let the service's clock be so far behind Airflow's that what was sent seems to be of before the run."""
    if not (world.run.is_clock_behind or world.processes):
        yield Event(None, "the service's clock is behind"), world._replace(run=change(world.run, is_clock_behind=True))


def delete_task(executor: Executor, world: World) -> Steps:
    """Delete a task instance and its memory; Airflow makes it anew."""
    alive = {process.context.slot for process in world.processes}
    for number, slot in enumerate(world.slots):
        if slot.tries and slot.state not in ("running", "deferred") and number not in alive:
            yield (
                Event(None, f"task {number} is deleted, and made anew"),
                world._replace(
                    slots=replaced(
                        world.slots, number, change(slot, tries=0, cleared=0, state="new", result=-1, named="")
                    ),
                    stores=replaced(world.stores, number, intern(Store())),
                ),
            )


def _reorders(*, is_early: bool) -> Trouble:
    def reorder(executor: Executor, world: World) -> Steps:
        """Let the list of a mapped task change its order; early, if an index has not ended its first attempt."""
        first = [each for each in world.processes if each.context.number == 1 and not each.is_again]
        if is_early != (bool(first) or not all(slot.tries for slot in world.slots)):
            return
        items = [slot.item for slot in world.slots]
        slots = tuple(change(slot, item=item) for slot, item in zip(world.slots, reversed(items), strict=True))
        yield Event(None, f"the list changes its order to {', '.join(reversed(items))}"), world._replace(slots=slots)

    return reorder


def _changes(number: int, **changes: str) -> Trouble:
    """Return the trouble that a task's arguments change, for its next try."""

    def change_arguments(executor: Executor, world: World) -> Steps:
        slot = world.slots[number]
        changed = change(slot, **changes)
        if changed is not slot:
            what = " and ".join(f"{name} {value or 'none'}" for name, value in changes.items())
            yield (
                Event(None, f"task {number} is given another {what}"),
                world._replace(slots=replaced(world.slots, number, changed)),
            )

    return change_arguments


def change_source(executor: Executor, world: World) -> Steps:
    """Let a file of the item X change, whichever index has it."""
    slots = tuple(change(slot, item="x") if slot.item == "X" else slot for slot in world.slots)
    if slots != world.slots:
        yield Event(None, "a file of X changes"), world._replace(slots=slots)


def _moves(connection: str, *, is_early: bool | None = None) -> Trouble:
    """Return the trouble that the connection leads elsewhere.

    :param is_early: whether it comes before each index has begun, or once each has; None if that is the same.
    """

    def move(executor: Executor, world: World) -> Steps:
        is_of_then = is_early in (None, not all(slot.tries for slot in world.slots))
        if world.run.connection != connection and is_of_then:
            yield (
                Event(None, f"the connection leads to another scope: {connection}"),
                world._replace(run=change(world.run, connection=connection)),
            )

    return move


def send_twin(executor: Executor, world: World) -> Steps:
    """Let another run send an equal transfer, and nothing tell that it is another's."""
    sent = sum(each.status in ("sent", "hidden") for each in world.transfers)
    twin = intern(Transfer("X", "first", "sent", -1, content="whole", is_heard=True, after=sent))
    if all(each.maker != -1 or each.status != "sent" for each in world.transfers):
        yield (
            Event(None, "another run sends a transfer that equals X"),
            world._replace(transfers=(*world.transfers, twin)),
        )


def _deletes(when: str) -> Trouble:
    def delete(executor: Executor, world: World) -> Steps:
        """Delete a sent transfer in the service's web application."""
        refused = {slot.named for slot in world.slots}
        for number, transfer in enumerate(world.transfers):
            known = "heard" if transfer.is_heard or str(number) in refused else "unheard"
            if transfer.status == "sent" and known == when:
                yield (
                    Event(None, f"transfer {number} is deleted in the web application"),
                    world._replace(transfers=replaced(world.transfers, number, change(transfer, status="hidden"))),
                )

    return delete


def rename(executor: Executor, world: World) -> Steps:
    """Give a task another name: Airflow makes a new task instance, and leaves the other one."""
    first, second = world.slots
    if second.state == "absent" and first.state not in ("running", "deferred"):
        slots = (change(first, state="removed"), change(second, state="new", item=first.item))
        yield (
            Event(None, "task 0 is renamed: it is task 1 now"),
            world._replace(slots=slots, run=change(world.run, has_other_tasks=True)),
        )


def rename_back(executor: Executor, world: World) -> Steps:
    """Give it its former name again: Airflow knows what has become of the task instance."""
    first, second = world.slots
    if first.state == "removed" and second.state not in ("running", "deferred"):
        slots = (change(first, state="queued"), change(second, state="removed"))
        yield Event(None, "task 1 is renamed: it is task 0 again"), world._replace(slots=slots)


def _picks_up(*, is_checked: bool) -> Trouble:
    def pick_up(executor: Executor, world: World) -> Steps:
        """Let the recipient pick up the first transfer: what is about to be redelivered is not wanted any more."""
        has_checked = any(each.step == "SEND" and executor.is_checked(each) for each in world.processes)
        if not world.run.has_picked_up and is_checked == has_checked:
            transfers = tuple(
                change(each, is_outdated=True) if each.status == "draft" else each for each in world.transfers
            )
            yield (
                Event(None, "the recipient picks up the first transfer"),
                world._replace(transfers=transfers, run=change(world.run, has_picked_up=True)),
            )

    return pick_up


def remove_draft(executor: Executor, world: World) -> Steps:
    """Let another task of the run remove a draft that tasks share."""
    for number, transfer in enumerate(world.transfers):
        if transfer.status == "draft" and transfer.maker >= 0:
            removed = intern(Transfer("", transfer.connection, "discarded", -1))
            yield (
                Event(None, f"a task removes draft {number}"),
                gone(world, number)._replace(transfers=replaced(world.transfers, number, removed)),
            )


def restore(executor: Executor, world: World) -> Steps:
    """Restore the service from a backup: the id of a draft becomes that of a stranger's draft."""
    if world.processes:
        return
    for number, transfer in enumerate(world.transfers):
        if transfer.status == "draft" and transfer.maker >= 0:
            stranger = intern(Transfer("Z", transfer.connection, "draft", -2, content="whole"))
            yield (
                Event(None, f"the service is restored: {number} is the id of a stranger's draft now"),
                world._replace(
                    transfers=replaced(world.transfers, number, stranger),
                    messages=tuple(each for each in world.messages if each[1] != number),
                ),
            )


def arrivals(executor: Executor, world: World) -> Steps:
    """Let calls of processes that are gone reach the service."""
    for call in sorted(set(world.messages)):
        left = list(world.messages)
        left.remove(call)
        after = executor.apply(world._replace(messages=tuple(left)), call)
        yield Event(None, f"the late {call[0]} reaches draft {call[1]}"), after


#: What a scenario may allow, by its name.
TROUBLES: Final[dict[str, Trouble]] = {
    "try": starts,
    "clear": _clears("all"),
    "clear one": _clears("one"),
    "clear an index": _clears("index"),
    "crash": crash,
    "crash in a call": crash_in_call,
    "zombie": give_up,
    "wait": wait,
    "lost response": lose_response,
    "failure": fail,
    "deferral": defer,
    "failure for good": fail_for_good,
    "lost memory": _loses("a task", is_sending=False),
    "memory lost during a send": _loses("a task", is_sending=True),
    "lost memory of a key": _loses("a delivery key", is_sending=False),
    "memory of a key lost during a send": _loses("a delivery key", is_sending=True),
    "deleted task": delete_task,
    "older memory": _restores(is_keyed=False),
    "older memory of a key": _restores(is_keyed=True),
    "clock behind": set_clock_back,
    "order": _reorders(is_early=False),
    "early order": _reorders(is_early=True),
    "other input": _changes(0, item="Y"),
    "other file": _changes(0, item="x"),
    "changed source": change_source,
    "first input": _changes(0, item="X"),
    "other file of task 1": _changes(1, item="v2"),
    "key given": _changes(0, key="k"),
    "key change": _changes(0, key="l"),
    "key removed": _changes(0, key=""),
    "new key": _moves("new key"),
    "other user": _moves("other user"),
    "other account": _moves("other account"),
    "early other account": _moves("other account", is_early=True),
    "late other account": _moves("other account", is_early=False),
    "first scope": _moves("first"),
    "twin": send_twin,
    "deleted transfer": _deletes("heard"),
    "deleted before it was heard of": _deletes("unheard"),
    "new name": rename,
    "former name": rename_back,
    "pickup": _picks_up(is_checked=False),
    "pickup after the check": _picks_up(is_checked=True),
    "restored service": restore,
    "removed by a task": remove_draft,
}
