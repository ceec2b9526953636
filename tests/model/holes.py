"""The holes that were found by reading and by attack: with its mend taken out, the model finds each again."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple

from model.explore import Explored, Scenario, explore
from model.mutants import Mutant
from model.promises import Promises
from model.scenarios import AT_ONCE, INDEXES, KEYS, REDELIVERY, THREE, THREE_INDEXES, scenario
from model.tries import Rules
from model.world import World
from outbound_transfer.delivery.decision import TABLE, Action, Step

_FILES: Final = ("X", "v1", "X")
_PAIR: Final = ("X", "X", "Y", "Y")


class Hole(NamedTuple):
    """One hole.

    :ivar what: what went wrong.
    :ivar scenario: with the troubles that it needs.
    :ivar out: the mends that are taken out, as fields of :class:`.Rules`.
    :ivar mutant: the change of the table, if that is the mend.
    """

    name: str
    what: str
    scenario: Scenario
    out: dict[str, Any]
    mutant: Mutant | None = None

    def find(self) -> Explored:
        """Return the worlds until a promise is broken that holds with the mend."""
        known = explore(self.scenario, Promises())
        without = replace(self.scenario, rules=self.scenario.rules._replace(**self.out))
        with self.mutant.applied() if self.mutant else nullcontext():
            return explore(without, Promises(), known=known)


def _resumes_any_draft() -> Mutant:
    """Return the table that continues with a draft whose writer has not said that it stopped."""
    rules = TABLE[Step.PREPARE]
    index = next(at for at, rule in enumerate(rules) if rule.why == "its writer may still work on it")
    return Mutant(Step.PREPARE, index, Action.RESUME)


def _once_both_sends_have_failed(world: World, trouble: str) -> bool:
    """Let the order change between the failures of both sends and a clear, so that there are few worlds."""
    if trouble == "clear an index":
        return world.slots[0].item == "Y"
    creates, sends = world.slots[::2], world.slots[1::2]
    if trouble == "failure":
        return all(slot.state == "success" for slot in creates) and all(slot.tries < 2 for slot in sends)
    return trouble != "order" or all(slot.state == "failed" for slot in sends)


def _hole(name: str, what: str, troubles: str, *out: str, **options: Any) -> Hole:
    mutant = options.pop("mutant", None)
    return Hole(name, what, scenario(name, troubles, **options), dict.fromkeys(out, True), mutant)


HOLES: Final = (
    _hole(
        "B1",
        "one item is sent by two indexes that wait for a slot",
        "wait, failure, order",
        "checks_once",
        rules=INDEXES,
        items=("X", "Y"),
        twice=False,
        at_most=3,
    ),
    _hole("B2", "a try that Airflow has given up during a wait sends", "zombie, wait", "checks_once"),
    _hole(
        "B7",
        "the open question dies with its try",
        "clear, crash, lost memory",
        "forgets_question",
    ),
    _hole(
        "C1",
        "a removal is applied while the send waits",
        "clear one, wait, other file of task 1",
        "checks_once",
        "attaches_unasked",
        rules=THREE,
        items=_FILES,
        tries=5,
    ),
    _hole("C2", "a killed try's call is applied late", "crash in a call", mutant=_resumes_any_draft()),
    _hole("C3", "a given-up try uploads", "zombie", mutant=_resumes_any_draft()),
    _hole("C4", "another key, and both drafts are sent", "zombie, key change", "ignores_key", rules=KEYS),
    _hole(
        "K1",
        "a task leaves its key, which another one goes on with",
        "crash in a call, key removed",
        "leaves_taken_key",
        rules=Rules(kinds=("deliver", "deliver"), keys=("k", "")),
        items=("X", "X"),
        tries=4,
        twice=False,
    ),
    _hole(
        "C5",
        "the id is that of a stranger's draft",
        "restored service",
        "ignores_identity",
        rules=THREE,
        items=_FILES,
        tries=4,
    ),
    _hole("F1", "a draft that was only read is handed on", "crash in a call, failure", "hands_on_unwritten"),
    _hole(
        "F4",
        "a late discard meets a draft that is continued",
        "clear, crash in a call, failure, other input, first input",
        "discards_handed_on",
        tries=4,
        twice=False,
        at_most=4,
    ),
    _hole("F5", "a given-up try sends while the next one begins", "zombie", "loads_first"),
    _hole(
        "F7",
        "a draft that was discarded counts as sent",
        "crash, failure",
        "discards_sending",
        rules=THREE,
        items=_FILES,
        tries=3,
    ),
    _hole(
        "D1",
        "a discard is refused, as the draft is sent, and that is not remembered",
        "crash in a call, deleted transfer",
        "forgets_refusal",
        "forgets_read",
        rules=AT_ONCE.rules,
    ),
    _hole(
        "D1, and no discard",
        "a read shows the draft sent that a killed try was about to discard, and that is not remembered",
        "crash, crash in a call, deleted transfer",
        "forgets_read",
        rules=AT_ONCE.rules,
        at_most=3,
        twice=False,
    ),
    _hole(
        "D2",
        "three tasks, mapped: a retry of the send asks nobody",
        "clear an index, failure, order",
        "asks_after_waits",
        rules=THREE_INDEXES,
        items=_PAIR,
        tries=7,
        often=("failure",),
        at_most=3,
        guard=_once_both_sends_have_failed,
    ),
    _hole(
        "D3",
        "a redelivery waits among its checks",
        "wait, pickup, pickup after the check",
        "keeps_checks",
        rules=REDELIVERY.rules,
    ),
    _hole(
        "D3, mapped",
        "a search waits, and another index sends the same",
        "wait, failure, order",
        "keeps_checks",
        rules=INDEXES,
        items=("X", "Y"),
        at_most=4,
    ),
    _hole("fence", "an earlier try writes the memory of a later one", "zombie", "is_unfenced"),
    _hole("hand-over", "a hand-over counts twice", "crash in a call, deferral", "keeps_hand_over"),
)
