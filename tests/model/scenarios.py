"""The scenarios that the model explores: each with the troubles that belong together."""

from __future__ import annotations

from typing import Final

from model.explore import Guard, Scenario
from model.tries import Rules

#: What may come more than once.
_TWICE: Final = frozenset({"crash", "crash in a call", "zombie", "wait"})

_ONE: Final = Rules()
INDEXES: Final = Rules(kinds=("deliver", "deliver"), is_mapped=True)
THREE: Final = Rules(kinds=("create", "attach", "send"))
THREE_INDEXES: Final = Rules(kinds=("create", "send", "create", "send"), is_mapped=True)
KEYS: Final = Rules(keys=("k", "l"))


def scenario(
    name: str,
    troubles: str,
    rules: Rules = _ONE,
    items: tuple[str, ...] = ("X",),
    *,
    tries: int = 3,
    twice: bool = True,
    often: tuple[str, ...] = (),
    at_most: int = 2,
    guard: Guard | None = None,
) -> Scenario:
    """Return a scenario in which each of the troubles may come once, or twice.

    :param twice: whether those that often come twice may.
    :param often: which others may.
    """
    limits = {
        each: 2 if each in often or (twice and each in _TWICE) else 1
        for each in troubles.replace("\n", " ").split(", ")
    }
    return Scenario(name, {"try": tries, **limits}, rules, items, at_most, guard)


_PROCESS: Final = "crash, crash in a call, zombie, wait, lost response, failure, deferral, failure for good"
_LOST: Final = (
    "clear, crash, crash in a call, zombie, failure, lost memory, memory lost during a send, other input, "
    "other user, twin, deleted transfer, deleted before it was heard of"
)

