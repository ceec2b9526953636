"""What is promised in every world, and of what follows from it.

1. Each delivery is sent at most once. What is sent was written by one writer, in a try that Airflow still runs. A task
   that succeeds returns its delivery, sent. What a refusal says is so.
2. From a world in which nothing runs any more, a clear of all tasks ends with every delivery sent, once.
3. A clear makes no draft in vain, continues with one that was handed on, and leaves none behind that is known not to be
   sent. This one is about cost, not safety.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from model.explore import Explorer
from model.troubles import clear, clearable, start
from model.world import DELIVERY, MEMORIES, Transfer, World
from outbound_transfer.delivery.decision import Phase

LEFT_BEHIND: Final = "a draft is left behind"
IN_VAIN: Final = "a draft is made in vain"

#: More than any try of the model takes.
MAX_STEPS: Final = 50


def broken_promise(world: World) -> str:
    """Return the promise that is broken in a world; "" if none is."""
    return world.broken or _sent_too_often(world.transfers)


@cache
def _sent_too_often(transfers: tuple[Transfer, ...]) -> str:
    """Each task sends once, and so is each delivery of a key, whatever its file."""
    sent = [each for each in transfers if each.status in ("sent", "hidden") and each.maker >= 0]
    for maker, count in Counter(each.maker for each in sent).items():
        if count > 1:
            return f"task {maker} sends too often"
    if any(count > 1 for count in Counter((DELIVERY[each.item], each.key) for each in sent).values()):
        return "an item is sent too often"
    return ""


def is_quiet(world: World) -> bool:
    """Return whether no process lives, and something has run."""
    is_idle = all(slot.state not in ("running", "deferred") for slot in world.slots)
    return not world.processes and is_idle and any(slot.tries for slot in world.slots)


class Promises:
    """Judges the worlds of one scenario."""

    def __init__(self) -> None:
        self._known: dict[World, tuple[str, World]] = {}

    def __call__(self, explorer: Explorer, world: World) -> Iterator[tuple[int, str]]:
        """Yield the promises that are broken."""
        if broken := broken_promise(world):
            yield 1, broken
        elif is_quiet(world):
            why, after = self._cleared(explorer, world)
            if why:
                yield 2, why
            sent, sent_after = _count_sent(world), _count_sent(after)
            if any(count < sent_after[maker] for maker, count in sent.items() if maker >= 0):
                yield 1, "a clear sends once more"
            if waste := _find_waste(world, after, range(len(world.slots))):
                yield 3, waste

    def _cleared(self, explorer: Explorer, world: World) -> tuple[str, World]:
        """Return why a clear of all tasks does not deliver, "" if it does; and what is then."""
        world = world._replace(used=(), messages=())
        if world not in self._known:
            self._known[world] = _clear(explorer, world, clearable(world))
        return self._known[world]


def _clear(explorer: Explorer, world: World, numbers: tuple[int, ...]) -> tuple[str, World]:
    executor, after, why = explorer.executor, clear(world, numbers), ""
    for number in range(len(after.slots)):
        if after.slots[number].state not in ("new", "queued") or not executor.may_start(after, number):
            continue
        event, after = start(executor, after, number)
        for _ in range(MAX_STEPS):
            if not after.processes:
                break
            event, after = next(executor.steps(after, 0))
        if after.slots[number].state != "success":
            unsent = "" if any(_count_sent(after).values()) else ", though nothing was sent"
            why = why or f"task {number}, {after.slots[number].item}: {event.detail.rpartition('; ')[-1]}{unsent}"
    return why or broken_promise(after), after


def _find_waste(before: World, after: World, numbers: Iterable[int]) -> str:
    """Return what was done in vain when some tasks of a world were cleared."""
    made = after.transfers[len(before.transfers) :]
    refused = {number for number, slot in enumerate(after.slots) if slot.state == "refused"}
    if any(each.maker in refused or each.status == "gone" for each in made):
        return IN_VAIN
    for number in numbers:
        store = before.stores[number]
        memory = MEMORIES[store.records[-1][1]] if store.records else None
        if memory is None or memory.phase not in (Phase.DRAFT, Phase.HANDED_ON, Phase.SENDING):
            continue
        if not store.records[-1][0] == store.claim == before.slots[number].tries:
            continue  # nobody may know the draft
        draft_id = int(memory.draft_id)
        if after.transfers[draft_id].status == "draft" and after.transfers[draft_id].maker >= 0:
            return LEFT_BEHIND
        is_continuable = memory.phase is Phase.HANDED_ON and _may_continue(before, number, draft_id)
        if is_continuable and any(each.maker == number for each in made):
            return "a draft that was handed on is not continued"
    return ""


def _may_continue(world: World, number: int, draft_id: int) -> bool:
    """Return whether nothing but a clear has come since a task has handed its draft on."""
    slot, draft = world.slots[number], world.transfers[draft_id]
    is_same = (draft.item, draft.connection, draft.key) == (slot.item, world.run.connection, slot.key)
    return is_same and draft.status == "draft" and not draft.is_outdated


def _count_sent(world: World) -> Counter[int]:
    return Counter(each.maker for each in world.transfers if each.status in ("sent", "hidden"))
