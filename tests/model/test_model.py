"""A short form of ``make test-model``: a part of the schedules, and some rules taken away."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import product
from typing import Any, get_type_hints

import pytest

from model.documents import DECISIONS, decisions_page
from model.families import families, sample
from model.mutants import find, mutants
from model.world import simulated
from outbound_transfer.delivery.decision import RULES, Known

#: Schedules of each family: every family has its own troubles.
SCHEDULES = 25


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.parametrize("family", families())
def test_a_delivery_is_sent_once_complete_and_green_only_then(family: str) -> None:
    for label, run in sample(families()[family], SCHEDULES):
        world = run()
        assert world.violations == [], f"{label}: {world.status}"


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("rule 7 (IN_DOUBT) removed", "removed"),
        ("row: the claim is not compared", "one task, cleared"),
        ("draft: one may fill while a send is under way", "clears, a slot"),
        ("draft: it is not stored that a send begins", "kills"),
        ("delivery: the account is not compared", "another key"),
    ],
)
def test_a_rule_that_is_taken_away_breaks_a_promise(name: str, only: str) -> None:
    (mutant,) = (each for each in mutants() if each.name == name)
    assert find(mutant, (250,), only), "no schedule needs the rule"


def test_each_state_has_a_decision_and_each_rule_decides() -> None:
    kinds = get_type_hints(Known)
    values: list[Any] = [
        list(kind) if issubclass(kind, Enum) else [False, True] for kind in (kinds[name] for name in Known._fields)
    ]
    deciding = set()
    for each in product(*values):
        known = Known(*each)._asdict()
        deciding.add(
            next(at for at, rule in enumerate(RULES) if all(known[name] in each for name, each in rule.when.items()))
        )
    assert deciding == set(range(len(RULES)))


def test_the_page_of_decisions_shows_the_table() -> None:
    assert DECISIONS.read_text() == decisions_page(), "run python -m model --write-docs"
