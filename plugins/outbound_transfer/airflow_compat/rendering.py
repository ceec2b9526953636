"""How Airflow renders template fields: which values are templates, and when to hide the secrets among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.definitions.mappedoperator import MappedOperator

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

Operator = TypeVar("Operator", bound="BaseOperator")


def is_unmapped(task: BaseOperator) -> bool:
    """Return whether Airflow makes the task of a mapped one as it runs, from what other tasks have returned."""
    return bool(getattr(task, "_BaseOperator__from_mapped", False))


def hides_secrets(kind: type[Operator]) -> type[Operator]:
    """Class decorator: call ``before_rendering()`` and ``hide_secrets()`` around the rendering of template fields.

    Airflow stores the fields right after it, and has no public method that it calls between the two for a mapped task
    as well. What a task returned for ``expand_kwargs()`` is no template.
    """
    render = kind._do_render_template_fields

    def render_and_hide(
        task: Any, parent: Any, template_fields: Any, context: Context, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        if parent is not task:  # an argument that has templates of its own
            render(task, parent, template_fields, context, jinja_env, seen_oids)
            return
        fields = _fields_of_the_dag_file(task, template_fields, context)
        task.before_rendering([name for name in fields if id(getattr(task, name, None)) not in seen_oids])
        try:
            render(task, parent, fields, context, jinja_env, seen_oids)
        finally:
            task.hide_secrets()

    kind._do_render_template_fields = render_and_hide  # type: ignore[method-assign, assignment]
    return kind


def _fields_of_the_dag_file(task: BaseOperator, template_fields: Iterable[str], context: Context) -> list[str]:
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
