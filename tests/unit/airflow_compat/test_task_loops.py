"""A delivery in a task loop is refused, with contexts of real versions of Airflow."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.airflow_compat.task_loops import TaskInLoop, refuse_loop
from support.recorded_contexts import RecordedContext, recorded, recorded_versions

LOOPS = "3.4.0b2"


def in_loop(case: str = "loop", task_id: str = "body.member") -> list[RecordedContext]:
    return recorded(LOOPS, case, task_id)


@pytest.mark.parametrize("version", recorded_versions())
@pytest.mark.parametrize("task_id", ["plain", "mapped", "deferring"])
def test_outside_a_loop_nothing_is_refused(version: str, task_id: str) -> None:
    """From Airflow 3.4 on, a mapped task has a region, too."""
    for case in ("first try", "automatic retry"):
        for known in recorded(version, case, task_id):
            refuse_loop(known.context())


def test_a_task_that_reads_a_loop_from_outside_is_in_none() -> None:
    for known in in_loop(task_id="outside"):
        refuse_loop(known.context())


def without_loop(known: RecordedContext) -> dict[str, Any]:
    context = known.context()
    del context["loop"]
    return context


def without_groups(known: RecordedContext) -> dict[str, Any]:
    context = without_loop(known)
    context["ti"].task.task_group = None
    return context


@pytest.mark.parametrize(
    "context",
    [
        *(known.context() for known in in_loop()),
        *(known.context() for known in in_loop(task_id="body.mapped")),
        *(known.context() for known in in_loop("loop, automatic retry")),
        without_loop(in_loop()[1]),
        without_loop(in_loop(task_id="body.mapped")[1]),
        without_groups(in_loop()[1]),
    ],
)
def test_in_a_loop_a_delivery_is_refused_and_the_remedy_named(context: dict[str, Any]) -> None:
    with pytest.raises(TaskInLoop, match=r"^Task 'body\.\w+' is in a loop.* Nothing was created\. .*expand"):
        refuse_loop(context)
