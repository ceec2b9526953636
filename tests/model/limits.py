"""Where a promise ends by design: the minimal sets of troubles that break it, each with what to do.

A set that the checker finds, and that is not listed, is a fault; one that is listed, and not found, is stale.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from model import scenarios
from model.explore import Failure, Scenario, name_of


class Limit(NamedTuple):
    """What no evidence can decide, or what is refused because of that.

    :ivar sets: the minimal sets of troubles that lead there, each as text.
    :ivar what: what such a failure says; "" if it says what was sent wrongly.
    :ivar short: how the page of guarantees names it, if it is one of the send.
    :ivar scenarios: where it is stated: elsewhere it may be a fault. The first set of one of the send is shown in the
        first one. None for all scenarios.
    """

    title: str
    remedy: str
    sets: tuple[str, ...]
    what: str = ""
    short: str = ""
    scenarios: tuple[Scenario, ...] | None = None

    def covers(self, failure: Failure, scenario: Scenario) -> str | None:
        """Return the set that leads to a failure; None if none does."""
        if not self.what:
            name = name_of(failure.troubles)
            is_stated = name in self.sets and scenario in (self.scenarios or ())
            return name if is_stated and ": " not in failure.what else None
        if scenario not in (self.scenarios or [scenario]):
            return None
        came = {name for name, _ in failure.troubles}
        return next((each for each in self.sets if self.what in failure.what and came.issuperset(_split(each))), None)


def _split(name: str) -> list[str]:
    return name.split(" + ") if name else []


def limit_of(failure: Failure, scenario: Scenario) -> tuple[Limit, str] | None:
    """Return the limit by which a promise is broken, and its set of troubles; None if it is a fault."""
    return next(((each, found) for each in ALL if (found := each.covers(failure, scenario)) is not None), None)


#: Where a delivery may be sent twice, or not as it was meant.
OF_THE_SEND: Final = (
    Limit(
        "The task instance and its memory are deleted, or an older memory is restored",
        "use a `delivery_key`",
        ("deleted task", "older memory"),
        scenarios=(scenarios.DELETED,),
        short="the task instance and its memory are deleted, or an older memory restored",
    ),
    Limit(
        "The memory of a delivery key is lost, and another task delivers under the key; or an older one is restored",
        "back up the database of the keys",
        ("lost memory of a key", "older memory of a key"),
        scenarios=(scenarios.KEY_SHARED, scenarios.KEY),
        short="the row of a delivery key is lost, or an older one restored",
    ),
    Limit(
        "Memory is lost, or items change places, and what was sent cannot be seen: it was deleted, or is another "
        "account's or user's, or the service's clock is an hour behind Airflow's",
        "look in the service's web application before you clear the task",
        (
            *("lost memory + deleted transfer", "lost memory + other user", "lost memory + other account"),
            *("lost memory + clock behind", "failure + order + clock behind"),
        ),
        scenarios=(scenarios.LOST, scenarios.ROW, scenarios.AT_ONCE, scenarios.CLOCKS),
        short="memory is lost, or items change places, and the transfer cannot be seen: it was deleted, is elsewhere, "
        "or the service's clock is an hour behind airflow's",
    ),
    Limit(
        "Memory is lost, and subject, people or files are others now",
        "look in the service's web application before you clear the task",
        ("lost memory + other input", "failure + order + lost memory"),
        scenarios=(scenarios.LOST, scenarios.ROW, scenarios.AT_ONCE, scenarios.CLOCKS),
        short="memory is lost, and the input is another",
    ),
    Limit(
        "Memory is lost while a send is still under way, or its transfer deleted before the task hears of it",
        "clear the task, or delete the transfer, some minutes later",
        (
            "crash in a call + memory lost during a send",
            "crash in a call + memory of a key lost during a send",
            "zombie + memory lost during a send",
            *("crash in a call + deleted before it was heard of", "zombie + deleted before it was heard of"),
        ),
        scenarios=(scenarios.LOST, scenarios.ROW, scenarios.AT_ONCE, scenarios.KEY),
        short="memory is lost while a send is under way, or a transfer deleted before its send is heard of",
    ),
    Limit(
        "The list of a mapped task changes its order while an index is in its first try",
        "use a `delivery_key` for each item",
        ("early order",),
        scenarios=(scenarios.MAPPED_AT_FIRST, scenarios.THREE_MAPPED),
        short="a mapped task's items change their order, without a clear, before each index ends its first try",
    ),
    Limit(
        "An item goes to another task or index, and its connection to another account",
        "use a `delivery_key`, or trigger a new run",
        ("new name + other account", "failure + order + early other account"),
        scenarios=(scenarios.RENAMED, scenarios.MAPPED_IN_BOTH),
        short="an item gets another task or index, and account",
    ),
    Limit(
        "The recipient picks up the first transfer between the last check and the send of a redelivery",
        "nothing: the service has no send under a condition",
        ("pickup after the check",),
        scenarios=(scenarios.REDELIVERY_AT_ONCE,),
        short="the recipient picks up between the last check and a redelivery",
    ),
    Limit(
        "Three tasks: the task that attaches is cleared while a send is under way",
        "clear it once the task that sends has finished, or deliver in one task",
        ("crash in a call + other file of task 1",),
        scenarios=(scenarios.THREE_AT_ONCE,),
        short="three tasks: files are attached during a send",
    ),
)

#: What the page of guarantees states beside them: of this, the model knows nothing.
BESIDE_THE_MODEL: Final = (
    "somebody changes a draft that waits for a slot",
    "the service is restored from a backup",
    "two indexes or tasks send the same in the seconds after the last search",
)

#: Where a clear is refused, though it may be that nothing was sent.
OF_A_CLEAR: Final = (
    Limit(
        "Something else was sent",
        "trigger a new run",
        ("other input", "other file", "changed source", "first input", "order", "early order"),
        "OTHER_INPUT",
    ),
    Limit(
        "It was sent, or may have been, under another delivery key or in another account",
        "correct the key or the connection, or trigger a new run",
        ("key given", "key change", "key removed"),
        "OTHER_KEY",
    ),
    Limit(
        "A mapped task's items have the same people, and files of the same names, and an index has not begun",
        "trigger a new run, or use a `delivery_key` for each item",
        ("",),
        "MAY_BE_SENT",
        scenarios=(scenarios.MAPPED_ALIKE, scenarios.MAPPED_EQUAL),
    ),
    Limit(
        "Three tasks, mapped: items have the same people, and files of the same names",
        "trigger a new run, or deliver in one task",
        ("",),
        ": found",
        scenarios=(scenarios.THREE_MAPPED_ALIKE,),
    ),
    Limit(
        "Three tasks, mapped: an index has sent the item of another",
        "trigger a new run",
        ("order",),
        ": sent",
        scenarios=(scenarios.THREE_MAPPED_ALIKE,),
    ),
    Limit(
        "The connection leads to another account, or has another user's key",
        "correct the connection; or look there and trigger a new run",
        ("other user", "other account", "early other account", "late other account"),
        "MADE_ELSEWHERE",
    ),
    Limit(
        "Another index may have sent it where the connection does not lead any more",
        "correct the connection; or look there and trigger a new run",
        (
            *("failure + new key", "failure + other account", "failure + late other account"),
            *("order + early other account", "new name + new key", "new name + other account"),
        ),
        "CANNOT_SEARCH",
    ),
    Limit(
        "Its like was sent, and nothing says by whom",
        "if it is another delivery, trigger a new run",
        (
            *("lost memory", "lost memory of a key", "memory lost during a send", "memory of a key lost during a send"),
            *("twin", "new name", "order", "early order"),
            "crash + key removed",
        ),
        "MAY_BE_SENT",
    ),
    Limit(
        "It was sent, or may have been, and the service does not show it",
        "look in the service's web application; if it was not sent, trigger a new run",
        (
            *("deleted transfer", "deleted before it was heard of", "lost memory", "memory lost during a send"),
            "restored service",
        ),
        "IN_DOUBT",
    ),
    Limit(
        "Three tasks: what was sent is found by the task that sends",
        "trigger a new run",
        ("lost memory", "order", "early order"),
        ": found",
    ),
    Limit(
        "Three tasks: the task that attaches knows the newest draft only",
        "trigger a new run",
        ("",),
        "task 1, v1: sent",
    ),
    Limit(
        "A draft that cannot be reached stays, unsent and not billed",
        "nothing: the service removes it after 30 days",
        ("other user", "other account", "early other account", "late other account", "new name", "lost memory"),
        "a draft is left behind",
    ),
)

ALL: Final = OF_THE_SEND + OF_A_CLEAR
