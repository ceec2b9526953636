"""The scenarios that the model explores: each with the troubles that belong together."""

from __future__ import annotations

from typing import Final

from model.explore import Scenario
from model.tries import Rules
from model.world import World

#: What may come more than once.
_TWICE: Final = frozenset({"crash", "crash in a call", "zombie", "wait", "resend one"})


def _limits(names: str, *, tries: int = 3, twice: bool = True) -> dict[str, int]:
    """Return how often each trouble may come."""
    listed = [name.strip() for name in names.split(",")]
    return {"try": tries, **{name: 2 if twice and name in _TWICE else 1 for name in listed}}


def _once_all_have_begun(world: World, trouble: str) -> bool:
    """Let the list change once every index has made its first attempt at the send: until then, nobody is asked."""
    if trouble != "order":
        return True
    first = [each for each in world.processes if each.context.number == 1 and not each.is_again]
    return not first and all(slot.tries for slot in world.slots)


_PROCESS: Final = "crash, crash in a call, zombie, wait, lost response, failure, deferral, failure for good"

ONE_TASK: Final = Scenario("one task", _limits(f"clear, {_PROCESS}"))
RESEND: Final = Scenario("resend", _limits("clear, resend one, crash, crash in a call, failure, zombie", tries=4))
UNSURE: Final = Scenario(
    "resend, and it is not known what was cleared",
    _limits(
        "clear one, resend one, crash, failure, twin, lost record, resend with lowered retries, resend for another"
    ),
)
INPUT: Final = Scenario(
    "other input",
    _limits("clear, resend one, crash, crash in a call, zombie, failure, other input, first input, other file"),
)
MOVED: Final = Scenario(
    "a connection that leads elsewhere",
    _limits(
        "clear, resend one, crash, crash in a call, zombie, failure, new key, other user, other account, first scope"
    ),
)
LOST: Final = Scenario(
    "lost memory",
    _limits("clear, resend one, crash, zombie, failure, lost record, other input, other user, twin, deleted transfer"),
)
ROW: Final = Scenario(
    "lost row",
    _limits("clear, resend one, crash, zombie, failure, lost record, other input, other user, twin, deleted transfer"),
    Rules(is_row=True),
)
MAPPED: Final = Scenario(
    "a mapped task",
    _limits("clear, clear one, crash, zombie, wait, failure, order, lost record", tries=4, twice=False),
    Rules(kinds=("deliver", "deliver"), is_mapped=True),
    ("X", "Y"),
    guard=_once_all_have_begun,
)
MAPPED_MOVED: Final = Scenario(
    "a mapped task whose connection leads elsewhere",
    _limits("clear, clear one, failure, order, other account, new key", tries=4),
    Rules(kinds=("deliver", "deliver"), is_mapped=True),
    ("X", "Y"),
    guard=_once_all_have_begun,
)
RENAMED: Final = Scenario(
    "a renamed task",
    _limits("clear, crash, zombie, wait, failure, new name, new key, other account", tries=4),
    Rules(kinds=("deliver", "deliver")),
    ("X", ""),
)
REDELIVERY: Final = Scenario(
    "a redelivery",
    _limits("clear, crash, zombie, wait, failure, deferral, pickup, lost record"),
    Rules(is_redelivery=True),
)
THREE_TASKS: Final = Scenario(
    "three tasks",
    _limits("clear, clear one, crash, crash in a call, zombie, wait, failure, lost record, restored service", tries=5),
    Rules(kinds=("create", "attach", "send")),
    ("X", "v1", "X"),
    at_most=1,
)
KEY: Final = Scenario(
    "a delivery key",
    _limits("clear, crash, crash in a call, zombie, wait, failure, deferral, key change, key removed, lost record"),
    Rules(keys=("k", "l")),
)
KEY_GIVEN: Final = Scenario(
    "a key is given",
    _limits("clear, crash, crash in a call, zombie, failure, key given, key removed"),
    Rules(keys=("", "k")),
)
KEY_SHARED: Final = Scenario(
    "two tasks with one key",
    _limits("clear one, crash, zombie, failure, lost record", tries=4, twice=False),
    Rules(kinds=("deliver", "deliver"), keys=("k", "l")),
    ("X", "X"),
    at_most=1,
)

ALL: Final = (
    ONE_TASK,
    RESEND,
    UNSURE,
    INPUT,
    MOVED,
    LOST,
    ROW,
    MAPPED,
    MAPPED_MOVED,
    RENAMED,
    REDELIVERY,
    THREE_TASKS,
    KEY,
    KEY_GIVEN,
    KEY_SHARED,
)
