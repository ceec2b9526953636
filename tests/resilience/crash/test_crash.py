"""The kill matrix in small, in one real Airflow, and that it finds what is broken. All of it: `make test-crash`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.crash.cases import Case, Clear, Group, Kill
from resilience.crash.crash_runner import CrashHarness
from resilience.crash.stack import CrashStack
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import running_stack

SEND_TAKES_EFFECT = Kill("send", "after", "at once", "task")
CREATED = Kill("create", "after", "at once", "task")
AT_ONCE = Kill("attach 2 and 3", "before", "last", "both")
IN_MIDST = Kill("attach 2", "before", "never", "task")
SUPERVISOR = Kill("send", "before", "together", "supervisor")

SOUND: tuple[Group, ...] = (
    (Case("plain", (SUPERVISOR,)),),
    (Case("parallel", (AT_ONCE,)),),
    (
        Case("mapped", (SEND_TAKES_EFFECT,)),
        Case("mapped", (CREATED,)),
        Case("mapped", (IN_MIDST,)),
        Case("mapped", (Clear("task", "finished"),)),
        Case("mapped", ()),
    ),
)
#: With the draft's id stored only after the send.
UNSOUND: dict[Case, str] = {
    Case("mutant", (SEND_TAKES_EFFECT,)): "billed 2 times",
    Case("mutant", (IN_MIDST,)): "leaked 1 drafts",
}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[CrashHarness]:
    with running_stack(tmp_path / "stack", Reporter(), 8, kind=CrashStack) as stack:
        stack.wait_for_dags(stack.airflow, "plain", "parallel", "mapped", "mutant")
        yield CrashHarness(stack)


@pytest.mark.e2e
def test_kills_and_clears(harness: CrashHarness) -> None:
    groups = [*SOUND, *((case,) for case in UNSOUND)]
    outcomes = {outcome.case: outcome for outcome in harness.play(groups)}

    assert len(outcomes) == sum(map(len, groups))
    for case, outcome in outcomes.items():
        if case in UNSOUND:
            assert any(wrong.startswith(UNSOUND[case]) for wrong in outcome.violations), outcome
        else:
            assert not outcome.violations, outcome
            assert outcome.tries >= 1 + len(case.steps), outcome
            assert outcome.leaked == (CREATED in case.steps), outcome
