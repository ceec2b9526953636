"""Schedules that are sampled from the worlds of a scenario: random walks that end where no process is alive."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from model.explore import USUAL, Explorer, Scenario
from model.world import MEMORIES, Event, Process, World, scope

#: Events of the model that are not replayed, each with the reason.
NOT_REPLAYED: Final = {
    "nothing fails or defers at a read without a call": "the connection leads to another account, so there is no call",
}

#: How often a schedule goes on with what is no trouble, if there is both.
_USUAL_SHARE: Final = 0.8

#: How often a schedule ends where it can: where a task is to be retried, and where all have ended.
_END_SHARE: Final = {False: 0.05, True: 0.3}


class Step(NamedTuple):
    """One event of a schedule.

    :ivar trouble: its name in the scenario; "" if it is none.
    """

    before: World
    event: Event
    after: World
    trouble: str

    @property
    def process(self) -> Process | None:
        """The process that it is about, as it is before; None if there is none."""
        return next((each for each in self.before.processes if each.context[:2] == self.event.who), None)


class Schedule(NamedTuple):
    """A schedule of a scenario, and its number among them."""

    scenario: Scenario
    number: int
    steps: list[Step]

    @property
    def end(self) -> World:
        return self.steps[-1].after

    def __str__(self) -> str:
        lines = [f"{at}. {step.event}" for at, step in enumerate(self.steps)]
        return "\n".join([f"{self.scenario.name}, schedule {self.number}", *lines])


def schedule(scenario: Scenario, seed: int, number: int) -> Schedule:
    """Return one schedule: the same for the same seed and number."""
    random, explorer = Random(f"{seed} {number} {scenario.name}"), Explorer(scenario)  # noqa: S311
    world, steps = scenario.first(), list[Step]()
    while options := _options(explorer, world):
        if _is_over(world) and random.random() < _END_SHARE[_is_done(world)]:
            break
        world = (chosen := _choose(options, random)).after
        steps.append(chosen)
    return Schedule(scenario, number, steps)


def _options(explorer: Explorer, world: World) -> list[Step]:
    names = list(explorer.scenario.limits)
    steps = []
    for event, after in explorer.successors(world):
        used = [name for name, before, now in zip(names, world.used, after.used, strict=True) if now > before]
        step = Step(world, event, after, "".join(used))
        if _is_replayed(explorer, step):
            steps.append(step)
    return steps


def _choose(options: list[Step], random: Random) -> Step:
    usual = [each for each in options if each.trouble in USUAL or not each.trouble]
    troubles = [each for each in options if each not in usual]
    is_usual = usual and (not troubles or random.random() < _USUAL_SHARE)
    if is_usual:
        return random.choice(usual)
    name = random.choice(sorted({each.trouble for each in troubles}))  # whether it can come in many ways or in one
    return random.choice([each for each in troubles if each.trouble == name])


def _is_over(world: World) -> bool:
    is_idle = all(slot.state not in ("running", "deferred") for slot in world.slots)
    return is_idle and not world.processes and not world.messages and any(slot.tries for slot in world.slots)


def _is_done(world: World) -> bool:
    return all(slot.state in ("success", "refused", "absent", "removed") for slot in world.slots)


def _is_replayed(explorer: Explorer, step: Step) -> bool:
    process = step.process
    if process is None or step.trouble not in ("failure", "deferral"):
        return True
    if process.next == "RETRIEVE":
        return MEMORIES[process.memory].scope.account == scope(process.context.connection).account
    return process.next != "SEARCH" or not explorer.executor._cannot_search(process)
