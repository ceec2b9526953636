"""What is promised in every world, and of what follows from it.

1. Each delivery is sent at most once, and once more in place of each transfer that ``resend`` names, as long as it
   does. What is sent was written by one writer, in a try that Airflow still runs, and a person has approved it since
   the last clear, where that is asked for. A task that succeeds returns its
   delivery, sent. What a refusal says is so.
2. From a world in which nothing runs any more, a clear of all tasks ends with every delivery sent, once.
3. There, a clear with ``resend`` for what a task has returned, or for what its refusal names, sends once more; or the
   refusal says to trigger a new run.
4. A clear makes no draft in vain, continues with one that was handed on, and leaves none behind that is known not to be
   sent. This one is about cost, not safety.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from model.explore import Explorer
from model.tries import is_visible
from model.troubles import approve, clear, clearable, start
from model.world import DELIVERY, MEMORIES, NEW_RUN, Transfer, World
from outbound_transfer.delivery.decision import Phase

LEFT_BEHIND: Final = "a draft is left behind"
IN_VAIN: Final = "a draft is made in vain"

#: More than any try of the model takes.
MAX_STEPS: Final = 50


def broken_promise(world: World) -> str:
    """Return the promise that is broken in a world; "" if none is."""
    return world.broken or _sent_too_often(world.transfers, world.named)


@cache
def _sent_too_often(transfers: tuple[Transfer, ...], named: tuple[str, ...]) -> str:
    """Each task sends once, and once more for each transfer that is named and was sent. So is each delivery of a key,
    whatever its file, for each of its own.
    """
    sent = [each for each in transfers if each.status in ("sent", "hidden") and each.maker >= 0]
    again = [transfers[int(one)] for one in named if one.isdigit() and transfers[int(one)] in sent]
    elsewhere = sum(not one.isdigit() for one in named)  # accounts: what was sent there is one of these
    for maker, count in Counter(each.maker for each in sent).items():
        if count > 1 + elsewhere + len(again):
            return f"task {maker} sends too often"
    for (delivery, _), count in Counter((DELIVERY[each.item], each.key) for each in sent).items():
        if count > 1 + elsewhere + sum(DELIVERY[each.item] == delivery for each in again):
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
            # Who gives a key, and names what was sent without it, begins anew: what was sent is not the key's.
            is_anew = explorer.scenario.rules.keys and world.named
            sent, sent_after = _count_sent(world), _count_sent(after)
            if not is_anew and any(count < sent_after[maker] for maker, count in sent.items() if maker >= 0):
                yield 1, "a clear without resend sends once more"
            if waste := _find_waste(world, after, range(len(world.slots))):
                yield 4, waste
            for number in explorer.executor.makers(clearable(world)):
                why, before, again = _send_once_more(explorer, after, number)
                if why:
                    yield 3, why
                elif before is not after and _find_waste(after, before, [number]) == IN_VAIN:
                    yield 4, IN_VAIN
                elif not waste and _find_waste(before, again, [number]) == LEFT_BEHIND:
                    yield 4, LEFT_BEHIND

    def _cleared(self, explorer: Explorer, world: World) -> tuple[str, World]:
        """Return why a clear of all tasks does not deliver, "" if it does; and what is then."""
        world = world._replace(used=(), messages=())
        if world not in self._known:
            self._known[world] = _clear(explorer, world, clearable(world))
        return self._known[world]


def _send_once_more(explorer: Explorer, world: World, maker: int) -> tuple[str, World, World]:
    """Clear a task, and those that its draft is for, with what it has returned, or what a refusal names, as resend.

    :return: why it does not send once more; and the world before and after.
    """
    executor = explorer.executor
    group = tuple(each for each in clearable(world) if each == maker or maker in executor.upstream(each))
    before, after, resend = world, world, (_named_by(world, group),)
    while True:
        if NEW_RUN in resend:
            return "", before, after
        before = after
        why, after = _clear(explorer, before, group, resend)
        named = _named_by(after, group)
        has_sent = _count_sent(after)[maker] > _count_sent(before)[maker]
        may_go_on = _refused_by(after, group) or _may_be_unsent(after, resend[-1])
        if has_sent or not may_go_on or named in ("", *resend):
            break
        resend = (*resend, named)  # what was asked first has hidden what is asked next
    is_once = _count_sent(after)[maker] == _count_sent(world)[maker] + 1
    return why or ("" if is_once else "it does not send once more"), before, after


def _may_be_unsent(world: World, named: str) -> bool:
    """Return whether what was named is not seen as sent: what was sent before it is returned then."""
    if not named.isdigit():
        return False
    transfer = world.transfers[int(named)]
    return transfer.status != "sent" or not is_visible(transfer, world.run.connection)


def _named_by(world: World, group: tuple[int, ...]) -> str:
    """Return what the tasks that share a draft let the user name: what a refusal says, or what they have returned."""
    slots = [world.slots[number] for number in group]
    result = next((str(slot.result) for slot in reversed(slots) if slot.result >= 0), "")
    return _refused_by(world, group) or result


def _refused_by(world: World, group: tuple[int, ...]) -> str:
    """Return what a refusal lets the user name; "" if none does."""
    return next((world.slots[number].named for number in group if world.slots[number].named), "")


def _clear(
    explorer: Explorer, world: World, numbers: tuple[int, ...], resend: tuple[str, ...] = ()
) -> tuple[str, World]:
    executor, after, why = explorer.executor, clear(world, numbers, resend), ""
    for number in range(len(after.slots)):
        if after.slots[number].state not in ("new", "queued") or not executor.may_start(after, number):
            continue
        event, after = start(executor, after, number)
        for _ in range(MAX_STEPS):
            if after.processes:
                event, after = next(executor.steps(after, 0))
            elif after.slots[number].state == "awaiting":
                event, after = approve(executor, after, number)
            else:
                break
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
    is_left = draft.status == "draft" and not draft.is_outdated
    return is_same and is_left and not world.named


def _count_sent(world: World) -> Counter[int]:
    return Counter(each.maker for each in world.transfers if each.status in ("sent", "hidden"))
