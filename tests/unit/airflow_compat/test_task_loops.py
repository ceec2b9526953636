"""The identity of a task instance in a task loop, with contexts of real versions of Airflow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from outbound_transfer.airflow_compat.task_loops import UnreadableLoop, find_terminal_state, read_loop_index
from support.recorded_contexts import RecordedContext, recorded, recorded_versions

LOOPS = "3.4.0b2"


def in_loop(case: str = "loop", task_id: str = "body.member") -> list[RecordedContext]:
    return recorded(LOOPS, case, task_id)


def identity(known: RecordedContext) -> tuple[Any, ...]:
    context = known.context()
    ti = context["ti"]
    return ti.dag_id, ti.run_id, ti.task_id, ti.map_index, read_loop_index(context)


@pytest.mark.parametrize("version", recorded_versions())
@pytest.mark.parametrize("task_id", ["plain", "mapped", "deferring"])
def test_outside_a_loop_there_is_no_index(version: str, task_id: str) -> None:
    """From Airflow 3.4 on, a mapped task has a region, too."""
    contexts = [
        known.context() for case in ("first try", "automatic retry") for known in recorded(version, case, task_id)
    ]
    assert {read_loop_index(context) for context in contexts} == {""}


def test_a_task_that_reads_a_loop_from_outside_is_in_none() -> None:
    assert [read_loop_index(known.context()) for known in in_loop(task_id="outside")] == [""]


@pytest.mark.parametrize(("task_id", "instances"), [("body.member", 3), ("body.mapped", 6)])
def test_each_iteration_has_an_identity_of_its_own(task_id: str, instances: int) -> None:
    contexts = in_loop(task_id=task_id)
    assert [read_loop_index(known.context()) for known in contexts] == [str(known.iteration) for known in contexts]
    assert len({identity(known) for known in contexts}) == len(contexts) == instances
    assert len({identity(known)[:-1] for known in contexts}) == instances / 3, "without the loop, they are one"


def test_a_retry_has_the_identity_of_its_first_try() -> None:
    first, retry = (known for known in in_loop("loop, automatic retry") if known.iteration == 1)
    assert identity(first) == identity(retry)


def test_an_iteration_that_a_clear_repeats_keeps_its_identity() -> None:
    """Airflow makes it anew, as a first try in another region."""
    before, repeated = in_loop()[2], in_loop("loop, cleared with later iterations")[2]
    assert identity(before) == identity(repeated)
    assert before.known["ti"]["region_id"] != repeated.known["ti"]["region_id"]


def without_loop(known: RecordedContext) -> dict[str, Any]:
    context = known.context()
    del context["loop"]
    return context


def without_groups(known: RecordedContext) -> dict[str, Any]:
    context = without_loop(known)
    context["ti"].task.task_group = None
    return context


def with_loop(known: RecordedContext, loop: Any) -> dict[str, Any]:
    return known.context(loop=loop)


def within(known: RecordedContext, group: Any) -> dict[str, Any]:
    context = known.context()
    context["ti"].task.task_group.parent_group.parent_group = group
    return context


def mapped_group() -> MappedTaskGroup:
    group = object.__new__(MappedTaskGroup)
    group.parent_group = None
    return group


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(without_loop(in_loop()[1]), id="no loop in the context"),
        pytest.param(without_loop(in_loop(task_id="body.mapped")[1]), id="no loop in the context, mapped"),
        pytest.param(without_groups(in_loop()[1]), id="a region, and neither loop nor groups"),
        pytest.param(with_loop(in_loop()[1], None), id="loop is None"),
        pytest.param(with_loop(in_loop()[1], SimpleNamespace(iteration=1)), id="loop without index"),
        pytest.param(with_loop(in_loop()[1], SimpleNamespace(index="1")), id="index of another type"),
        pytest.param(with_loop(in_loop()[1], SimpleNamespace(index=-1)), id="index below 0"),
        pytest.param(within(in_loop()[1], SimpleNamespace(max_iterations=2, parent_group=None)), id="loop in a loop"),
        pytest.param(within(in_loop()[1], mapped_group()), id="loop in a mapped group"),
    ],
)
def test_a_loop_that_cannot_be_read_is_refused_and_the_remedy_named(context: dict[str, Any]) -> None:
    with pytest.raises(
        UnreadableLoop, match=r"^Task 'body\.\w+' is in a loop, .* Nothing was created\. .* delivery_key"
    ):
        read_loop_index(context)


def test_a_group_around_a_loop_that_is_neither_is_fine() -> None:
    group = SimpleNamespace(parent_group=None)
    assert read_loop_index(within(in_loop()[1], group)) == "1"


OVERTAKEN = "loop, marked failed while the next iteration exists"


def states_of(known: RecordedContext) -> Any:
    ti = known.task_instance()
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id], map_index=None)
    return states[ti.run_id][ti.task_id]


def test_a_task_instance_runs_although_the_newest_iteration_does_not() -> None:
    (cleared,) = in_loop("loop, one iteration cleared")
    overtaken = next(known for known in in_loop(OVERTAKEN) if known.step == "other")
    assert (states_of(cleared), find_terminal_state(cleared.context())) == ("success", None)
    assert (states_of(overtaken) == "running", find_terminal_state(overtaken.context())) == (False, None)


def test_a_task_instance_that_was_marked_is_finished_although_its_process_runs() -> None:
    marked = next(known for known in in_loop(OVERTAKEN) if known.step == "finished")
    assert find_terminal_state(marked.context()) == "failed"


def test_the_end_of_another_iteration_or_index_is_not_its_own() -> None:
    """The first iteration has finished where a later one asks, and one index before the other."""
    contexts = [known.context() for task_id in ("body.member", "body.mapped") for known in in_loop(task_id=task_id)]
    assert {find_terminal_state(context) for context in contexts} == {None}
