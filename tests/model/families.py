"""The schedules: each is a trouble, at each step of a delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import msgspec

from model.service import Stored
from model.world import HELD, Action, Killed, ModelRows, World, kill
from outbound_transfer.client.errors import NoResponse, OutboundTransferError
from outbound_transfer.client.models import Transfer
from outbound_transfer.delivery import approve
from outbound_transfer.delivery.attempt import Attempt
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.delivery import Order
from outbound_transfer.delivery.forget import forget
from outbound_transfer.delivery.row import Memory

#: What a schedule is called, and what runs it.
Schedule = tuple[Any, Callable[[], World]]

TWO = {"A": {"a.csv": b"abc"}, "B": {"c.csv": b"xyz"}}
FILES = ("same", "touched", "changed", "same size", "vanished", "missing", "renamed", "more", "other subject")
ACTIONS = (
    *(("create",), ("attach:A",), ("send",), ("discard",)),
    *(("create", "attach:A"), ("attach:A", "send"), ("create", "attach:A", "send")),
)

#: Whether the process that is overtaken dies.
DIES = (False, True)


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


class Approved(World):
    """A person approves or rejects what a draft holds.

    :ivar choice: of the person: 0 to approve, 1 to reject. :ivar page: what Airflow shows: the first request, and what
        the draft held then. :ivar approved: the content that the row says is approved.
    """

    def fresh(self) -> World:
        self.choice, self.page, self.seen, self.approved = 0, None, None, None
        return super().fresh()

    def tasks(self) -> list[str]:
        return [*super().tasks()[:-1], "approve", "send"]

    def approve(self, attempt: Attempt, task: str) -> None:
        if not all(self.instance(each).has_succeeded for each in self.tasks()[:-2]):
            raise OutboundTransferError("Airflow does not start it")
        client, found, transfer_id = self.find_row()
        asked = approve.ask(client, found, transfer_id, attempt)
        if isinstance(asked, Transfer):
            held = {name: held.sha256 for name, held in found.memory.held.items()}
            self.page = self.page or (approve.options_of(found.memory), held)
            self.step("a person thinks")
            options, self.seen = self.page
            asked = approve.answer(found, transfer_id, attempt, options[self.choice], "ann", "now")
        if asked.state == approve.REJECTED:
            raise OutboundTransferError("rejected")

    def hear(self, key: str, stored: Any) -> None:
        super().hear(key, stored)
        approval = msgspec.json.decode(stored.memory, type=Memory).approval
        self.approved = self.seen if approval and approval.state == approve.APPROVED else None

    def check_bill(self, sent: Stored) -> None:
        super().check_bill(sent)
        if sent.content != self.approved:
            self.violations.append(f"sent {sent.content}, a person approved {self.approved}")

    def finish(self, tries: int = 3) -> bool:
        self.choice, self.page = 0, None  # another task instance, or a later Airflow
        return super().finish(tries)


def approvals(world: Approved) -> Iterator[Schedule]:
    """At a step, tasks are cleared, and the files change; the person approves or rejects what the first page shows."""

    def run(at: int, action: tuple[str, ...], how: str, choice: int, is_killed: bool) -> World:
        def act() -> None:
            world.choice = choice
            change(world, how)
            world.run(*action, dies=is_killed)

        return play(world, {at: act})

    actions = [("approve",), ("attach:A",), ("create", "attach:A"), ("create", "attach:A", "approve"), ("send",)]
    yield from every(run, steps_of(world), actions, ("same", "changed", "same size", "more"), (0, 1), DIES)


def every(run: Callable[..., World], *choices: Iterable[Any]) -> Iterator[Schedule]:
    for each in product(*choices):
        yield each, partial(run, *each)


def log_of(world: World, sent: int = 1) -> list[str]:
    """Return the steps of an undisturbed delivery."""
    world.fresh().pipeline()
    assert not world.violations, world.violations
    assert len(world.service.billed) == sent, world.status
    assert world.service.numbers["t" + world.account] == world.drafts, "a draft is made in vain"
    return list(world.log)


def steps_of(world: World, sent: int = 1) -> range:
    return range(1, len(log_of(world, sent)) + 1)


def send_of(world: World) -> int:
    """Return the step at which the draft is sent."""
    return next(at for at, what in enumerate(log_of(world), 1) if what.endswith("/send before"))


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


def begin(world: World, at: dict[int, Action], tries: int = 2) -> World:
    """Run all tasks, and what happens at their steps."""
    world.fresh().at = dict(at)
    world.pipeline(tries)
    return world


def play(world: World, at: dict[int, Action], then: Callable[[World], object] = lambda world: None) -> World:
    then(begin(world, at))
    world.finish()
    return world


def at_once(world: World) -> None:
    if (tries := sum(each.tries for each in world.instances.values())) > 1:
        world.violations.append(f"nothing has failed, and it took {tries} tries")


def kills(world: World, *, pairs: bool = True) -> Iterator[Schedule]:
    """The process is killed at a step, and the next one again."""
    steps = steps_of(world)
    for first in steps:
        for second in (0, *range(first + 1, len(steps) + 25)) if pairs else (0,):
            yield (first, second), partial(play, world, {first: kill, second: kill})


def meanwhile(
    world: World,
    actions: Iterable[tuple[str, ...]],
    files: Sequence[str] = ("same",),
    dies: Sequence[bool] = DIES,
    inner: Sequence[int] = (0,),
    prepare: Callable[[World], object] = lambda world: None,
    then: Callable[[World], object] = lambda world: None,
) -> Iterator[Schedule]:
    """At a step, tasks run whole, or until they are killed; the task that was overtaken goes on, or dies."""

    def run(at: int, action: tuple[str, ...], how: str, is_killed: bool, killed_at: int) -> World:
        def act() -> None:
            prepare(world)
            change(world, how)
            world.run(*action, killed_at=killed_at, dies=is_killed)

        return play(world, {at: act}, then)

    yield from every(run, steps_of(world), actions, files, dies, inner)


def lost(
    world: World, files: Sequence[str] = ("same",), ends: Sequence[type[BaseException]] = (Killed, NoResponse)
) -> Iterator[Schedule]:
    """A request is lost, or its response is, or it arrives later; its process is killed, or goes on."""
    steps = steps_of(world)

    def run(at: int, how: str, end: type[BaseException], lands: int) -> World:
        def lose() -> None:
            if lands:
                world.at[lands] = world.lose()
            change(world, how)
            raise end("lost")

        begin(world, {at: lose})
        for action in list(world.at.values()):  # or after everything
            action()
        world.finish()
        return world

    for step, method in [(step, request.method) for _, request, step in world.requests]:
        later = range(step + 1, len(steps) + 25) if method != "GET" else ()
        yield from every(run, [step], files, ends, (0, *later))
        yield from every(run, [step + 1], files, ends, [0])


def lost_twice(world: World) -> Iterator[Schedule]:
    """An upload is lost with its process, the file changes, the next attempt loses a call; the first upload arrives."""
    upload = next(at for at, what in enumerate(log_of(world), 1) if what.endswith("/files before"))

    def run(again: int, lands: int) -> World:
        def lose() -> None:
            world.at[world.steps + lands + again] = world.lose()
            world.at[world.steps + again] = lose_again
            change(world, "same size")
            raise Killed

        def lose_again() -> None:
            raise NoResponse("lost")

        return play(world, {upload: lose})

    yield from every(run, range(1, 30), range(1, 6))


def late_uploads(world: World) -> Iterator[Schedule]:
    """An upload is repeated, the file gets another name while the send waits for a slot, and the upload arrives."""
    upload = next(at for at, what in enumerate(log_of(world), 1) if what.endswith("/files before"))

    def run(how: str, lands: int) -> World:
        late: list[Action] = []

        def lose() -> None:
            late.append(world.lose())
            raise NoResponse("lost")

        world.fresh().service.busy = 9
        world.at = {upload: lose}
        world.pipeline(1)
        world.service.busy = 0
        change(world, how)
        world.at = {world.steps + lands: late[0]}
        world.run("attach:A", "send")
        world.finish()
        return world

    yield from every(run, ("renamed", "vanished"), range(1, 40))


def late_sends(world: World, files: Sequence[str]) -> Iterator[Schedule]:
    """A send is lost, the next attempt waits for a slot; meanwhile a task runs, and the lost send arrives."""
    send = send_of(world)

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

        begin(world, {send: lose})
        if world.at and late:
            world.at = {}
            late[0]()
        world.finish()
        return world

    yield from every(run, files, ("attach:A", "create", "discard", "send"), range(1, 40), range(1, 12))


def removals_answered_by_a_gateway(world: World) -> Iterator[Schedule]:
    """A send is lost, a gateway answers the removal of the draft with 200, and the lost send arrives."""

    def run(lands: int) -> World:
        def lose() -> None:
            world.at[world.steps + lands] = world.lose()
            world.gateway = "DELETE"
            raise Killed

        return play(world, {send_of(world): lose})

    yield from every(run, range(1, 40))


def sent_by_person_too_early(world: World) -> Iterator[Schedule]:
    """An attaching task is killed, a person sends the draft, and a user marks the task as a success."""

    def run(at: int) -> World:
        def act() -> None:
            if (found := draft_of(world)) and found.files:
                world.note_bill(found)
                world.hidden = True
                world.service.send(found)
            raise Killed

        begin(world, {at: act}, 1)
        for each in world.tasks()[:-1]:
            if not world.instance(each).has_succeeded:
                world.instance(each).state, world.instance(each).has_succeeded = "success", True
        world.one("send")
        world.finish()
        return world

    yield from every(run, range(1, send_of(world)))


def late_sends_after_a_removal(world: World) -> Iterator[Schedule]:
    """The same, and before the next attempt, another task was about to remove the draft."""
    send, removal = send_of(world), 7  # steps until it is stored that the draft is removed

    def run(how: str, lands: int, moment: int) -> World:
        def act(late: Action) -> None:
            change(world, how)
            world.at[world.steps + lands] = late
            world.one("attach:A")

        def lose() -> None:
            late = world.lose()
            world.service.busy = 1
            world.run("discard", killed_at=removal)
            world.at[world.steps + moment] = partial(act, late)
            raise Killed

        return play(world, {send: lose})

    yield from every(run, ("changed", "renamed"), range(1, 30), range(1, 12))


def overtaken(world: World) -> Iterator[Schedule]:
    """While a send waits for a slot, an attempt to attach overtakes another one, and dies; the other goes on."""

    def run(how: str, at: int, killed_at: int) -> World:
        wait_for_slot(world)
        change(world, how)
        world.at = {world.steps + at: partial(world.run, "attach:A", killed_at=killed_at)}
        world.run("attach:A", "send")
        world.finish()
        return world

    yield from every(run, ("changed", "renamed", "more"), range(1, 25), range(1, 25))


def wait_for_slot(world: World) -> None:
    """Run all tasks, until the send is refused for want of a slot."""
    world.fresh().service.busy = 9
    world.pipeline(1)
    world.service.busy = 0


def run_made_again(world: World) -> Iterator[Schedule]:
    """The run is deleted and made again under its id at a step; its new tasks run; the old one goes on or dies."""
    tasks = world.fresh().tasks()

    def again(world: World) -> None:
        world.instances.clear()
        world.xcom.clear()
        world.era += 1
        run = world.ids(tasks[0])[1]
        world.starts[run], world.clears[run] = world.starts.get(run, 0) + 1, 0

    actions = [tuple(tasks[:count]) for count in range(len(tasks) + 1)]
    yield from meanwhile(world, actions, ("same", "changed"), prepare=again, then=World.pipeline)


def moved(world: World) -> Iterator[Schedule]:
    """The connection gets another key, of this or another user, or leads to another account; and it is set right."""

    def run(at: int, place: tuple[str, str], dies: bool) -> World:
        def act() -> None:
            (world.account, world.key), world.hidden = place, True
            world.run(dies=dies)

        return set_right(play(world, {at: act}))

    places = ("a.example.com", "k2"), ("a.example.com", "k3"), ("b.example.com", "k1")
    yield from every(run, steps_of(world), places, DIES)


def set_right(world: World) -> World:
    """Give the connection its first key again: only what was sent elsewhere is out of sight."""
    world.account, world.key = "a.example.com", "k1"
    world.hidden = any((each.account, each.user) != ("a.example.com", "ann") for each in world.service.billed)
    world.finish()
    return world


def moved_while_removed(world: World) -> Iterator[Schedule]:
    """A send is lost, the draft is removed by a task that is killed, and a task runs with another user's key."""
    send = send_of(world)

    def run(again: str, killed_at: int, lands: int, action: str) -> World:
        late: list[Action] = []

        def lose() -> None:
            late.append(world.lose())
            raise Killed

        def land(moment: int) -> None:
            if moment == lands:
                late[0]()

        begin(world, {send: lose}, 1)
        land(0)
        world.run(again, killed_at=killed_at)
        land(1)
        world.key, world.leaves = "k3", True  # a draft that nobody has begun to send is given up with another key
        world.one(action)
        land(2)
        return set_right(world)

    tasks = {world.tasks()[0], "discard", world.tasks()[-1]}
    yield from every(run, sorted(tasks), range(1, 20), range(4), sorted(tasks))


