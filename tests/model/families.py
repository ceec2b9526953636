"""The schedules: each is a trouble, at each step of a delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from model.world import HELD, Action, Killed, World, kill
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.order import Order
from outbound_transfer.protocol.errors import ConnectionLost

#: What a schedule is called, and what runs it.
Schedule = tuple[Any, Callable[[], World]]

TWO = {"A": {"a.csv": b"abc"}, "B": {"c.csv": b"xyz"}}
FILES = ("same", "touched", "changed", "same size", "vanished", "missing", "renamed", "more", "other subject")
ACTIONS = (
    *(("create",), ("attach:A",), ("send",), ("discard",)),
    *(("create", "attach:A"), ("attach:A", "send"), ("create", "attach:A", "send")),
)


def busy(sends: int) -> Callable[[World], None]:
    return lambda world: setattr(world.service, "busy", sends)


class One(World):
    """One task that creates, attaches and sends."""

    def tasks(self) -> list[str]:
        return ["deliver"]


class Lazy(World):
    eager = False


class Deferrable(World):
    deferrable = True


class DeferrableOne(One):
    deferrable = True


def length(world: World, sent: int = 1) -> list[str]:
    """Return the steps of an undisturbed delivery."""
    world.fresh().pipeline()
    assert not world.violations, world.violations
    assert len(world.service.billed) == sent, world.status
    return list(world.log)


def change(world: World, how: str) -> None:
    """Change a file."""
    files = next(iter(world.files.values()))
    data, time = files.get("a.csv", (b"abc", 1))
    if how == "missing":
        world.missing.add("a.csv")
    elif how == "other subject":
        world.subject = "Another report"
    elif how == "more":
        files["n.csv"] = b"new", 1
    elif how in ("vanished", "renamed"):
        files.pop("a.csv", None)
        if how == "renamed":
            files["z.csv"] = data, time
    elif how != "same":
        files["a.csv"] = {"touched": data, "changed": b"CHANGED", "same size": b"xyz"}[how], time + 1


def play(world: World, at: dict[int, Action], then: Callable[[World], object] = lambda world: None) -> World:
    world.fresh().at = dict(at)
    world.pipeline()
    then(world)
    world.finish()
    return world


def kills(world: World, *, pairs: bool = True) -> Iterator[Schedule]:
    """The process is killed at a step, and the next one again."""
    steps = len(length(world))
    for first in range(1, steps + 1):
        for second in (0, *range(first + 1, steps + 25)) if pairs else (0,):
            yield (first, second), partial(play, world, {first: kill, second: kill})


def meanwhile(  # noqa: C901  # one loop for each choice
    world: World,
    actions: Iterable[tuple[str, ...]],
    files: Sequence[str] = ("same",),
    dies: Sequence[bool] = (False, True),
    inner: Sequence[int] = (0,),
    prepare: Callable[[World], object] = lambda world: None,
    then: Callable[[World], object] = lambda world: None,
) -> Iterator[Schedule]:
    """At a step, tasks run whole, or until they are killed; the task that was overtaken goes on, or dies."""

    def act(world: World, action: tuple[str, ...], how: str, killed_at: int, *, is_killed: bool) -> None:
        prepare(world)
        change(world, how)
        at = world.steps + killed_at
        if killed_at:
            world.at[at] = kill
        for task in action:
            world.one(task)
        if killed_at:
            world.at.pop(at, None)
        if is_killed:
            raise Killed

    for at in range(1, len(length(world)) + 1):
        for action in actions:
            for how in files:
                for is_killed in dies:
                    for killed_at in inner:
                        due = partial(act, world, action, how, killed_at, is_killed=is_killed)
                        yield (at, action, how, is_killed, killed_at), partial(play, world, {at: due}, then)


def lost(
    world: World, files: Sequence[str] = ("same",), ends: Sequence[type[BaseException]] = (Killed, ConnectionLost)
) -> Iterator[Schedule]:
    """A request is lost, or its response is, or it arrives later; its process is killed, or goes on."""
    steps = length(world)
    requests = [(step, request.method) for _, request, step in world.requests]

    def lose(world: World, how: str, lands: int, end: type[BaseException]) -> None:
        if lands:
            world.at[lands] = world.lose()
        change(world, how)
        raise end("lost")

    def run(world: World, at: int, due: Action) -> World:
        world.fresh().at = {at: due}
        world.pipeline()
        for action in list(world.at.values()):  # or after everything
            action()
        world.finish()
        return world

    for step, method in requests:
        for how in files:
            for end in ends:
                for lands in (0, *(range(step + 1, len(steps) + 25) if method != "GET" else ())):
                    yield (
                        (step, how, end.__name__, lands),
                        partial(run, world, step, partial(lose, world, how, lands, end)),
                    )
                yield (step + 1, how, end.__name__), partial(run, world, step + 1, partial(lose, world, how, 0, end))


def late_sends(world: World, files: Sequence[str]) -> Iterator[Schedule]:
    """A send is lost, the next attempt waits for a slot; meanwhile a task runs, and the lost send arrives."""
    send = next(at for at, what in enumerate(length(world), 1) if what.endswith("/send before"))

    def run(how: str, again: str, lands: int, moment: int) -> World:
        late: list[Action] = []

        def act() -> None:
            change(world, how)
            world.at[world.steps + lands] = late[0]
            world.one(again)

        def lose() -> None:
            late.append(world.lose())
            world.service.busy = 1
            world.at[send + moment] = act
            raise Killed

        play_until(world, {send: lose})
        if world.at and late:
            world.at = {}
            late[0]()
        world.finish()
        return world

    for how in files:
        for again in ("attach:A", "create", "discard", "send"):
            for lands in range(1, 40):
                for moment in range(1, 12):
                    yield (how, again, lands, moment), partial(run, how, again, lands, moment)


def play_until(world: World, at: dict[int, Action]) -> None:
    world.fresh().at = dict(at)
    world.pipeline()


def run_made_again(world: World) -> Iterator[Schedule]:
    """The run is deleted and made again under its id at a step; its new tasks run; the old one goes on or dies."""

    def again(world: World) -> None:
        world.instances.clear()
        world.xcom.clear()
        world.era += 1
        world.starts["r"], world.clears["r"] = world.starts.get("r", 0) + 1, 0

    tasks = world.fresh().tasks()
    actions = [tuple(tasks[:count]) for count in range(len(tasks) + 1)]
    yield from meanwhile(world, actions, ("same", "changed"), prepare=again, then=World.pipeline)


def moved(world: World) -> Iterator[Schedule]:
    """The connection gets another key, of this or another user, or leads to another account; and it is set right."""

    def act(account: str, key: str, dies: bool) -> None:
        world.account, world.key, world.hidden = account, key, True
        if dies:
            raise Killed

    def run(at: int, account: str, key: str, dies: bool) -> World:
        play_until(world, {at: partial(act, account, key, dies)})
        world.finish()
        world.account, world.key = "a.example.com", "k1"
        world.hidden = any((each.account, each.user) != ("a.example.com", "ann") for each in world.service.billed)
        world.finish()
        return world

    for at in range(1, len(length(world)) + 1):
        for account, key in (("a.example.com", "k2"), ("a.example.com", "k3"), ("b.example.com", "k1")):
            for dies in (False, True):
                yield (at, account, key, dies), partial(run, at, account, key, dies)


def rows_lost(world: World) -> Iterator[Schedule]:
    """The row is deleted, or restored to an older copy: nothing more is promised than that nothing else is lost."""

    def copy(copies: list[Any]) -> None:
        copies.append(dict(world.table.rows))

    def lose(copies: list[Any], dies: bool) -> None:
        world.allowed, world.hidden = 1 + (Phase.SENDING in world.phases), True
        world.table.rows.clear()
        world.table.rows.update(copies[0] if copies else {})
        if dies:
            raise Killed

    def run(copied: int, at: int, dies: bool) -> World:
        copies: list[Any] = []
        return play(world, {copied: partial(copy, copies), at: partial(lose, copies, dies)})

    steps = len(length(world))
    for at in range(1, steps + 1):
        for copied in range(at):
            for dies in (False, True):
                yield (copied, at, dies), partial(run, copied, at, dies)


def statements_fail(world: World) -> Iterator[Schedule]:
    """The database fails at a statement, before or after it was done, or its answer is lost; so does a later one."""
    length(world)
    count = world.statements

    def run(failing: dict[int, str]) -> World:
        world.fresh().failing = failing
        world.pipeline()
        world.finish()
        return world

    for first in range(1, count + 1):
        for how in ("before", "after", "unheard"):
            for second in (0, *range(first + 1, first + 8)):
                for then in ("before", "after") if second else ("",):
                    yield (first, how, second, then), partial(run, {first: how, second: then})


def draft_of(world: World) -> Any:
    """Return the draft that a row knows; a person could not tell another from those of other tasks."""
    known = [each for (account, id_), each in world.service.transfers.items() if id_ + account in world.heard]
    return next((each for each in reversed(known) if each.status == "draft"), None)


def removed_after_send(world: World) -> Iterator[Schedule]:  # noqa: C901  # one loop for each choice
    """A sent transfer is removed in the web application; then tasks are cleared, and killed at a step."""
    steps = length(world)
    tasks = world.tasks()
    actions = [(task,) for task in (*tasks, "discard")] + [("discard", *tasks), tuple(tasks)]
    sent = next(at for at, what in enumerate(steps, 1) if what.endswith("/send after"))

    def run(at: int, action: tuple[str, ...], killed_at: int, dies: bool) -> World:
        def remove() -> None:
            for each in world.service.billed:
                world.service.transfers.pop((each.account, each.id), None)
            world.hidden = True
            if killed_at:
                world.at[world.steps + killed_at] = kill
            for task in action:
                world.one(task)
            if dies:
                raise Killed

        world.fresh().at = {at: remove}
        world.pipeline()
        if at in world.at:  # after everything
            world.at.pop(at)
            with suppress(Killed):
                remove()
        world.finish()
        return world

    for at in range(sent, len(steps) + 2):
        for action in actions:
            for dies in (False, True):
                for killed_at in range(15):
                    yield (at, action, killed_at, dies), partial(run, at, action, killed_at, dies)


def touched_by_person(world: World) -> Iterator[Schedule]:  # noqa: C901  # one loop for each choice
    """A person sends or removes the draft in the web application."""

    def act(how: str, dies: bool) -> None:
        if found := draft_of(world):
            if how == "removes":
                del world.service.transfers[found.account, found.id]
                world.hidden = True
            elif found.files:
                world.note_bill(found)
                world.hidden = True
                world.service.send(found)
        if dies:
            raise Killed

    def run(at: int, how: str, dies: bool, then: int) -> World:
        return play(world, {at: partial(act, how, dies)} | ({then: kill} if then else {}))

    steps = len(length(world))
    for at in range(1, steps + 1):
        for how in ("sends", "removes"):
            for dies in (False, True):
                for then in (0, *range(at + 1, steps + 25)):
                    yield (at, how, dies, then), partial(run, at, how, dies, then)


class Skipping(World):
    """The second attaching task may be skipped."""

    skips = False

    def tasks(self) -> list[str]:
        return [task for task in super().tasks() if not (self.skips and task == "attach:B")]


def skipped(world: Skipping) -> Iterator[Schedule]:
    """A task that attached files to a draft is skipped after a clear."""
    world.skips = False
    steps = length(world)

    def run(at: int) -> World:
        world.skips = False
        world.fresh().at = {at: kill}
        world.pipeline(1)
        world.instance("attach:B").state = "skipped"
        world.files.pop("B", None)
        world.skips = True
        world.finish()
        return world

    for at in range(1, next(at for at, what in enumerate(steps, 1) if what.endswith("/send before"))):
        yield at, partial(run, at)


class Redelivery(One):
    """Right before the send, the draft turns out to be to one who has picked up."""

    def fresh(self) -> World:
        self.outdated, self.people = 1, ["ann@example.com", "bob@example.com"]
        return super().fresh()

    @property
    def recipients(self) -> list[str]:  # type: ignore[override]
        return self.people[:]

    def order(self, task: str) -> Any:
        order = super().order(task)

        def is_outdated() -> bool:
            if was := bool(self.outdated):
                self.outdated, self.people = 0, ["bob@example.com"]
            return was

        order.is_outdated = is_outdated
        return order

    def deliver(self, attempt: Any, task: str, key: str | None = None) -> None:
        from outbound_transfer.delivery.delivery import DraftOutdated

        while True:
            try:
                return super().deliver(attempt, task, key)
            except DraftOutdated:
                continue


class Keyed(World):
    """Two runs that deliver under one key."""

    def fresh(self) -> World:
        super().fresh()
        self.delivery_keys = {"deliver:1": "K", "deliver:2": "K"}
        return self

    def ids(self, task: str) -> tuple[str, str, str, int]:
        return "d", f"run{task[-1]}", "deliver", -1

    def one(self, task: str) -> str:
        self.era = int(task[-1])  # each run has a bill of its own
        return super().one(task)

    def deliver(self, attempt: Any, task: str, key: str | None = None) -> None:
        super().deliver(attempt, task, self.delivery_keys[task])

    def tasks(self) -> list[str]:
        return ["deliver:1"]


class Rude(Keyed):
    is_polite = False


def keyed(world: Keyed) -> Iterator[Schedule]:
    """A second run delivers under the key at a step, and is killed at one of its own."""

    def act(how: str, dies: bool, killed_at: int) -> None:
        change(world, how)
        at = world.steps + killed_at
        if killed_at:
            world.at[at] = kill
        world.one("deliver:2")
        world.at.pop(at, None)
        if dies:
            raise Killed

    def run(at: int, how: str, dies: bool, killed_at: int) -> World:
        play_until(world, {at: partial(act, how, dies, killed_at)})
        world.at, world.service.busy = {}, 0
        ends = [world.task("deliver:2", 3), world.task("deliver:1", 3)]
        is_refused = how == "changed" and "AlreadyDelivered" in str(world.status)
        if len(world.service.billed) != 1 or not (any(ends) or is_refused):
            world.violations.append(f"{len(world.service.billed)} were sent: {world.status}")
        return world

    for at in range(1, len(length(world)) + 1):
        for how in ("same", "changed"):
            for dies in (False, True):
                for killed_at in range(30):
                    yield (at, how, dies, killed_at), partial(run, at, how, dies, killed_at)


def keys_changed(world: Keyed) -> Iterator[Schedule]:
    """An attempt dies, and the next has another key, or none, and dies, too; or another run has taken the key over."""

    def run(at: int, then: str, killed_at: int, other: bool) -> World:
        play_until_killed(world, at)
        world.delivery_keys["deliver:1"] = then
        if other:
            world.at = {world.steps + killed_at: partial(world.one, "deliver:2")} if killed_at else {}
        else:
            world.at = {world.steps + killed_at: kill} if killed_at else {}
        world.one("deliver:1")
        world.at, world.service.busy = {}, 0
        is_green = world.task("deliver:1", 2)
        billed = len(world.service.billed)
        if billed not in ((1, 2) if other else (1,)):
            world.violations.append(f"{billed} were sent: {world.status}")
        if not is_green and "AlreadyDelivered" not in str(world.status):
            world.violations.append(f"not delivered: {world.status}")
        return world

    def play_until_killed(world: World, at: int) -> None:
        world.fresh().at = {at: kill}
        world.one("deliver:1")

    for at in range(1, len(length(world)) + 1):
        for then in ("L", None):
            for killed_at in range(45):
                for other in (False, True):
                    yield (at, then, killed_at, other), partial(run, at, then, killed_at, other)


class Mapped(World):
    """Two indexes, whose items change places."""

    may_have_twins = True
    people = ("ann@example.com", "bob@example.com")

    def fresh(self) -> World:
        self.places = [0, 1]
        super().fresh()
        self.allowed = 2
        return self

    def ids(self, task: str) -> tuple[str, str, str, int]:
        return "d", "r", "deliver", int(task[-1])

    def deliver(self, attempt: Any, task: str, key: str | None = None) -> None:
        self.recipients = [self.people[self.places[int(task[-1])]]]
        super().deliver(attempt, task, key)

    def tasks(self) -> list[str]:
        return ["deliver:0", "deliver:1"]


def twins(world: Mapped) -> Iterator[Schedule]:
    """Items change places, or become the same, at a step."""

    def act(places: list[int], action: tuple[str, ...], dies: bool) -> None:
        world.places = places
        for task in action:
            world.one(task)
        if dies:
            raise Killed

    def run(at: int, places: list[int], action: tuple[str, ...], dies: bool) -> World:
        play_until(world, {at: partial(act, places, action, dies)})
        world.at = {}
        world.pipeline()
        to = [each.recipients[0]["email"] for each in world.service.billed]
        if len(set(to)) < len(to):
            world.violations.append(f"one item was sent twice: {to}")
        return world

    for at in range(1, len(length(world, 2)) + 1):
        for places in ([1, 0], [0, 0], [1, 1]):
            for action in ((), ("deliver:0",), ("deliver:1",), ("deliver:1", "deliver:0")):
                for dies in (False, True):
                    yield (at, places, action, dies), partial(run, at, places, action, dies)


class Namesakes(Mapped):
    """Two indexes that deliver to the same people files of the same names, with other bytes."""

    people = ("ann@example.com", "ann@example.com")

    def order(self, task: str) -> Any:
        return Order(self.new(), self.sources(str(self.places[int(task[-1])])))


def namesakes(world: Mapped) -> Iterator[Schedule]:
    """Deliveries that only the bytes tell apart are no twins; neither is sent twice."""

    def run(at: int) -> World:
        play_until(world, {at: kill})
        if len({tuple(each.content.values()) for each in world.service.billed}) < 2:
            world.violations.append(f"not both were sent: {world.status}")
        return world

    for at in range(1, len(length(world, 2)) + 1):
        yield at, partial(run, at)


def families() -> dict[str, Callable[[], Iterator[Schedule]]]:
    """Return what makes the schedules, by name."""
    three, slot, two = {"A": HELD}, busy(1), (*ACTIONS, ("attach:B",), ("create", "attach:B"))
    few = ("same", "changed", "renamed")
    inner = range(1, 27)
    return {
        "kills": lambda: kills(World(three)),
        "kills, files saved once": lambda: kills(Lazy(three), pairs=False),
        "kills, two tasks attach": lambda: kills(World(TWO)),
        "kills, a slot": lambda: kills(World(three, busy(2))),
        "kills, deferred": lambda: kills(Deferrable(three, busy(2))),
        "one task, kills": lambda: kills(One(three)),
        "one task, kills, a slot": lambda: kills(One(three, slot)),
        "one task, kills, deferred": lambda: kills(DeferrableOne(three, busy(2))),
        "one task, cleared": lambda: meanwhile(One(three, slot), [("deliver",), ("deliver", "deliver")], FILES),
        "one task, cleared, deferred": lambda: meanwhile(DeferrableOne(three, slot), [("deliver",)], FILES),
        "one task, clears killed": lambda: meanwhile(One(three, slot), [("deliver",)], few, (False,), inner),
        "clears": lambda: meanwhile(World(three), ACTIONS, FILES),
        "clears, a slot": lambda: meanwhile(World(three, slot), ACTIONS, FILES),
        "clears, deferred": lambda: meanwhile(Deferrable(three, slot), ACTIONS, few),
        "clears, two tasks attach": lambda: meanwhile(World(TWO, slot), two, few),
        "clears, files saved once": lambda: meanwhile(Lazy(three), ACTIONS, few),
        "clears killed": lambda: meanwhile(World(three, slot), ACTIONS, ("same", "changed"), (False,), inner),
        "lost requests": lambda: lost(World(three), FILES),
        "lost requests, a slot": lambda: lost(World(three, slot), few),
        "one task, lost requests": lambda: lost(One(three, slot), few),
        "a lost send arrives while a task runs": lambda: late_sends(World(three), FILES),
        "the run is made again": lambda: run_made_again(World(three, slot)),
        "one task, the run is made again": lambda: run_made_again(One(three, slot)),
        "another key or account": lambda: moved(World(three, slot)),
        "one task, another key or account": lambda: moved(One(three, slot)),
        "rows lost": lambda: rows_lost(World(three)),
        "one task, rows lost": lambda: rows_lost(One(three)),
        "the database fails": lambda: statements_fail(World(three, slot)),
        "one task, the database fails": lambda: statements_fail(One(three, slot)),
        "removed after the send": lambda: removed_after_send(World(three)),
        "one task, removed after the send": lambda: removed_after_send(One(three)),
        "a person touches the draft": lambda: touched_by_person(World(three, slot)),
        "one task, a person touches the draft": lambda: touched_by_person(One(three, slot)),
        "a task is skipped": lambda: skipped(Skipping(TWO)),
        "redelivery, kills": lambda: kills(Redelivery(three)),
        "keys": lambda: keyed(Keyed(three, slot)),
        "keys, Airflow is wrong": lambda: keyed(Rude(three, slot)),
        "keys changed": lambda: keys_changed(Keyed(three, slot)),
        "twins": lambda: twins(Mapped(three)),
        "twins that are none": lambda: namesakes(Namesakes({"0": {"a.csv": b"abc"}, "1": {"a.csv": b"xyz"}})),
    }
