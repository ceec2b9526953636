"""Schedules in words, and pairs of schedules between which a task cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from model.explore import Explored, Explorer, Scenario, explore, name_of
from model.promises import broken_promise
from model.world import Event, Process, Transfer, World

#: Steps that say nothing to a reader.
_QUIET: Final = ("begins", "stores", "asks", "looks at", "claims", "searches (none)", "reads the draft (draft)")


def lines(events: list[Event]) -> Iterator[str]:
    """Yield a schedule, the steps that a try makes in a row on one line."""
    shown = [each for each in events if "missing" in each.detail or not str(each).partition(": ")[2].startswith(_QUIET)]
    for who, group in groupby(shown, lambda event: event.who):
        steps = [f"{each.what} ({each.detail})" if each.detail else each.what for each in group]
        if who is None:
            yield from steps
        else:
            yield f"task {who[0]}, try {who[1]}: {', '.join(steps)}"


class Pair(NamedTuple):
    """Two schedules after which a process knows the same: the promise is broken in one, and holds in the other."""

    broken: list[Event]
    same: list[Event]


def pair_of(scenario: Scenario, name: str) -> Pair:
    """Return the shortest schedule that breaks the first promise with these troubles, and one that looks the same.

    :param name: of the troubles; see :func:`name_of`.
    """
    troubles = name.split(" + ")
    listed = {each: scenario.limits[each] for each in scenario.limits if each in ("clear", "clear one", *troubles)}
    limits = {"try": 3, "crash": 1, **listed} if "send" not in scenario.rules.kinds else {"try": 5, **listed}
    small = replace(scenario, limits=limits, at_most=len(troubles) + 1)
    explored, explorer = explore(small, lambda *_: iter(())), Explorer(small)
    broken = (each for each in explored.seen if broken_promise(each) and name_of(explorer.troubles(each)) == name)
    world = next(broken)
    alike = ([*explored.trace(each), *events] for each, events in _look_alikes(explored, explorer, world))
    return Pair(explored.trace(world), next(alike, []))


def _look_alikes(explored: Explored, explorer: Explorer, failed: World) -> Iterator[tuple[World, list[Event]]]:
    """Yield worlds in which a process knows what it knew in a failed one, and goes on to send, and is right to."""
    for process in _deciders(explored, failed):
        alike = [each for each in explored.seen if process in each.processes and not each.messages]
        for world in sorted(alike, key=explorer.count):
            after, events = world, list[Event]()
            while len(after.processes) == 1:
                event, after = next(explorer.executor.steps(after, 0))
                events.append(event)
            is_sent = len(_sent(after)) == len(_sent(world)) + 1
            if is_sent and not after.processes and not broken_promise(after):
                yield world, events


def _sent(world: World) -> list[Transfer]:
    return [each for each in world.transfers if each.status == "sent"]


def _deciders(explored: Explored, world: World) -> Iterator[Process]:
    """Yield the process that has sent last as it was right before; then as it was when it made the draft."""
    sender = None
    while (step := explored.seen[world]) is not None:
        world, event = step
        is_send = event.what == "sends" or event.detail == "its send is under way"
        if (is_send and sender is None) or (event.what == "creates a draft" and event.who == sender):
            sender = event.who
            yield next(each for each in world.processes if each.context[:2] == sender)