def rows_lost(world: World) -> Iterator[Schedule]:
    """The row is deleted, or restored to an older copy: nothing more is promised than that nothing else is lost."""

    def run(copied: int, at: int, dies: bool) -> World:
        copies: list[Any] = []

        def lose() -> None:
            world.allowed, world.hidden = 1 + world.has_row_in(Phase.SENDING), True
            world.newest.clear()
            world.table.rows.clear()
            world.table.rows.update(copies[0] if copies else {})
            world.run(dies=dies)

        return play(world, {copied: lambda: copies.append(dict(world.table.rows)), at: lose})

    for at in steps_of(world):
        yield from every(run, range(at), [at], DIES)


def forgotten(world: World) -> Iterator[Schedule]:
    """Somebody lets Airflow forget what is sent or in doubt, while a process that is thought to be over still runs.

    Nothing keeps back a send that it has looked at everything for: such a step is left out.
    """

    def run(at: int, dies: bool) -> World:
        def forget_all() -> None:
            rows, last = ModelRows(world), world.log[-1]
            if not dies and (last == "put sending after" or last.endswith("/send before")):
                return
            for sent in {each.transfer_id for _, each in world.table.rows.values() if each.phase == Phase.SENDING}:
                forget(rows, sent, lambda *_: "success", "ann")
                world.allowed = 1 + bool(world.service.billed)
            world.hidden = True
            world.run(dies=dies)

        return play(world, {at: forget_all})

    yield from every(run, steps_of(world), DIES)


