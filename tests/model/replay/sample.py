"""Schedules that are sampled from the worlds of a scenario: random walks that end where no process is alive."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Final, NamedTuple

from model.explore import USUAL, Explorer, Scenario
from model.world import MEMORIES, Event, Process, World, scope
from outbound_transfer.delivery.decision import Phase

#: Events of the model that are not replayed, each with the reason.
NOT_REPLAYED: Final = {
    "a failure at a read without a call": (
        "the connection leads to another account, so nothing is asked, and nothing can fail"
    ),
    "a failure at the discard that ends a try": (
        "the model lets the try hand its draft on; the real one leaves it, and its first error stands"
    ),
    "a deferral at another call than the send": (
        "only a wait for a slot defers; the model lets any call, so that its try may be interrupted anywhere"
    ),
    "a redelivery that goes on after a pickup with what an earlier try has begun, or chosen": (
        "the real task delivers to whom it has chosen before, or discards or refuses what others have begun; the model "
        "has no recipients"
    ),
    "a claim of a key whose owner was cleared, and has not started": (
        "the real claim waits for that owner; the model's takes over"
    ),
    "a wait among the checks before the send": (
        "the real task ends its checks before it begins them again; tests/integration/test_late_changes.py plays it"
    ),
    "three tasks, mapped": (
        "the model has no task that attaches there, without which nothing is sent; the same tests play it"
    ),
    "three tasks, mapped, whose items have the same people": "likewise",
    "the send of a key whose memory was lost since it was announced": (
        "the real row says that it was sent, and not what"
    ),
}

#: Walks in which a trouble is looked for, before one without it is taken.
_MAX_ATTEMPTS: Final = 1_000

#: How often a schedule goes on with what is no trouble, if there is both.
_USUAL_SHARE: Final = 0.8

#: How often a favored trouble comes at each step where it can. Each schedule favors another one.
_FAVORED_SHARE: Final = 0.5

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
    """Return one schedule: the same for the same seed and number. Each number favors another trouble."""
    explorer = Explorer(scenario)
    troubles = [each for each in scenario.limits if each not in USUAL]
    favored = troubles[number % len(troubles)]
    for attempt in count():
        steps = _walk(explorer, Random(f"{seed} {number} {attempt} {scenario.name}"), favored)
        if steps and (attempt >= _MAX_ATTEMPTS or any(step.trouble == favored for step in steps)):
            return Schedule(scenario, number, steps)
    raise AssertionError


def _walk(explorer: Explorer, random: Random, favored: str) -> list[Step]:
    """Return a walk to a world in which no process is alive; nothing if an event of it is not replayed."""
    world, steps = explorer.scenario.first(), list[Step]()
    while options := _options(explorer, world):
        if _is_over(world) and random.random() < _END_SHARE[_is_done(world)]:
            break
        world = (chosen := _choose(options, random, favored)).after
        steps.append(chosen)
        if not _is_replayed(explorer, chosen):
            return []
    return steps


def _options(explorer: Explorer, world: World) -> list[Step]:
    names = list(explorer.scenario.limits)
    steps = []
    for event, after in explorer.successors(world):
        used = [name for name, before, now in zip(names, world.used, after.used, strict=True) if now > before]
        steps.append(Step(world, event, after, "".join(used)))
    return steps


def _choose(options: list[Step], random: Random, favored: str) -> Step:
    """Choose what happens; a trouble that is favored comes as soon as it can, in most schedules."""
    if (favorites := [each for each in options if each.trouble == favored]) and random.random() < _FAVORED_SHARE:
        return random.choice(favorites)
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
    """Return whether a step is none of :data:`NOT_REPLAYED`."""
    is_redelivery, process = explorer.scenario.rules.is_redelivery, step.process
    if is_redelivery and step.after.run.has_picked_up and any(_goes_on(step, each) for each in step.after.processes):
        return False
    if process is None:
        return True
    has_ended = len(step.after.processes) < len(step.before.processes)
    if has_ended and process.context.key and not step.after.stores[process.store].records:
        return False
    if step.trouble == "wait" and process.next != "SEND":
        return False
    if process.next in ("CLAIM_KEY", "SETTLED") and process.context.key and _is_owner_queued(explorer, step, process):
        return False
    if step.trouble == "deferral":
        return process.next == "SEND"
    if step.trouble != "failure":
        return True
    if process.next == "RETRIEVE":
        return MEMORIES[process.memory].scope.account == scope(process.context.connection).account
    return not (process.next == "DISCARD" and process.then)


def _is_owner_queued(explorer: Explorer, step: Step, process: Process) -> bool:
    rules = explorer.scenario.rules
    row = step.before.stores[len(rules.kinds) + rules.keys.index(process.context.key)]
    is_others = row.owner not in (-1, process.context.slot) and not row.is_sent
    return is_others and step.before.slots[row.owner].state == "queued"


def _goes_on(step: Step, process: Process) -> bool:
    """Return whether a process has chosen before a pickup to whom it delivers, or finds what others have chosen."""
    if step.trouble == "pickup":
        return process.next != "begin" and not process.is_writer
    if process.next != "BEGUN":
        return False
    memory = MEMORIES[process.memory]
    is_sent = memory.draft_id != "" and step.after.transfers[int(memory.draft_id)].status in ("sent", "hidden")
    return not process.is_complete or (memory.phase in _CHOSEN and not is_sent)


#: Phases in which a try goes on with what an earlier one has chosen.
_CHOSEN: Final = (Phase.HANDED_ON, Phase.SENDING)
