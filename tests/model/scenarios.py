"""The scenarios that the model explores: each with the troubles that belong together."""

from __future__ import annotations

from typing import Final

from model.explore import Guard, Scenario
from model.tries import Rules
from model.world import World

#: What may come more than once.
_TWICE: Final = frozenset({"crash", "crash in a call", "zombie", "wait", "resend one"})

_ONE: Final = Rules()
INDEXES: Final = Rules(kinds=("deliver", "deliver"), is_mapped=True)
THREE: Final = Rules(kinds=("create", "attach", "send"))
KEYS: Final = Rules(keys=("k", "l"))


def scenario(
    name: str,
    troubles: str,
    rules: Rules = _ONE,
    items: tuple[str, ...] = ("X",),
    *,
    tries: int = 3,
    twice: bool = True,
    at_most: int = 2,
    guard: Guard | None = None,
) -> Scenario:
    """Return a scenario in which each of the troubles may come once, or twice."""
    limits = {each: 2 if twice and each in _TWICE else 1 for each in troubles.split(", ")}
    return Scenario(name, {"try": tries, **limits}, rules, items, at_most, guard)


def once_all_have_begun(world: World, trouble: str) -> bool:
    """Let the list change once every index has made its first attempt at the send: until then, nobody is asked."""
    if trouble != "order":
        return True
    first = [each for each in world.processes if each.context.number == 1 and not each.is_again]
    return not first and all(slot.tries for slot in world.slots)


_PROCESS: Final = "crash, crash in a call, zombie, wait, lost response, failure, deferral, failure for good"
_LOST: Final = (
    "clear, resend one, crash, crash in a call, zombie, failure, lost memory, other input, other user, twin, "
    "deleted transfer"
)

ONE_TASK: Final = scenario("one task", f"clear, {_PROCESS}", at_most=3)
RESEND: Final = scenario("resend", "clear, resend one, crash, crash in a call, failure, zombie", tries=4)
RESEND_AGAIN: Final = scenario("resend, and again", "clear, resend one, crash, failure", tries=4)
UNSURE: Final = scenario(
    "resend, and it is not known what was cleared",
    "clear one, resend one, crash, failure, twin, lost memory, resend with lowered retries, resend for another",
)
INPUT: Final = scenario(
    "other input",
    "clear, resend one, crash, crash in a call, zombie, failure, other input, first input, other file",
)
MOVED: Final = scenario(
    "a connection that leads elsewhere",
    "clear, resend one, crash, crash in a call, zombie, failure, new key, other user, other account, first scope",
)
LOST: Final = scenario("lost memory", f"{_LOST}, other account")
ROW: Final = scenario("lost memory in a table", _LOST, Rules(is_row=True))
SUSPECTED: Final = scenario(
    "a suspicion, and other input",
    "clear, failure, crash, twin, first input, other input",
    items=("Y",),
    tries=4,
    twice=False,
    at_most=4,
)
DELETED: Final = scenario("a deleted task", "clear, crash, crash in a call, zombie, failure, deleted task")
AT_ONCE: Final = scenario(
    "between the last check and the send",
    "clear, crash, crash in a call, zombie, wait, failure, lost memory, deleted transfer",
    Rules(is_instant=False),
)
MAPPED: Final = scenario(
    "a mapped task",
    "clear one, crash, zombie, wait, failure, order, lost memory",
    INDEXES,
    ("X", "Y"),
    tries=4,
    twice=False,
    guard=once_all_have_begun,
)
MAPPED_MOVED: Final = scenario(
    "a mapped task whose connection leads elsewhere",
    "clear, clear one, failure, order, other account, new key",
    INDEXES,
    ("X", "Y"),
    tries=4,
    guard=once_all_have_begun,
)
MAPPED_IN_BOTH: Final = scenario(
    "a mapped task that another account may have sent",
    "clear one, failure, order, other account",
    INDEXES,
    ("X", "Y"),
    tries=4,
    twice=False,
    at_most=3,
    guard=once_all_have_begun,
)
MAPPED_FULL: Final = scenario(
    "a mapped task while the account is full",
    "clear one, wait, failure, order",
    INDEXES,
    ("X", "Y"),
    tries=4,
    at_most=3,
    guard=once_all_have_begun,
)
MAPPED_AT_FIRST: Final = scenario(
    "a mapped task whose list changes at first", "clear one, failure, wait, order", INDEXES, ("X", "Y")
)
RENAMED: Final = scenario(
    "a renamed task",
    "clear, crash, zombie, wait, failure, new name, new key, other account",
    Rules(kinds=("deliver", "deliver")),
    ("X", ""),
    tries=4,
)
REDELIVERY: Final = scenario(
    "a redelivery",
    "clear, crash, zombie, wait, failure, deferral, pickup, lost memory",
    Rules(is_redelivery=True),
)
REDELIVERY_AT_ONCE: Final = scenario(
    "a redelivery, between the last check and the send",
    "clear, crash, zombie, wait, pickup",
    Rules(is_redelivery=True, is_instant=False),
)
THREE_TASKS: Final = scenario(
    "three tasks",
    "clear, clear one, crash, crash in a call, zombie, wait, failure, lost memory, restored service, "
    "other file of task 1",
    THREE,
    ("X", "v1", "X"),
    tries=5,
    at_most=1,
)
THREE_RESEND: Final = scenario(
    "three tasks, and a resend",
    "clear, resend, crash, failure, lost memory",
    THREE,
    ("X", "v1", "X"),
    tries=6,
    twice=False,
    at_most=1,
)
THREE_AT_ONCE: Final = scenario(
    "three tasks, one cleared while another sends",
    "clear one, crash in a call, wait, other file of task 1",
    THREE,
    ("X", "v1", "X"),
    tries=5,
)
KEY: Final = scenario(
    "a delivery key",
    "clear, crash, crash in a call, zombie, wait, failure, deferral, key change, key removed, lost memory of a key",
    KEYS,
)
KEY_GIVEN: Final = scenario(
    "a key is given",
    "clear, crash, crash in a call, zombie, failure, key given, key removed",
    Rules(keys=("", "k")),
)
KEY_SHARED: Final = scenario(
    "two tasks with one key",
    "clear one, crash, zombie, failure, lost memory of a key",
    Rules(kinds=("deliver", "deliver"), keys=("k", "l")),
    ("X", "X"),
    tries=4,
    twice=False,
    at_most=1,
)

ALL: Final = tuple(each for each in vars().copy().values() if isinstance(each, Scenario))
