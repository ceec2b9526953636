"""What is promised in every world, and of what follows from it.

1. Each delivery is sent at most once, and once more for each clear that asks for it, unless a later one takes it back.
   What is sent was written by one writer, in a try that Airflow still runs. A task that succeeds returns its delivery,
   sent. What a refusal says is so.
2. From a world in which nothing runs any more, a clear of all tasks ends with every delivery sent, once.
3. There, a clear of all tasks with ``resend=True`` sends each once more. If a task cannot know what was cleared, or is
   one of three, another such clear does.
4. A clear makes no draft in vain, continues with one that was handed on, and leaves none behind that is known not to be
   sent. This one is about cost, not safety.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Final

from model.explore import Explorer
from model.troubles import clear, clearable, start
from model.world import MEMORIES, Transfer, World
from outbound_transfer.delivery.decision import Phase

LEFT_BEHIND: Final = "a draft is left behind"

#: More than any try of the model takes.
MAX_STEPS: Final = 50


def broken_promise(world: World) -> str:
    """Return the promise that is broken in a world; "" if none is."""
    return world.broken or _sent_too_often(world.transfers, world.granted)


@cache
def _sent_too_often(transfers: tuple[Transfer, ...], granted: tuple[tuple[int, int], ...]) -> str:
    """Each item of a key, and each task, is sent once, and once more for each clear that asks for it."""
    sent = [each for each in transfers if each.status in ("sent", "hidden") and each.maker >= 0]
    allowed = dict(granted)
    for maker, count in Counter(each.maker for each in sent).items():
        if count > 1 + allowed.get(maker, 0):
            return f"task {maker} sends too often"
    repeated = sum(count - 1 for count in Counter((each.item, each.key) for each in sent).values())
    return "an item is sent too often" if repeated > sum(allowed.values()) else ""


def is_quiet(world: World) -> bool:
    """Return whether no process lives, and something has run."""
    is_idle = all(slot.state not in ("running", "deferred") for slot in world.slots)
    return not world.processes and is_idle and any(slot.tries for slot in world.slots)


class Promises:
    """Judges the worlds of one scenario."""

    def __init__(self) -> None:
        self._known: dict[tuple[World, bool], tuple[str, World]] = {}

    def __call__(self, explorer: Explorer, world: World) -> Iterator[tuple[int, str]]:
        """Yield the promises that are broken."""
        if broken := broken_promise(world):
            yield 1, broken
        elif is_quiet(world):
            why, after = self._cleared(explorer, world, is_resend=False)
            if why:
                yield 2, why
            if waste := _find_waste(world, after):
                yield 4, waste
            has_keys = bool(explorer.scenario.rules.keys)  # of a key, there is no resend: another key is the way out
            if not has_keys and (why := self._find_way_out(explorer, world)):
                yield 3, why
            why, after = self._cleared(explorer, world, is_resend=True)
            if not (why or waste) and _find_waste(world, after) == LEFT_BEHIND:
                yield 4, LEFT_BEHIND

    def _find_way_out(self, explorer: Explorer, world: World) -> str:
        makers = explorer.executor.makers(clearable(world))
        before = _count_sent(world)
        why, after = self._cleared(explorer, world, is_resend=True)
        is_seen = all(_sees_its_clear(world, number) for number in range(len(world.slots)))
        if why and (not is_seen or "WHICH_CLEARED" in why or "create" in explorer.scenario.rules.kinds):
            # Another clear of the tasks that were refused, with those that have made their draft.
            refused = [number for number, slot in enumerate(after.slots) if slot.state in ("failed", "refused")]
            again = {each for number in refused for each in (*explorer.executor.upstream(number), number)}
            why, after = _clear(explorer, after, tuple(sorted(again)), is_resend=True)
        sent = _count_sent(after)
        return why or ("" if all(sent[each] == before[each] + 1 for each in makers) else "it does not send once more")

    def _cleared(self, explorer: Explorer, world: World, *, is_resend: bool) -> tuple[str, World]:
        """Return why a clear of all tasks does not deliver, "" if it does; and what is then."""
        world = world._replace(used=(), messages=())
        key = world, is_resend
        if key not in self._known:
            self._known[key] = _clear(explorer, world, clearable(world), is_resend=is_resend)
        return self._known[key]


def _clear(explorer: Explorer, world: World, numbers: tuple[int, ...], *, is_resend: bool) -> tuple[str, World]:
    executor, after, why = explorer.executor, clear(world, numbers, is_resend=is_resend), ""
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


def _sees_its_clear(world: World, number: int) -> bool:
    """Return whether a task remembers its newest try, so that it sees that it is cleared after it."""
    records = world.stores[number].records
    return bool(records) and records[-1][0] == world.slots[number].tries


def _find_waste(before: World, after: World) -> str:
    """Return what was done in vain when the tasks of a world were cleared."""
    made = after.transfers[len(before.transfers) :]
    refused = {number for number, slot in enumerate(after.slots) if slot.state == "refused"}
    if any(each.maker in refused or each.status == "gone" for each in made):
        return "a draft is made in vain"
    for number, store in enumerate(before.stores[: len(before.slots)]):
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
    is_left = draft.status == "draft" and not draft.is_outdated
    return is_same and is_left and not world.granted


def _count_sent(world: World) -> Counter[int]:
    return Counter(each.maker for each in world.transfers if each.status in ("sent", "hidden"))
