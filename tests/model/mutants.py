"""The table with one rule changed on purpose: the model must find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, NamedTuple
from unittest.mock import patch

from model.explore import Explored, Scenario, explore
from model.promises import Promises
from model.scenarios import ALL
from outbound_transfer.delivery.decision import TABLE, Action, Decision, Reason, Rule, Step

#: What a rule may wrongly say instead.
_WRONG: Final[dict[Action, tuple[Action | Reason, ...]]] = {
    Action.RETRIEVE: (Action.CREATE, Action.FORGET, Action.RESUME),
    Action.SEARCH: (Action.CREATE,),
    Action.CREATE: (Action.SEARCH,),
    Action.RESUME: (Action.DISCARD, Action.CREATE),
    Action.DISCARD: (Action.RESUME, Action.FORGET, Action.RETURN),
    Action.FORGET: (Reason.IN_DOUBT, Action.RETURN),
    Action.SUPERSEDE: (Action.RETURN, Reason.MAY_BE_SENT, Action.FORGET),
    Action.REVERT: (Action.CREATE, Action.FORGET),
    Action.CHECK: (Action.SEND,),
    Action.CONFIRM: (Action.SEND,),
    Action.RETURN: (Action.SUPERSEDE, Action.FORGET, Reason.OTHER_INPUT),
    Action.REFUSE: (Action.RETURN, Action.SUPERSEDE, Action.FORGET, Action.CREATE),
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

#: The changes that are not found in so many worlds, by rule. Some are found in more: those of 2, 3, 5, 6, 23 (but for
#: its absence and CREATE) and SEND 1. The others wait for a trouble that shows them, or for their rule to go.
NOT_FOUND: Final = frozenset(
    {
        *("PREPARE 1 FORGET", "PREPARE 2 -", "PREPARE 2 IN_DOUBT", "PREPARE 2 RETURN", "PREPARE 3 RETURN"),
        *("PREPARE 5 FORGET", "PREPARE 6 SUPERSEDE", "PREPARE 6 FORGET", "PREPARE 10 -", "PREPARE 12 FORGET"),
        *("PREPARE 17 -", "PREPARE 17 RESUME", "PREPARE 17 FORGET", "PREPARE 18 -", "PREPARE 18 RESUME"),
        *("PREPARE 20 -", "PREPARE 20 CREATE", "PREPARE 21 -", "PREPARE 23 -", "PREPARE 23 RETURN"),
        *("PREPARE 23 SUPERSEDE", "PREPARE 23 FORGET", "PREPARE 23 CREATE", "SEND 1 -", "SEND 1 SEND"),
        # No task of the model discards what another has made.
        *("PREPARE 9 -", "PREPARE 9 IN_DOUBT", "PREPARE 9 RETURN"),
        *("SEND 2 -", "SEND 2 CONFIRM", "SEND 2 SEND", "SEND 3 -", "SEND 3 CONFIRM", "SEND 3 SEND"),
    }
)


@cache
def _known(scenario: Scenario, max_worlds: int) -> Explored:
    return explore(scenario, Promises(), max_worlds=max_worlds)


def find(mutant: Mutant, max_worlds: int = MAX_WORLDS) -> str:
    """Return which promise a change breaks, or how it fails; "" if it does neither."""
    for scenario in ALL:
        known = _known(scenario, max_worlds)
        try:
            with mutant.applied():
                explored = explore(scenario, Promises(), max_worlds=max_worlds, known=known)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for failure in explored.failures:
            if not known.is_known(failure.promise, failure.what, failure.troubles):
                return f"{scenario.name}: {failure.what}"
    return ""
