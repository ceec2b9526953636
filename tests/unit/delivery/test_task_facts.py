"""What a delivery takes from Airflow, with contexts that each version has given to a running try."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from outbound_transfer.delivery.memory import Likeness, Memory, scope_of
from outbound_transfer.delivery.task_facts import TaskFacts
from outbound_transfer.protocol.errors import TaskNotRunning
from support.recorded_contexts import recorded, recorded_versions

VERSIONS = recorded_versions()

#: Of a task with one retry, unless it says otherwise.
CASES = {
    "first try": "first of all, has retries",
    "automatic retry": "",
    "this task cleared": "has retries",
    "this task cleared before its retry": "has retries",
    "another task cleared before the retry": "",
    "first try in a cleared run": "",
    "cleared while it runs": "has retries",
    "run queued again before the retry": "",
    "run deleted and made again": "first of all, has retries",
}

#: Before Airflow 3.2, only the clear of a finished run is counted.
UNCOUNTED = ("this task cleared before its retry", "cleared while it runs")


class Known(NamedTuple):
    is_first_of_all: bool
    has_retries: bool


def facts_of(version: str, case: str, task_id: str = "plain") -> TaskFacts:
    known = recorded(version, case, task_id)[-1]
    return TaskFacts(known.context(), is_resumed=known.step == "resume")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_which_try_it_is(version: str, case: str) -> None:
    facts = facts_of(version, case, "late" if case == "first try in a cleared run" else "plain")
    assert Known(facts.is_first_of_all, facts.has_retries) == Known(
        "first of all" in CASES[case], "has retries" in CASES[case]
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_clear_of_this_task_changes_its_clears_and_a_retry_does_not(version: str) -> None:
    first, retry = (TaskFacts(known.context()).writer.max_tries for known in recorded(version, "automatic retry"))
    assert first == retry
    for case in ("this task cleared", *UNCOUNTED):
        assert facts_of(version, case).writer.max_tries != first, "max_tries says so, in every version"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("case", "task_id", "question"),
    [
        ("first try", "plain", None),
        ("automatic retry", "plain", None),
        ("this task cleared", "plain", None),
        ("first try", "mapped", None),
        ("one index cleared", "mapped", Likeness.SAME_PEOPLE),
        ("this task cleared, another removed from the DAG", "plain", Likeness.SAME_PEOPLE),
    ],
)
def test_who_else_may_have_sent_it(version: str, case: str, task_id: str, question: Likeness | None) -> None:
    facts = facts_of(version, case, task_id)
    memory = Memory(facts.writer, scope_of("example.com", "key"))
    assert facts.find_question(memory, is_own=False) is question
    if question and facts.is_mapped:
        assert facts.find_question(memory, is_own=True) is Likeness.EXACT


@pytest.mark.parametrize("version", VERSIONS)
def test_a_try_that_was_given_up_does_not_go_on(version: str) -> None:
    for known in recorded(version, "marked failed while it runs, then cleared"):
        if known.step == "other":
            with pytest.raises(TaskNotRunning, match="the task is failed"):
                TaskFacts(known.context()).check_still_running()


@pytest.mark.parametrize("version", VERSIONS)
def test_two_runs_of_one_id_are_two_writers_of_a_delivery_key(version: str) -> None:
    before, again = (
        TaskFacts(recorded(version, case)[0].context(), delivery_key="k").writer.task
        for case in ("the run that is changed", "run deleted and made again")
    )
    assert before != again
