"""A bounded form of ``make test-model``: the scenarios as far as some thousand worlds go, and the holes."""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import Any, get_type_hints

import pytest

from model import documents, limits
from model.explore import Scenario, explore, name_of
from model.holes import HOLES, Hole
from model.mutants import Mutant, find, mutants
from model.promises import Promises
from model.scenarios import ALL
from outbound_transfer.delivery.decision import TABLE, Action, Evidence, Step
from support.repository import REPOSITORY

MAX_WORLDS = 1_500


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_only_stated_limits_break_a_promise(scenario: Scenario) -> None:
    explored = explore(scenario, Promises(), max_worlds=MAX_WORLDS)
    faults = [
        f"{failure.what} with {name_of(failure.troubles)}: {'; '.join(map(str, explored.trace(failure.world)))}"
        for failure in explored.failures
        if limits.limit_of(failure, scenario) is None
    ]
    assert faults == []


@pytest.mark.slow
@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.name)
def test_a_hole_is_found_again_without_its_mend(hole: Hole) -> None:
    assert not hole.find().is_exhausted, "no promise is broken that holds with the mend"


#: Some that are found soon; `make test-model` changes every rule.
SAMPLE = [each for each in mutants() if each.then is Action.RETURN and each.index + 1 in (8, 10, 14)]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SAMPLE, ids=str)
def test_a_changed_rule_is_found(mutant: Mutant) -> None:
    assert find(mutant, MAX_WORLDS)


def test_the_page_of_decisions_is_of_this_table() -> None:
    assert documents.DECISIONS.read_text() == documents.decisions_page(), "run python -m model --write-docs"


def test_the_page_of_limits_is_of_these_limits() -> None:
    page = documents.LIMITS.read_text()  # `make test-model` compares the schedules, too
    stated = [
        f"## {number}. {each.title}\n\n{documents.described(each)}\n"
        for number, each in enumerate(limits.OF_THE_SEND, start=1)
    ]
    rows = list(map(documents.row_of, limits.OF_A_CLEAR))
    missing = [text for text in [*stated, *rows] if text not in page]
    assert not missing, "run python -m model --write-docs"
    assert page.count("\n## ") == len(limits.OF_THE_SEND) + 1


def test_there_are_at_most_ten_limits_of_the_send() -> None:
    assert len(limits.OF_THE_SEND) <= 10


def test_the_page_of_guarantees_names_each_limit_of_the_send() -> None:
    page = (REPOSITORY / "docs/guarantees.md").read_text()
    rows = page.partition("### Limits")[2].partition("\n\n|")[2].partition("\n\n")[0].splitlines()[2:]
    named = [each.strip().lower() for row in rows for each in row.split("|")[1].split(";")]
    assert sorted(named) == sorted([*(limit.short for limit in limits.OF_THE_SEND), *limits.BESIDE_THE_MODEL])


def _values(field: str) -> list[Any]:
    kind = get_type_hints(Evidence)[field]
    return list(kind) if issubclass(kind, Enum) else [False, True]


@pytest.mark.parametrize("step", Step)
def test_each_evidence_has_a_decision_and_each_rule_decides(step: Step) -> None:
    rules = TABLE[step]
    fields = sorted({field for rule in rules for field in rule.conditions})
    deciding = set()
    for values in product(*map(_values, fields)):
        evidence = Evidence(**dict(zip(fields, values, strict=True)))
        deciding.add(next(index for index, rule in enumerate(rules) if rule.applies(evidence)))
    assert deciding == set(range(len(rules)))
