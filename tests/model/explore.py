"""Explore the worlds of a scenario: first those with the fewest troubles, and of these the nearest.

So the trace to a world in which a promise is broken has the fewest troubles that break it, and is the shortest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from model.shared import SharedExecutor
from model.tries import Executor, Rules
from model.troubles import TROUBLES, arrivals, resumes
from model.world import Event, Run, Slot, Store, World, intern

#: Returns whether a trouble may come in a world.
Guard: TypeAlias = Callable[[World, str], bool]

#: How often each trouble has come, without what always comes.
Troubles: TypeAlias = tuple[tuple[str, int], ...]

#: What every user does, and is no trouble.
USUAL: Final = frozenset({"try", "clear", "clear one", "clear an index"})

#: What may come between the last checks and the send even if nothing else does: the send itself meets it.
AT_A_CALL: Final = frozenset(
    {"crash", "crash in a call", "wait", "lost response", "failure", "deferral", "failure for good"}
)

_NO_RULES: Final = Rules()


@dataclass(frozen=True, eq=False)
class Scenario:
    """A first world, the rules of its executor, and how often each trouble may come.

    :ivar items: what each task is to deliver; "" if it is not there at first.
    :ivar at_most: how many troubles may come in all.
    :ivar guard: which may come, and in which worlds, beside that.
    """

    name: str
    limits: Mapping[str, int]
    rules: Rules = _NO_RULES
    items: tuple[str, ...] = ("X",)
    at_most: int = 2
    guard: Guard | None = None

    def first(self) -> World:
        key = self.rules.keys[0] if self.rules.keys else ""
        slots = tuple(intern(Slot(item, key=key, state="new" if item else "absent")) for item in self.items)
        stores = (intern(Store()),) * (len(slots) + len(self.rules.keys))
        return World(slots, stores, (), (), (), intern(Run()), (0,) * len(self.limits))


class Explorer:
    """The worlds that follow a world, in one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.executor = (SharedExecutor if "create" in scenario.rules.kinds else Executor)(scenario.rules)
        self._troubles = [
            (index, name, TROUBLES[name], limit) for index, (name, limit) in enumerate(scenario.limits.items())
        ]
        self._names = list(scenario.limits)
        self._counts = [name not in USUAL for name in self._names]

    def successors(self, world: World) -> Iterator[tuple[Event, World]]:
        """Yield what may happen next."""
        executor = self.executor
        only = executor.is_in_an_instant(world)
        for index in range(len(world.processes)):
            if only is None or index == only:
                yield from executor.steps(world, index)
        if only is None:
            yield from resumes(executor, world)
            yield from arrivals(executor, world)
        yield from self._troubled(world, None if only is None else world.processes[only].context[:2])

    def _troubled(self, world: World, only: tuple[int, int] | None) -> Iterator[tuple[Event, World]]:
        used, guard = world.used, self.scenario.guard
        is_full = self.count(world) >= self.scenario.at_most
        for index, name, trouble, limit in self._troubles:
            if used[index] >= limit or (is_full and self._counts[index]) or (guard and not guard(world, name)):
                continue
            if only and name not in AT_A_CALL:
                continue
            after_use = (*used[:index], used[index] + 1, *used[index + 1 :])
            for event, after in trouble(self.executor, world):
                if not only or event.who == only:
                    yield event, after._replace(used=after_use)

    def count(self, world: World) -> int:
        """Return how many troubles have come."""
        return sum(used for used, counts in zip(world.used, self._counts, strict=True) if counts)

    def troubles(self, world: World) -> Troubles:
        """Return which troubles have come."""
        each = zip(self._names, world.used, self._counts, strict=True)
        return tuple((name, used) for name, used, counts in each if counts and used)


def name_of(troubles: Troubles) -> str:
    """Return troubles as text."""
    return " + ".join(name for name, count in troubles for _ in range(count))


class Failure(NamedTuple):
    """A promise that is broken.

    :ivar promise: its number; see :mod:`.promises`.
    :ivar what: how it is broken.
    :ivar troubles: which have come until then.
    """

    promise: int
    what: str
    troubles: Troubles
    world: World


@dataclass
class Explored:
    """The worlds of a scenario.

    :ivar seen: for each world, the one that it was reached from, and the event.
    :ivar failures: of each way to break a promise, those with the fewest troubles: none has all troubles of another.
    :ivar failing: how many worlds break a promise.
    """

    scenario: Scenario
    seen: dict[World, tuple[World, Event] | None] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    failing: int = 0
    seconds: float = 0.0
    is_exhausted: bool = True

    def trace(self, world: World) -> list[Event]:
        """Return what has led to a world."""
        events: list[Event] = []
        while (step := self.seen[world]) is not None:
            world, event = step
            events.append(event)
        return events[::-1]

    def is_known(self, promise: int, what: str, troubles: Troubles) -> bool:
        """Return whether fewer of the same troubles are known to break a promise in the same way."""
        return any(
            (each.promise, each.what) == (promise, what) and _includes(troubles, each.troubles)
            for each in self.failures
        )

    def is_unsafe(self, troubles: Troubles) -> bool:
        """Return whether fewer of the same troubles are known to break the first promise."""
        return any(each.promise == 1 and _includes(troubles, each.troubles) for each in self.failures)


def _includes(troubles: Troubles, fewer: Troubles) -> bool:
    came = dict(troubles)
    return all(came.get(name, 0) >= count for name, count in fewer)


#: Returns the promises that are broken in a world, each with its number, and in words.
Judge: TypeAlias = Callable[[Explorer, World], Iterator[tuple[int, str]]]


def explore(
    scenario: Scenario, judge: Judge, *, max_worlds: int = 2_000_000, known: Explored | None = None
) -> Explored:
    """Explore all worlds, or until a promise is broken that is not known to be.

    What follows from a broken first promise is not explored.

    :param max_worlds: how many worlds to see at most.
    :param known: what breaks promises already. If given, the first other failure ends the search.
    """
    explorer, explored = Explorer(scenario), Explored(scenario)
    started = time.process_time()
    first = scenario.first()
    explored.seen[first] = None
    layers = [deque([first])]  # by the number of troubles
    for layer in layers:
        while layer and explored.is_exhausted:
            world = layer.popleft()
            troubles = explorer.troubles(world)
            if explored.is_unsafe(troubles) or (known and known.is_unsafe(troubles)):
                continue
            for promise, what in judge(explorer, world):
                explored.failing += 1
                if not explored.is_known(promise, what, troubles):
                    explored.failures.append(Failure(promise, what, troubles, world))
                    explored.is_exhausted &= known is None or known.is_known(promise, what, troubles)
            if not explored.is_unsafe(troubles):
                for event, after in explorer.successors(world):
                    if after not in explored.seen:
                        explored.seen[after] = (world, event)
                        count = explorer.count(after)
                        layers.extend(deque() for _ in range(count + 1 - len(layers)))
                        layers[count].append(after)
            explored.is_exhausted &= len(explored.seen) < max_worlds
    explored.seconds = time.process_time() - started
    return explored
