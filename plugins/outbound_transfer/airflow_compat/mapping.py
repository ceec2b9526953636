"""Which arguments of a mapped task come from another task: Airflow says so of ``expand()`` only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING

from airflow.sdk.definitions.mappedoperator import MappedOperator

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context


def is_unmapped(task: BaseOperator) -> bool:
    """Return whether Airflow makes the task of a mapped one as it runs, from what other tasks have returned."""
    return bool(getattr(task, "_BaseOperator__from_mapped", False))


def fields_of_the_dag_file(task: BaseOperator, template_fields: Iterable[str], context: Context) -> list[str]:
    """Return the template fields but those whose values another task returned for ``expand_kwargs()``.

    :param task: the running one, unmapped.
    """
    dag = context.get("dag")  # there is none where a test of a DAG renders
    mapped = dag and dag.task_dict.get(task.task_id)
    if not isinstance(mapped, MappedOperator) or not _is_expanded_by_a_task(mapped, context["ti"].map_index):
        return list(template_fields)
    return [name for name in template_fields if name in mapped.partial_kwargs]


def _is_expanded_by_a_task(mapped: MappedOperator, map_index: int | None) -> bool:
    expand_input = mapped._get_specified_expand_input()
    if expand_input.EXPAND_INPUT_TYPE != "list-of-dicts":
        return False
    value = expand_input.value
    return not isinstance(value, Sized) or not isinstance(value[map_index], Mapping)  # type: ignore[index]
