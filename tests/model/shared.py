"""What the processes of three tasks do that share a draft: one creates it, one attaches a file, one sends it.

The executor modelled is :mod:`outbound_transfer.delivery.shared_draft` and :mod:`outbound_transfer.delivery.attach`.
The draft has another file, which nobody touches.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from model.tries import Executor, is_visible, newest_first, writer_of
from model.world import (
    MEMORIES,
    PEOPLE,
    SIZES,
    Context,
    Event,
    Process,
    Published,
    World,
    change,
    remember,
    replaced,
    scope,
)
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.memory import Likeness, Memory
from outbound_transfer.files.attached import AttachedFile

#: Where the tasks begin that do not create the draft.
BEGINS: Final = {"deliver": "begin", "create": "begin", "attach": "ATTACH", "send": "READ"}


def attached(content: str) -> dict[str, AttachedFile]:
    """Return what is remembered of the file; its content is its version and the try that has uploaded it."""
    version, _, file_id = content.partition("#")
    return {"report.csv": AttachedFile(1, version, file_id)}


class SharedExecutor(Executor):
    """The steps of all three tasks."""

    # The task that creates the draft publishes it.

    def _publish(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        event = self._event(process, "returns the draft", MEMORIES[process.memory].draft_id)
        return self._go(event, world, index, change(process, next="RETURN"))

    def _end(
        self, event: Event, world: World, index: int, state: str, result: int = -1, **changes: Any
    ) -> tuple[Event, World]:
        process = world.processes[index]
        is_of_create = self.rules.kinds[process.context.slot] == "create"
        if state == "success" and is_of_create and self._has_other_files(world, result, process):
            number = process.context.slot
            changes["slots"] = replaced(world.slots, number, change(world.slots[number], named=str(result)))
            return super()._end(event, world, index, "refused", **changes)
        if state == "success" and is_of_create:
            question = MEMORIES[process.memory].question
            number = process.context.slot
            published = (result, process.context.item, question.name if question else "")
            changes["slots"] = replaced(world.slots, number, change(world.slots[number], published=published))
        return super()._end(event, world, index, state, result, **changes)

    @staticmethod
    def _has_other_files(world: World, number: int, process: Process) -> bool:
        """Return whether the task that attaches files refuses a transfer, as it was sent with others."""
        transfer = world.transfers[number]
        return transfer.status == "sent" and transfer.item != process.context.item

    def sent(self, world: World, number: int, **changes: Any) -> World:
        draft = world.transfers[number]
        is_filled = bool(draft.meant) or "attach" not in self.rules.kinds
        as_meant = change(draft, content="whole" if draft.content == draft.meant and is_filled else "mixed")
        return super().sent(world._replace(transfers=replaced(world.transfers, number, as_meant)), number, **changes)

    def call(self, world: World, process: Process) -> tuple[str, int, str] | None:
        if process.next in ("UPLOAD", "REMOVE") and self.is_unsent(world, process):
            return process.next.lower(), self.draft(process), self.upload_of(process)
        return super().call(world, process)

    def apply(self, world: World, call: tuple[str, int, str], writer: tuple[int, int] = (-1, 0)) -> World:
        what, number, content = call
        if what == "upload":
            return uploaded(world, number, content)
        return removed(world, number) if what == "remove" else super().apply(world, call, writer)

    # What a task sees of a draft that another has made.

    def _shared(self, world: World, process: Process) -> str:
        """Return what a read of the published draft shows: draft, sent, gone, or other."""
        context = process.context
        number, item, *_ = _published(context)
        transfer = world.transfers[number]
        if not is_visible(transfer, context.connection):
            return "gone"
        return transfer.status if transfer.item == item or self.rules.ignores_identity else "other"

    # The task that attaches the file.

    def _attach(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        context = process.context
        store = world.stores[context.slot]
        event = self._event(process, "begins")
        if store.claim > context.number:
            return self._end(event._replace(detail="a later try has begun: it stops"), world, index, "failed")
        draft_id = str(_published(context)[0])
        at, newest = store.records[-1] if store.records else (0, -1)
        is_same = newest >= 0 and MEMORIES[newest].draft_id == draft_id
        files = MEMORIES[newest].files if is_same else {}
        memory = Memory(writer_of(context), scope(context.connection), Phase.DRAFT, draft_id, files=files)
        begun = change(
            process,
            next="ATTACH_READ",
            store=context.slot,
            claim=context.number,
            memory=remember(memory),
            is_complete=at >= max(store.claim, context.number - 1),
            by_id=MEMORIES[newest].phase.name if is_same else "",
        )
        after = self._stored(store, begun, begun.memory, claim=context.number)
        return self._go(event, world, index, begun, stores=replaced(world.stores, context.slot, after))

    def _attach_read(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        seen = self._shared(world, process)
        event = self._event(process, "reads the draft", seen)
        known = MEMORIES[process.memory].files
        if seen == "sent" and known:
            return self._end(event, world, index, "success")
        if seen != "draft":
            return self._end(event, world, index, "refused")
        content = world.transfers[self.draft(process)].content
        is_trusted = process.by_id == "HANDED_ON" and process.is_complete and known == attached(content)
        if content and is_trusted and content.startswith(f"{process.context.item}#"):
            return self._go(event, world, index, change(process, next="ATTACHED", then=content))
        if content and not known and process.is_complete:
            return self._end(event._replace(detail="it holds another's file"), world, index, "refused")
        return self._go(event, world, index, change(process, next="REMOVE" if content else "PLAN"))

    def _is_wanted(self, world: World, process: Process) -> bool:
        is_running = world.slots[process.context.slot].state == "running"
        return self.rules.attaches_unasked or (is_running and self._is_own(world, process))

    def _remove(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        event = self._event(process, "removes the file")
        if not self._is_wanted(world, process):
            return self._end(event._replace(detail="it is not wanted any more"), world, index, "failed")
        after = removed(world, self.draft(process))
        return self._go(event, after, index, change(process, next="PLAN"))

    def _plan(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        event = self._event(process, "stores what it is about to attach")
        if not self._is_own(world, process):
            return self._end(event._replace(detail="a later try has begun: it stops"), world, index, "failed")
        memory = replace(MEMORIES[process.memory], files=attached(f"{process.context.item}#"))
        world, process = self._save(world, process, memory)
        return self._go(event, world, index, change(process, next="UPLOAD"))

    def _upload(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        number = self.draft(process)
        event = self._event(process, "uploads the file")
        if not self._is_wanted(world, process) or world.transfers[number].status != "draft":
            return self._end(event._replace(detail="it fails"), world, index, "failed")
        after = uploaded(world, number, self.upload_of(process))
        content = after.transfers[number].content  # the file that was there already, if one was
        return self._go(event, after, index, change(process, next="ATTACHED", then=content))

    @staticmethod
    def upload_of(process: Process) -> str:
        """Return the content that an upload of a process makes: the version, and the service's id of the file."""
        return f"{process.context.item}#{process.context.number}"

    def _attached(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        event = self._event(process, "returns the file", process.then)
        if not self._is_own(world, process):
            return self._end(event._replace(detail="a later try has begun: it stops"), world, index, "failed")
        memory = replace(MEMORIES[process.memory], phase=Phase.HANDED_ON, files=attached(process.then))
        world, process = self._save(world, process, memory)
        number, meant = self.draft(process), f"{process.context.item}#{process.then.partition('#')[2]}"
        transfers = replaced(world.transfers, number, change(world.transfers[number], meant=meant))
        own = process.context.slot
        slots = replaced(world.slots, own, change(world.slots[own], attached=meant))
        return self._end(event, world, index, "success", slots=slots, transfers=transfers)

    # The task that sends.

    def draft(self, process: Process) -> int:
        if self.rules.kinds[process.context.slot] == "send":
            return _published(process.context)[0]
        return super().draft(process)

    def _read(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        """Compare the draft with what the tasks upstream have made, before each attempt."""
        seen = self._shared(world, process)
        event = self._event(process, "reads the draft", seen)
        if seen == "sent":
            return self._end(event, self._heard_of(world, process), index, "success", self.draft(process))
        if seen != "draft":
            return self._end(event, world, index, "refused")
        held = world.transfers[self.draft(process)].content.partition("#")[2]
        if held != process.context.attached.partition("#")[2]:
            return self._end(event._replace(detail="its files have changed: it refuses"), world, index, "refused")
        return self._go(event, world, index, self._checked(change(process, step="SEND", search="", memory=0)))

    def _checked(self, process: Process) -> Process:
        """Return the process with its next check before the send."""
        if process.wanted == "YES":
            return change(process, next="SEND")
        is_asked = self._question(process) is not None and process.search != "NONE"
        return change(process, next="SEARCH_SHARED" if is_asked else "CONFIRM_SHARED", search=process.search or "READ")

    def _question(self, process: Process) -> Likeness | None:
        """Return how alike a sent transfer must be to stop the send; None if nobody is asked."""
        name, facts = _published(process.context)[2], self.facts(process.context)
        question = Likeness[name] if name else None
        is_later = not facts.is_first_of_all and not self.rules.asks_after_waits
        if self.rules.is_mapped and (process.is_again or is_later):
            return Likeness.EXACT.or_wider(question)
        return question

    def _search_shared(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        context = process.context
        item = _published(context)[1]
        is_exact = self._question(process) is Likeness.EXACT
        found = next(
            (
                number
                for number, each in newest_first(world)
                if each.status == "sent" and is_visible(each, context.connection) and number != self.draft(process)
                if SIZES.get(each.item) == SIZES[item]
                or (not is_exact and each.item and PEOPLE[each.item] == PEOPLE[item])
            ),
            -1,
        )
        is_found = found >= 0 and not world.run.is_clock_behind
        event = self._event(process, "searches", "found" if is_found else "none")
        if is_found:
            slots = replaced(world.slots, context.slot, change(world.slots[context.slot], named=str(found)))
            return self._end(event, world._replace(slots=slots), index, "refused")
        return self._go(event, world, index, self._checked(change(process, search="NONE")))

    def _confirm_shared(self, world: World, index: int, process: Process) -> tuple[Event, World]:
        event = self._event(process, "asks Airflow")
        if world.slots[process.context.slot].state != "running":
            return self._end(event._replace(detail="it is not wanted any more"), world, index, "failed")
        return self._go(event, world, index, self._checked(change(process, wanted="YES")))

    def waits(self, world: World, index: int, *, is_in_doubt: bool = False) -> tuple[Event, World]:
        process = world.processes[index]
        event = self._event(process, "is refused the send, and waits")
        if self.rules.checks_once:
            return self._go(event, world, index, change(process, is_again=True, then="unchecked"))
        return self._attempt(event, world, index, change(process, is_again=True))

    def _attempt(self, event: Event, world: World, index: int, process: Process) -> tuple[Event, World]:
        again = change(process, next="READ", step="PREPARE", search="NOT_SEARCHED", wanted="OPEN", is_late=False)
        return self._go(event, world, index, again)

    def ends(self, world: World, index: int, state: str) -> tuple[Event, World]:
        process = world.processes[index]
        if self.rules.kinds[process.context.slot] == "create":
            return super().ends(world, index, state)
        return self._end(self._event(process, "fails"), world, index, state)

    def is_checked(self, process: Process) -> bool:
        return process.wanted == "YES" or process.search in ("READ", "NONE")


def _published(context: Context) -> Published:
    assert context.published is not None, "the task that makes the draft has succeeded"
    return context.published


def removed(world: World, number: int) -> World:
    """Return the world in which the file was removed from a draft."""
    draft = world.transfers[number]
    if draft.status != "draft":
        return world
    broken = "a stranger's draft loses a file" if draft.maker == -2 else world.broken
    return world._replace(transfers=replaced(world.transfers, number, change(draft, content="")), broken=broken)


def uploaded(world: World, number: int, content: str) -> World:
    """Return the world in which the file was uploaded; one of its name that is there already stays as it is."""
    draft = world.transfers[number]
    if draft.status != "draft":
        return world
    broken = "a stranger's draft gets a file" if draft.maker == -2 else world.broken
    after = change(draft, content=draft.content or content)
    return world._replace(transfers=replaced(world.transfers, number, after), broken=broken)