def statements_fail(world: World) -> Iterator[Schedule]:
    """The database fails at a statement, before or after it was done, or its answer is lost; so does a later one."""
    log_of(world)

    def run(first: int, how: str, second: int, then: str) -> World:
        world.fresh().failing = {first: how, second: then}
        world.pipeline()
        world.finish()
        return world

    for first in range(1, world.statements + 1):
        yield from every(run, [first], ("before", "after", "unheard"), [0], [""])
        later = range(first + 1, first + 8)
        yield from every(run, [first], ("before", "after", "unheard"), later, ("before", "after"))


def draft_of(world: World) -> Any:
    """Return the draft that a row knows; a person could not tell another from those of other tasks."""
    return next(reversed(world.known_drafts()), None)


def removed_after_send(world: World) -> Iterator[Schedule]:
    """A sent transfer is removed in the web application; then tasks are cleared, and killed at a step."""
    sent, steps, tasks = send_of(world) + 1, steps_of(world), world.tasks()

    def run(at: int, action: tuple[str, ...], killed_at: int, dies: bool) -> World:
        def remove() -> None:
            for each in world.service.billed:
                world.service.transfers.pop((each.account, each.id), None)
            world.hidden = True
            world.run(*action, killed_at=killed_at, dies=dies)

        if at in begin(world, {at: remove}).at:  # after everything
            world.at.pop(at)
            with suppress(Killed):
                remove()
        world.finish()
        return world

    actions = [*((task,) for task in (*tasks, "discard")), ("discard", *tasks), tuple(tasks)]
    yield from every(run, range(sent, len(steps) + 2), actions, range(15), DIES)


