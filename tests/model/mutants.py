"""The table with one rule changed on purpose: the model must find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, NamedTuple
from unittest.mock import patch

from model.explore import Explored, Scenario, explore
from model.promises import Promises
from model.scenarios import ALL, FOUND, INDEXES, MAPPED_ALONE, REDELIVERY, THREE, scenario
from outbound_transfer.delivery.decision import TABLE, Action, Decision, Reason, Rule, Step

#: What a rule may wrongly say instead.
_WRONG: Final[dict[Action, tuple[Action | Reason, ...]]] = {
    Action.RETRIEVE: (Action.CREATE, Action.FORGET, Action.RESUME),
    Action.SEARCH: (Action.CREATE,),
    Action.CREATE: (Action.SEARCH, Action.RETURN, Action.FORGET),
    Action.RESUME: (Action.DISCARD, Action.CREATE),
    Action.DISCARD: (Action.RESUME, Action.FORGET, Action.RETURN),
    Action.FORGET: (Reason.IN_DOUBT, Action.RETURN),
    Action.CHECK: (Action.SEND,),
    Action.CONFIRM: (Action.SEND,),
    Action.RETURN: (Action.CREATE, Action.FORGET, Reason.OTHER_INPUT),
    Action.REFUSE: (Action.RETURN, Action.FORGET, Action.CREATE),
    Action.STOP: (Action.SEND,),
    Action.SEND: (Action.CONFIRM, Action.STOP),
}

#: The same before the send, where there is a draft.
_WRONG_AT_SEND: Final[dict[Action, tuple[Action | Reason, ...]]] = {
    Action.SEARCH: (Action.CONFIRM, Action.SEND),
    Action.DISCARD: (Action.SEND,),
    Action.REFUSE: (Action.CONFIRM, Action.SEND),
}


class Mutant(NamedTuple):
    """One change of the table.

    :ivar index: of the rule, within its step.
    :ivar then: what it says instead; None if it is taken out.
    """

    step: Step
    index: int
    then: Action | Reason | None

    @property
    def rule(self) -> Rule:
        return TABLE[self.step][self.index]

    @property
    def name(self) -> str:
        return f"{self.step.name} {self.index + 1} {self.then.name if self.then else '-'}"

    def __str__(self) -> str:
        then = self.rule.then.reason or self.rule.then.action
        instead = self.then.name if self.then else "taken out"
        return f"{self.step.name} {self.index + 1}. {self.rule.why}: {then.name} -> {instead}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the table be changed within the block."""
        rules = list(TABLE[self.step])
        if self.then is None:
            del rules[self.index]
        else:
            rules[self.index] = self.rule._replace(then=_decision(self.then))
        with patch.dict(TABLE, {self.step: tuple(rules)}):
            yield


def _decision(then: Action | Reason) -> Decision:
    return Decision(Action.REFUSE, then) if isinstance(then, Reason) else Decision(then)


def mutants() -> Iterator[Mutant]:
    """Yield each rule taken out, and with each wrong action instead of its own."""
    for step, rules in TABLE.items():
        for index, rule in enumerate(rules):
            if index < len(rules) - 1:
                yield Mutant(step, index, None)
            wrong = _WRONG_AT_SEND if step is Step.SEND else _WRONG
            for then in wrong.get(rule.then.action) or _WRONG[rule.then.action]:
                yield Mutant(step, index, then)


#: Worlds of each scenario in which a change is looked for.
MAX_WORLDS: Final = 12_000

#: Small scenarios that show most changes: with few troubles, the worlds are few that need the rule.
SMALL: Final = (
    scenario("a clear", "clear, crash, failure", at_most=1, twice=False),
    scenario("a find and a deletion", "clear, lost memory, deleted transfer", tries=4),
    scenario("a deletion", "clear, crash, deleted transfer", twice=False),
    scenario("a move", "clear, failure, other account", twice=False),
    scenario("other input at once", "clear, failure, other input", twice=False),
    MAPPED_ALONE,
    FOUND,
    scenario(
        "an index that may have been sent elsewhere",
        "failure, order, late other account",
        INDEXES,
        ("X", "Y"),
        twice=False,
        at_most=3,
    ),
    scenario("two indexes at once", "wait, failure, order", INDEXES, ("X", "Y"), at_most=3, twice=False),
    scenario("a try that is given up", "zombie, wait", twice=False),
    scenario("a pickup", "wait, pickup", REDELIVERY.rules, twice=False),
    scenario("a draft that a task removes", "clear, removed by a task", THREE, ("X", "v1", "X"), tries=5),
)


@cache
def _known(scenario: Scenario, max_worlds: int) -> Explored:
    return explore(scenario, Promises(), max_worlds=max_worlds)


def find(mutant: Mutant, max_worlds: int = MAX_WORLDS) -> str:
    """Return which promise a change breaks, or how it fails; "" if it does neither."""
    for each in (*SMALL, *ALL):
        known = _known(each, max_worlds)
        try:
            with mutant.applied():
                explored = explore(each, Promises(), max_worlds=max_worlds, known=known)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for failure in explored.failures:
            if not known.is_known(failure.promise, failure.what, failure.troubles):
                return f"{each.name}: {failure.what}"
    return ""
