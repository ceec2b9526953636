"""Writes the page of decisions from the table."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from outbound_transfer.delivery.decision import RULES, Phase, Refuse, Rule, Seen
from support.repository import REPOSITORY

DECISIONS: Final = REPOSITORY / "docs/reference/decisions.md"

#: How a condition that is a flag is said.
_WORDS: Final = {
    ("other_input", True): "the input differs",
    ("other_input", False): "the input is the same",
    ("has_filled", True): "this attempt has filled the draft",
}


def decisions_page() -> str:
    """Return the table of decisions, and what each refusal says."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield "# Decisions"
    yield "\n<!-- Written by `python -m model --write-docs`. -->\n"
    yield "An attempt reads this table with what it knows, and again after each action. The first row that applies"
    yield "decides. `delivery/decision.py` defines the phases; [guarantees](../guarantees.md) says what they protect."
    yield "\n| | phase | the service shows | and | then | because |"
    yield "|---|---|---|---|---|---|"
    for number, rule in enumerate(RULES, start=1):
        phase, seen = _values(rule, "phase", Phase), _values(rule, "seen", Seen)
        also = "; ".join(
            _WORDS[name, value] for name, (value, *_) in rule.when.items() if name not in ("phase", "seen")
        )
        then = f"refuse: {_title(rule.then)}" if isinstance(rule.then, Refuse) else rule.then.value
        yield f"| {number} | {phase} | {seen} | {also} | {then} | {rule.why} |"
    yield "\n## Refusals\n"
    yield "Nothing is sent, and the error says why and what to do."
    yield "\n| | error |"
    yield "|---|---|"
    for reason in Refuse:
        yield f"| {_title(reason)} | {reason.value.replace('{', '*').replace('}', '*')} |"


def _values(rule: Rule, field: str, kind: type[Enum]) -> str:
    values = rule.when.get(field, ())
    return " or ".join(f"`{each.value}`" if kind is Phase else each.value for each in values) or "any"


def _title(reason: Refuse) -> str:
    return reason.name.lower().replace("_", " ")