def touched_by_person(world: World) -> Iterator[Schedule]:
    """A person sends or removes the draft in the web application."""

    def run(at: int, how: str, dies: bool, then: int) -> World:
        def act() -> None:
            if found := draft_of(world):
                if how == "removes":
                    del world.service.transfers[found.account, found.id]
                    world.hidden = True
                elif found.files:
                    world.note_bill(found)
                    world.hidden = True
                    world.service.send(found)
            world.run(dies=dies)

        return play(world, {at: act} | ({then: kill} if then else {}))

    steps = steps_of(world)
    for at in steps:
        yield from every(run, [at], ("sends", "removes"), DIES, (0, *range(at + 1, len(steps) + 25)))


def replaced_by_person(world: World) -> Iterator[Schedule]:
    """A person removes or replaces a file while a send waits for a slot; the tasks that the error names are cleared."""

    def run(name: str, content: bytes) -> World:
        wait_for_slot(world)
        files = draft_of(world).files
        del files[name]
        if content:
            files[name] = "f-person", content
        world.run("send", "attach:A", "send")
        if world.status["send"] != "ok":
            world.violations.append(f"it is not mended: {world.status}")
        return world

    yield from every(run, world.attachers["A"], (b"", b"xyz"))


def replaced_in_a_wait(world: World) -> Iterator[Schedule]:
    """A person replaces a file while a task waits for a slot in its process."""

    def run(at: int, name: str) -> World:
        def act() -> None:
            draft_of(world).files[name] = "f-person", b"xyz"

        return play(world, {at: act})

    waits = [at for at, what in enumerate(log_of(world), 1) if what.startswith("sleep")]
    yield from every(run, waits, (*world.attachers["A"], "z.csv"))


