"""Writes the page of decisions from the table, and the page of limits from what the checker finds."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from model import limits
from model.schedules import lines, pair_of
from model.world import Event
from outbound_transfer.delivery.decision import TABLE, Action, Decision, Evidence, Reason, Rule
from support.repository import REPOSITORY

DECISIONS: Final = REPOSITORY / "docs/reference/decisions.md"
LIMITS: Final = REPOSITORY / "docs/reference/limits.md"

_GENERATED: Final = "<!-- Written by `python -m model --write-docs`. -->"

#: How a condition is said, by the field of the evidence; of a flag, if it is true.
_WORDS: Final = {
    "phase": "memory",
    "input": "input",
    "by_id": "the service shows",
    "question": "somebody else may have sent it",
    "search": "search",
    "is_outdated": "outdated",
    "is_wanted": "wanted",
}


def pages() -> dict[Path, str]:
    """Return the text of each page that is generated."""
    return {DECISIONS: decisions_page(), LIMITS: limits_page()}


def decisions_page() -> str:
    """Return the table of decisions, and what each refusal says."""
    return "\n".join([*_decisions(), ""])


def _decisions() -> Iterator[str]:
    yield "# Decisions"
    yield f"\n{_GENERATED}\n"
    yield "Before it acts, a try reads this table with what it knows, and again with what the action has shown. The"
    yield "first row whose conditions hold decides. `delivery/decision.py` says what each value means."
    for step, rules in TABLE.items():
        yield f"\n## {step.value[0].upper()}{step.value[1:]}\n"
        yield "| | if | then | because |"
        yield "|---|---|---|---|"
        for number, rule in enumerate(rules, start=1):
            yield f"| {number} | {_conditions(rule)} | {_then(rule.then)} | {rule.why} |"
    yield "\n## Refusals\n"
    yield "| | nothing is sent, and the error says |"
    yield "|---|---|"
    for reason in Reason:
        yield f"| {_title(reason)} | {reason.value.replace('!r', '').replace('{', '*').replace('}', '*')} |"


def _conditions(rule: Rule) -> str:
    each = (_condition(name, values) for name, values in rule.conditions.items())
    return "; ".join(each) or "otherwise"


def _condition(name: str, values: tuple[object, ...]) -> str:
    assert name in Evidence._fields
    if values == (True,):
        return _WORDS[name]
    return f"{_WORDS[name]}: {' or '.join(value.value for value in values if isinstance(value, Enum))}"


def _then(decision: Decision) -> str:
    if decision.reason:
        return f"refuse: {_title(decision.reason)}"
    return f"**{decision.action.value}**" if decision.action is Action.SEND else decision.action.value


def _title(reason: Reason) -> str:
    return reason.name.lower().replace("_", " ")


def limits_page() -> str:
    """Return where the promise to send at most once ends, and what is refused."""
    return "\n".join([*_limits(), ""])


def _limits() -> Iterator[str]:
    yield "# Limits of the promise to send at most once"
    yield f"\n{_GENERATED}\n"
    yield "A checker explores all schedules of a few tries, clears and troubles with the table of"
    yield "[decisions](decisions.md). These are the smallest sets of troubles with which a delivery is sent twice, or"
    yield "not as it was meant. Each has two schedules in which the task knows the same when it decides to send."
    yield "Only in the second one, that is right."
    for number, limit in enumerate(limits.OF_THE_SEND, start=1):
        assert limit.scenarios, "each limit of the send has its scenarios"
        pair = pair_of(limit.scenarios[0], limit.sets[0])
        yield f"\n## {number}. {limit.title}\n"
        yield f"{described(limit)}\n"
        yield from _block(pair.broken)
        yield "\nThe same to the task:\n"
        yield from _block(pair.same)
    yield "\n## What is refused\n"
    yield "With less evidence, a task refuses rather than sends."
    yield "\n| | troubles | what to do |"
    yield "|---|---|---|"
    for limit in limits.OF_A_CLEAR:
        yield row_of(limit)


def described(limit: limits.Limit) -> str:
    return f"Troubles: {'; '.join(limit.sets)}. What to do: {limit.remedy}."


def row_of(limit: limits.Limit) -> str:
    return f"| {limit.title} | {'; '.join(each or 'none' for each in limit.sets)} | {limit.remedy} |"


def _block(events: list[Event]) -> Iterator[str]:
    yield "```text"
    yield from lines(events)
    yield "```"
