"""The holes that were found by reading and by attack: with its mend taken out, the model finds each again."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple

from model.explore import Explored, Scenario, explore
from model.mutants import Mutant
from model.promises import Promises
from model.scenarios import INDEXES, KEYS, THREE, once_all_have_begun, scenario
from outbound_transfer.delivery.decision import TABLE, Action, Step

_FILES: Final = ("X", "v1", "X")


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


def _hole(name: str, what: str, troubles: str, *out: str, **options: Any) -> Hole:
    mutant = options.pop("mutant", None)
    return Hole(name, what, scenario(name, troubles, **options), dict.fromkeys(out, True), mutant)


HOLES: Final = (
    _hole(
        "B1",
        "one item is sent by two indexes that wait for a slot",
        "clear one, wait, failure, order",
        "checks_once",
        rules=INDEXES,
        items=("X", "Y"),
        twice=False,
        at_most=3,
        guard=once_all_have_begun,
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
        "C5",
        "the id is that of a stranger's draft",
        "restored service",
        "ignores_identity",
        rules=THREE,
        items=_FILES,
        tries=4,
    ),
    _hole("F1", "a draft that was only read is handed on", "crash in a call, failure", "hands_on_unwritten"),
    _hole("F2", "a second resend under one clear", "resend one, crash, lost memory", "trusts_gap", twice=False),
    _hole(
        "F3",
        "a suspicion stops other input",
        "failure, twin, first input, other input",
        "suspects_blindly",
        items=("Y",),
        at_most=4,
    ),
    _hole(
        "F4",
        "a late discard meets a draft that is continued",
        "clear, resend one, crash in a call, failure",
        "discards_handed_on",
        tries=4,
        twice=False,
    ),
    _hole("F5", "a given-up try sends while the next one begins", "zombie", "loads_first"),
    _hole("F6", "a resend is ignored", "resend one, crash", "acts_by_discard", twice=False),
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
        "F8",
        "three tasks: a resend is refused for ever",
        "lost memory",
        "publishes_overruled",
        rules=THREE,
        items=_FILES,
        tries=5,
    ),
    _hole("fence", "an earlier try writes the memory of a later one", "zombie", "is_unfenced"),
    _hole("hand-over", "a hand-over counts twice", "crash in a call, deferral", "keeps_hand_over"),
)