def given_anew(world: World) -> Iterator[Schedule]:
    """The service gives the draft's id to another transfer, as after it was restored; the process dies."""

    def run(at: int, status: str) -> World:
        others: list[Stored] = []

        def act() -> None:
            if found := draft_of(world):
                other = Stored(found.id, found.account, found.user, "Payroll", found.recipients, status)
                other.files["pay.csv"] = "f", b"secret"
                world.service.transfers[found.account, found.id] = other
                world.hidden = True
                others.append(other)
            raise Killed

        play(world, {at: act})
        for other in others:
            now = world.service.transfers.get((other.account, other.id))
            if now is not other or other.status != status or [*other.files] != ["pay.csv"]:
                world.violations.append(f"another transfer was changed: {now}")
        return world

    yield from every(run, steps_of(world), ("draft", "pending"))


def overlap(world: World) -> Iterator[Schedule]:
    """Two tasks attach one name, at the same time or one after the other: one of them would be lost."""

    def run(at: int, action: tuple[str, ...], dies: bool) -> World:
        begin(world, {at: partial(world.run, *action, dies=dies)}).pipeline()
        if world.service.billed:
            world.violations.append(f"two tasks have attached one name: {world.status}")
        return world

    world.fresh().pipeline()
    actions = ("attach:A",), ("attach:B",), ("attach:B", "attach:A")
    yield from every(run, range(1, len(world.log) + 1), actions, DIES)


class Meddled(One):
    """Other tasks attach to the draft of a task that does all."""

    def wanted(self) -> dict[str, str]:
        return {name: digest for name, digest in super().wanted().items() if name in self.files["A"]}


class Skipping(World):
    """The second attaching task may be skipped."""

    skips = False

    def tasks(self) -> list[str]:
        return [task for task in super().tasks() if not (self.skips and task == "attach:B")]


def skipped(world: Skipping) -> Iterator[Schedule]:
    """A task that attached files to a draft is skipped after a clear of all tasks, or of all but the first."""

    def run(at: int, tasks: tuple[str, ...]) -> World:
        world.skips = False
        begin(world, {at: kill}, 1)
        world.instance("attach:B").state = "skipped"
        world.files.pop("B", None)
        world.skips = True
        world.clear(*tasks)
        world.run(*tasks)
        world.finish()
        return world

    world.skips = False
    yield from every(run, range(1, send_of(world)), [("create", "attach:A", "send"), ("attach:A", "send"), ("send",)])


