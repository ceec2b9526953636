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

    Airflow stores them right after it, and calls no public method between the two for mapped tasks as well.
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
    """Return the template fields but those whose values another task returned for ``expand_kwargs()``."""
    dag = context.get("dag")  # there is none where a test of a Dag renders
    mapped = dag and dag.task_dict.get(task.task_id)
    fields = list(template_fields)
    if not isinstance(mapped, MappedOperator):
        return fields
    expand_input = mapped._get_specified_expand_input()
    values, index = expand_input.value, context["ti"].map_index
    is_of_dag_file = expand_input.EXPAND_INPUT_TYPE != "list-of-dicts" or (
        isinstance(values, Sized) and isinstance(values[index], Mapping)  # type: ignore[index]
    )
    return fields if is_of_dag_file else [name for name in fields if name in mapped.partial_kwargs]