ONE_TASK: Final = scenario("one task", f"clear, {_PROCESS}", at_most=3)
INPUT: Final = scenario(
    "other input",
    "clear, crash, crash in a call, zombie, failure, other input, first input, other file",
)
MOVED: Final = scenario(
    "a connection that leads elsewhere",
    "clear, crash, crash in a call, zombie, failure, new key, other user, other account, first scope",
)
LOST: Final = scenario("lost memory", f"{_LOST}, other account")
ROW: Final = scenario("lost memory in a table", _LOST, Rules(is_row=True))
FOUND: Final = scenario(
    "a find, and other input",
    "clear, failure, crash, twin, first input, other input",
    items=("Y",),
    tries=4,
    twice=False,
    at_most=4,
)
DELETED: Final = scenario(
    "a deleted task", "clear, crash, crash in a call, zombie, failure, deleted task, older memory"
)
AT_ONCE: Final = scenario(
    "between the last check and the send",
    "clear, crash, crash in a call, zombie, wait, failure, lost memory, memory lost during a send, deleted transfer, "
    "deleted before it was heard of",
    Rules(is_instant=False),
)
MAPPED: Final = scenario(
    "a mapped task",
    "clear one, crash, zombie, wait, failure, order, lost memory, memory lost during a send",
    INDEXES,
    ("X", "Y"),
    tries=4,
    twice=False,
)
MAPPED_CHANGED: Final = scenario(
    "a mapped task, and a changed source",
    "clear one, failure, order, changed source",
    INDEXES,
    ("Y", "X"),
    twice=False,
    at_most=3,
)
MAPPED_ALIKE: Final = scenario(
    "a mapped task whose items have the same people",
    "clear one, failure, order, lost memory",
    INDEXES,
    ("X", "V"),
    twice=False,
)
MAPPED_EQUAL: Final = scenario(
    "a mapped task whose files have the same sizes",
    "clear one, order, lost memory",
    INDEXES,
    ("X", "W"),
    twice=False,
)
MAPPED_MOVED: Final = scenario(
    "a mapped task whose connection leads elsewhere",
    "clear, clear one, failure, order, other account, new key",
    INDEXES,
    ("X", "Y"),
    tries=4,
)
MAPPED_IN_BOTH: Final = scenario(
    "a mapped task that another account may have sent",
    "clear one, failure, order, early other account, late other account",
    INDEXES,
    ("X", "Y"),
    tries=4,
    twice=False,
    at_most=3,
)
CLOCKS: Final = scenario(
    "a mapped task whose memory is lost, and clocks that differ",
    "clear one, failure, order, lost memory, clock behind",
    INDEXES,
    ("X", "Y"),
    tries=4,
    twice=False,
    at_most=3,
)
MAPPED_ALONE: Final = scenario(
    "a mapped task of one item",
    "clear, crash, wait, failure, twin",
    Rules(is_mapped=True),
    twice=False,
    at_most=3,
)
MAPPED_FULL: Final = scenario(
    "a mapped task while the account is full",
    "clear one, wait, failure, order",
    INDEXES,
    ("X", "Y"),
    tries=4,
    at_most=3,
)
MAPPED_AT_FIRST: Final = scenario(
    "a mapped task whose list changes at first", "clear one, failure, wait, order, early order", INDEXES, ("X", "Y")
)
RENAMED: Final = scenario(
    "a renamed task",
    "clear, crash, zombie, wait, failure, new name, new key, other account",
    Rules(kinds=("deliver", "deliver")),
    ("X", ""),
    tries=4,
)
RENAMED_TWICE: Final = scenario(
    "a task that is renamed and named back",
    "clear one, failure, new name, former name",
    Rules(kinds=("deliver", "deliver")),
    ("X", ""),
    twice=False,
    at_most=3,
)
REDELIVERY: Final = scenario(
    "a redelivery",
    "clear, crash, zombie, wait, failure, deferral, pickup, lost memory, memory lost during a send",
    Rules(is_redelivery=True),
)
REDELIVERY_AT_ONCE: Final = scenario(
    "a redelivery, between the last check and the send",
    "clear, crash, zombie, wait, pickup, pickup after the check",
    Rules(is_redelivery=True, is_instant=False),
)
THREE_TASKS: Final = scenario(
    "three tasks",
    "clear, clear one, crash, crash in a call, zombie, wait, failure, lost memory, restored service, "
    "other file of task 1, removed by a task",
    THREE,
    ("X", "v1", "X"),
    tries=5,
    at_most=1,
)
THREE_AT_ONCE: Final = scenario(
    "three tasks, one cleared while another sends",
    "clear one, crash in a call, wait, other file of task 1",
    THREE,
    ("X", "v1", "X"),
    tries=5,
)
THREE_MAPPED: Final = scenario(
    "three tasks, mapped",
    "clear an index, wait, failure, order, early order",
    THREE_INDEXES,
    ("X", "X", "Y", "Y"),
    tries=8,
    often=("failure",),
    at_most=3,
)
THREE_MAPPED_ALIKE: Final = scenario(
    "three tasks, mapped, whose items have the same people",
    "clear an index, order",
    THREE_INDEXES,
    ("X", "X", "V", "V"),
    tries=8,
    twice=False,
    at_most=3,
)
KEY: Final = scenario(
    "a delivery key",
    "clear, crash, crash in a call, zombie, wait, failure, deferral, key change, key removed, "
    "lost memory of a key, memory of a key lost during a send, older memory of a key",
    KEYS,
)
KEY_GIVEN: Final = scenario(
    "a key is given",
    "clear, crash, crash in a call, zombie, failure, key given, key removed",
    Rules(keys=("", "k")),
)
KEY_SHARED: Final = scenario(
    "two tasks with one key",
    "clear one, crash, zombie, failure, lost memory of a key, memory of a key lost during a send",
    Rules(kinds=("deliver", "deliver"), keys=("k", "l")),
    ("X", "X"),
    tries=4,
    twice=False,
    at_most=1,
)
KEY_LEFT: Final = scenario(
    "two tasks with one key, and one leaves it",
    "clear one, crash, crash in a call, failure, key removed",
    Rules(kinds=("deliver", "deliver"), keys=("k", "")),
    ("X", "X"),
    tries=4,
    twice=False,
    at_most=2,
)

ALL: Final = tuple(each for each in vars().copy().values() if isinstance(each, Scenario))