def skipped_in_doubt(world: Skipping) -> Iterator[Schedule]:
    """An upload of a task is lost, somebody marks it as skipped, and the upload arrives."""
    world.skips = False
    uploads = [at for at, what in enumerate(log_of(world), 1) if what.endswith("/files before")]

    def run(lands: int) -> World:
        late: list[Action] = []

        def lose() -> None:
            late.append(world.lose())
            raise Killed

        world.skips = False
        begin(world, {uploads[-1]: lose}, 1)
        world.instance("attach:B").state = "skipped"
        world.files.pop("B", None)
        world.skips = True
        world.at = {world.steps + lands: late[0]}
        world.one("send")
        world.finish()
        return world

    yield from every(run, range(1, 16))


class Redelivery(One):
    """Right before the send, the draft turns out to be to one who has picked up."""

    drafts = 2

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
        from outbound_transfer.delivery.draft import DraftOutdated

        while True:
            try:
                return super().deliver(attempt, task, key)
            except DraftOutdated:
                continue


class DeferrableRedelivery(Redelivery):
    deferrable = True


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

    def run(at: int, how: str, dies: bool, killed_at: int) -> World:
        def act() -> None:
            change(world, how)
            world.run("deliver:2", killed_at=killed_at, dies=dies)

        begin(world, {at: act})
        world.at, world.service.busy = {}, 0
        ends = [world.task("deliver:2", 3), world.task("deliver:1", 3)]
        is_refused = how == "changed" and "AlreadyDelivered" in str(world.status)
        if len(world.service.billed) != 1 or not (any(ends) or is_refused):
            world.violations.append(f"{len(world.service.billed)} were sent: {world.status}")
        return world

    yield from every(run, steps_of(world), ("same", "changed"), DIES, range(30))


def keys_changed(world: Keyed) -> Iterator[Schedule]:
    """An attempt dies, and the next has another key, or none, and dies, too; or another run has taken the key over."""

    def run(at: int, then: str, killed_at: int, other: bool) -> World:
        world.fresh().at = {at: kill}
        world.one("deliver:1")
        world.delivery_keys["deliver:1"] = then
        act = partial(world.one, "deliver:2") if other else kill
        world.at = {world.steps + killed_at: act} if killed_at else {}
        world.one("deliver:1")
        world.at, world.service.busy = {}, 0
        is_green = world.task("deliver:1", 2)
        billed = len(world.service.billed)
        if billed not in ((1, 2) if other else (1,)):
            world.violations.append(f"{billed} were sent: {world.status}")
        if not is_green and "AlreadyDelivered" not in str(world.status):
            world.violations.append(f"not delivered: {world.status}")
        if not is_green and not world.billed(1):
            world.violations.append(f"refused for what another run has made: {world.status}")
        return world

    yield from every(run, steps_of(world), ("L", None), range(45), DIES)


class Mapped(World):
    """Two indexes, whose items change places."""

    drafts = 2
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

    def run(at: int, places: list[int], action: tuple[str, ...], dies: bool) -> World:
        def act() -> None:
            world.places = places
            world.run(*action, dies=dies)

        begin(world, {at: act})
        world.at = {}
        world.pipeline()
        to = [each.recipients[0]["email"] for each in world.service.billed]
        if len(set(to)) < len(to):
            world.violations.append(f"one item was sent twice: {to}")
        return world

    actions = (), ("deliver:0",), ("deliver:1",), ("deliver:1", "deliver:0")
    yield from every(run, steps_of(world, 2), ([1, 0], [0, 0], [1, 1]), actions, DIES)


class Namesakes(Mapped):
    """Two indexes that deliver to the same people files of the same names, with other bytes."""

    people = ("ann@example.com", "ann@example.com")

    def order(self, task: str) -> Any:
        return Order(self.new(), self.sources(str(self.places[int(task[-1])])))


def namesakes(world: Mapped) -> Iterator[Schedule]:
    """Deliveries that only the bytes tell apart are no twins; neither is sent twice."""

    def run(at: int) -> World:
        begin(world, {at: kill})
        if len({tuple(each.content.values()) for each in world.service.billed}) < 2:
            world.violations.append(f"not both were sent: {world.status}")
        return world

    yield from every(run, steps_of(world, 2))


