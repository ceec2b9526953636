"""Which cases the kill matrix has: moments of a delivery, and what is done to it at each.

A moment is exact: the sandbox holds the request, just before or just after it takes effect, while something is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: The calls of a delivery of three files, as the sandbox's planned faults name them.
REQUESTS: dict[str, dict[str, Any]] = {
    "create": {"method": "POST", "path": "/v1/transfers"},
    "attach 1": {"method": "POST", "path": "*/files"},
    "attach 2": {"method": "POST", "path": "*/files", "skip": 1},
    "attach 3": {"method": "POST", "path": "*/files", "skip": 2},
    "send": {"method": "POST", "path": "*/send"},
    "read": {"method": "GET", "path": "/v1/transfers/*"},
    "attach 2 and 3": {"method": "POST", "path": "*/files", "skip": 1},
}
#: Those that are held together, of uploads that run at once.
AT_ONCE = {"attach 2 and 3": 2}
WRITES = tuple(REQUESTS)[:5]

RequestFate: TypeAlias = Literal["never", "at once", "last", "together"]
Victim: TypeAlias = Literal["task", "supervisor", "both"]
VICTIMS: tuple[Victim, ...] = ("both", "supervisor", "task")
Dag: TypeAlias = Literal["plain", "parallel", "poking", "deferring", "mapped", "mapped_deferring"]


@dataclass(frozen=True)
class Kill:
    """SIGKILL while a request is held.

    :ivar request_fate: when the request goes on: never (it is lost), at once after the kill, last (after all later
        tries), or together with the same request of the next try, which is held, too.
    :ivar victim: the task's process, its supervisor (whose task goes on as an orphan), or both.
    """

    request: str
    effect: Literal["before", "after"]
    request_fate: RequestFate
    victim: Victim

    @property
    def moment(self) -> str:
        return f"{self.request}, {self.effect} its effect"

    @property
    def action(self) -> str:
        what = {"task": "kill task", "supervisor": "kill supervisor only", "both": "kill supervisor and task"}
        then = {
            "never": "request lost",
            "at once": "it goes on at once",
            "last": "it goes on after all tries",
            "together": "it goes on with the next try's",
        }
        return f"{what[self.victim]}; {then[self.request_fate]}"

    @property
    def may_leak(self) -> bool:
        """Whether a draft is made whose id cannot be stored."""
        return self.request == "create" and not (self.effect == "before" and self.request_fate == "never")

    @property
    def held_at_once(self) -> int:
        """How many requests are held when the process is killed."""
        return AT_ONCE.get(self.request, 1)

    def plans(self) -> list[dict[str, Any]]:
        then = "reset" if self.request_fate == "never" else "proceed"
        plan = {"kind": "hold", "effect": self.effect, "then": then, **REQUESTS[self.request]}
        # What the next try has to do is the first of its kind.
        count = self.held_at_once + (self.request_fate == "together")
        return [plan, *[{**plan, "skip": 0}] * (count - 1)]


@dataclass(frozen=True)
class Clear:
    """A clear of the task, or of its whole run.

    :ivar when: the task has ended, waits for pickup, waits for a slot (``transfer_limit_reached``), or sends.
    """

    what: Literal["task", "run"]
    when: Literal["finished", "waits for pickup", "waits for a slot", "sends"]
    may_leak = False

    @property
    def moment(self) -> str:
        return {"finished": "finished", "sends": "send, before its effect"}.get(self.when, f"deferred: {self.when}")

    @property
    def action(self) -> str:
        return f"clear {self.what}"

    def plans(self) -> list[dict[str, Any]]:
        return [{"kind": "hold", **REQUESTS["send"]}] if self.when == "sends" else []


@dataclass(frozen=True)
class KillTriggerer:
    """SIGKILL of the triggerer while the task waits for pickup; a new one is started."""

    moment = "deferred: waits for pickup"
    action = "kill triggerer"
    may_leak = False

    def plans(self) -> list[dict[str, Any]]:
        return []


Step: TypeAlias = Kill | Clear | KillTriggerer


@dataclass(frozen=True)
class Case:
    """What is done to one delivery, in this order."""

    dag: Dag
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"{self.dag}: {self.moment} / {self.action}"

    @property
    def moment(self) -> str:
        return "; then ".join(step.moment for step in self.steps) or "undisturbed"

    @property
    def action(self) -> str:
        actions = [step.action for step in self.steps]
        return "; then ".join(actions if len(set(actions)) > 1 else actions[:1])

    @property
    def is_waiting(self) -> bool:
        """Whether the delivery ends only with the pickup."""
        return self.dag in ("poking", "deferring", "mapped_deferring")

    @property
    def may_leak(self) -> int:
        return sum(step.may_leak for step in self.steps)


#: The cases that share a Dag run: one, or the indexes of a mapped task.
Group: TypeAlias = tuple[Case, ...]


def around(requests: tuple[str, ...], victim: Victim) -> Iterator[Kill]:
    """Just before (the request is lost, or under way and lands long after) and just after each request's effect."""
    for request in requests:
        yield Kill(request, "before", "never", victim)
        if request != "read":
            yield Kill(request, "before", "last", victim)
        yield Kill(request, "after", "at once", victim)


def orphans(requests: tuple[str, ...]) -> Iterator[Kill]:
    """The supervisor is killed and the task goes on: before the next try, after it, or just when it does the same."""
    for request in requests:
        for effect, request_fate in (("before", "at once"), ("before", "last"), ("before", "together")):
            yield Kill(request, effect, request_fate, "supervisor")
        for request_fate in ("at once", "last"):
            yield Kill(request, "after", request_fate, "supervisor")


def matrix() -> Iterator[Group]:
    """All of it; what takes Airflow longest to notice comes first."""
    yield from ((Case("plain", (kill,)),) for kill in (*around(WRITES, "both"), *orphans(WRITES)))
    yield from ((Case("parallel", (kill,)),) for victim in VICTIMS for kill in around(tuple(AT_ONCE), victim))
    yield from ((Case("poking", (kill,)),) for kill in orphans(("read",)))
    yield from reads("both")
    yield from of_tasks()
    yield from clears()


def of_tasks() -> Iterator[Group]:
    """Kills of the task's process."""
    yield from ((Case("plain", (kill,)),) for kill in around(WRITES, "task"))
    for request in WRITES:
        # One run for each request: its indexes are killed at other moments, the last is not.
        kills = [Case("mapped", (kill,)) for kill in around((request,), "task")]
        yield (*kills, Case("mapped", ()))
    yield from reads("task")


def reads(victim: Victim) -> Iterator[Group]:
    """Reads: of a wait for pickup, and of a second try that asks what became of the first."""
    for read in around(("read",), victim):
        yield (Case("poking", (read,)),)
        yield (Case("plain", (Kill("attach 2", "after", "at once", "task"), read)),)
        yield (Case("plain", (Kill("send", "after", "at once", "task"), read)),)


def clears() -> Iterator[Group]:
    """Clears, and the triggerer's death."""
    for what in ("task", "run"):
        for when in ("waits for pickup", "waits for a slot", "finished"):
            yield (Case("deferring", (Clear(what, when),)),)
        for when in ("sends", "finished"):
            yield (Case("plain", (Clear(what, when),)),)
        yield (Case("mapped", (Clear(what, "finished"),)), Case("mapped", ()))
        for when in ("waits for pickup", "waits for a slot"):
            yield (Case("mapped_deferring", (Clear(what, when),)), Case("mapped_deferring", ()))
    yield (Case("deferring", (KillTriggerer(),)),)
