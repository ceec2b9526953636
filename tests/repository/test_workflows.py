"""What runs by night: the workflow and ``make nightly`` run the same, and no check is in neither."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import combinations
from typing import Any

import pytest
import yaml
from _pytest.mark.expression import Expression

from support.repository import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text()
CHECKS = re.compile(r"^((?:check|test)[a-z0-9-]*):", re.MULTILINE)
#: The markers that decide which target runs a test.
MARKS = ("e2e", "slow", "nightly")


def nightly_targets() -> list[str]:
    # Without what the make that runs this test was given, such as NIGHTLY="test".
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    printed = subprocess.run(
        ["make", "--print-data-base", "--question", "--no-builtin-rules", "help"],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    (targets,) = re.findall(r"^NIGHTLY := (.+)$", printed, re.MULTILINE)
    return targets.split()


def load_workflow(name: str) -> Any:
    return yaml.safe_load((REPOSITORY / ".github/workflows" / name).read_text())


def test_the_workflow_runs_every_part_of_make_nightly() -> None:
    assert load_workflow("nightly.yml")["jobs"]["nightly"]["strategy"]["matrix"]["part"] == nightly_targets()


def test_every_check_is_a_part_of_make_nightly() -> None:
    assert sorted(nightly_targets()) == sorted(CHECKS.findall(MAKEFILE))


def test_contributing_says_what_each_target_of_a_night_runs() -> None:
    said = dict(re.findall(r"^([a-z0-9-]+):.*## (.+)$", MAKEFILE, re.MULTILINE))
    rows = "\n".join(f"| `{target}` | {said[target]} |" for target in nightly_targets())
    assert rows in (REPOSITORY / "CONTRIBUTING.md").read_text(), f"the table should be:\n{rows}"


@pytest.mark.parametrize(
    "marks",
    [set(marks) for n in range(4) for marks in combinations(MARKS, n)],
    ids=lambda marks: "-".join(sorted(marks)),
)
def test_each_test_belongs_to_one_target(marks: set[str]) -> None:
    expressions = re.findall(r'-m "(.+)" \$\(', MAKEFILE)
    assert len(expressions) == 3
    assert sum(Expression.compile(text).evaluate(lambda name, **_: name in marks) for text in expressions) == 1