def sample(make: Callable[[], Iterator[Schedule]], count: int) -> list[Schedule]:
    """Return about so many schedules of a family, or all; at equal distances."""
    schedules = list(make())
    return schedules[:: max(1, len(schedules) // count)]


def families() -> dict[str, Callable[[], Iterator[Schedule]]]:
    """Return what makes the schedules, by name."""
    three, slot, two = {"A": HELD}, busy(1), (*ACTIONS, ("attach:B",), ("create", "attach:B"))
    few, new = ("same", "changed", "renamed"), ("more", "other subject")
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
        "one task, another input": lambda: meanwhile(DeferrableOne(three, slot), [()], new, (False,), then=at_once),
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
        "two requests are lost": lambda: lost_twice(World(three)),
        "an upload that was repeated arrives": lambda: late_uploads(World(three)),
        "a lost send arrives while a task runs": lambda: late_sends(World(three), FILES),
        "a lost send arrives, a gateway answers": lambda: removals_answered_by_a_gateway(World(three)),
        "one task, a lost send arrives, a gateway answers": lambda: removals_answered_by_a_gateway(One(three)),
        "a lost send arrives after a removal": lambda: late_sends_after_a_removal(World(three)),
        "an attempt to attach is overtaken": lambda: overtaken(World(three)),
        "the run is made again": lambda: run_made_again(World(three, slot)),
        "one task, the run is made again": lambda: run_made_again(One(three, slot)),
        "another key or account": lambda: moved(World(three, slot)),
        "one task, another key or account": lambda: moved(One(three, slot)),
        "another key while it is removed": lambda: moved_while_removed(World(three)),
        "one task, another key while it is removed": lambda: moved_while_removed(One(three)),
        "rows lost": lambda: rows_lost(World(three)),
        "one task, rows lost": lambda: rows_lost(One(three)),
        "forgotten": lambda: forgotten(World(three, slot)),
        "one task, forgotten": lambda: forgotten(One(three, slot)),
        "the database fails": lambda: statements_fail(World(three, slot)),
        "one task, the database fails": lambda: statements_fail(One(three, slot)),
        "removed after the send": lambda: removed_after_send(World(three)),
        "one task, removed after the send": lambda: removed_after_send(One(three)),
        "a person touches the draft": lambda: touched_by_person(World(three, slot)),
        "one task, a person touches the draft": lambda: touched_by_person(One(three, slot)),
        "a person sends a draft too early": lambda: sent_by_person_too_early(World(three)),
        "two tasks attach one name": lambda: overlap(World({"A": {"a.csv": b"abc"}, "B": {"a.csv": b"xyz"}})),
        "a person replaces a file": lambda: replaced_by_person(World(three)),
        "one task, a person replaces a file": lambda: replaced_in_a_wait(One(three, slot)),
        "an id is given anew": lambda: given_anew(World(three)),
        "one task, an id is given anew": lambda: given_anew(One(three, slot)),
        "one task, others meddle": lambda: meanwhile(Meddled(TWO, slot), [("attach:B",), ("send",), ("discard",)]),
        "a task is skipped": lambda: skipped(Skipping(TWO)),
        "a task is skipped in doubt": lambda: skipped_in_doubt(Skipping(TWO)),
        "redelivery, kills": lambda: kills(Redelivery(three)),
        "redelivery, deferred": lambda: kills(DeferrableRedelivery(three, slot), pairs=False),
        "approval, kills": lambda: kills(Approved(three)),
        "approval, cleared": lambda: approvals(Approved(three, slot)),
        "approval, lost requests": lambda: lost(Approved(three, slot), few),
        "keys": lambda: keyed(Keyed(three, slot)),
        "keys, Airflow is wrong": lambda: keyed(Rude(three, slot)),
        "keys, the run is made again": lambda: run_made_again(Keyed(three, slot)),
        "keys changed": lambda: keys_changed(Keyed(three, slot)),
        "twins": lambda: twins(Mapped(three)),
        "twins that are none": lambda: namesakes(Namesakes({"0": {"a.csv": b"abc"}, "1": {"a.csv": b"xyz"}})),
    }
