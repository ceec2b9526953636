"""Distinguish a clear of a task from its automatic retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


def read_clear_counters(context: Context) -> tuple[int, int]:
    """Return the task's ``max_tries`` and its run's ``clear_number``: a clear changes at least one, a retry neither.

    A clear sets ``max_tries`` to the tries so far plus the retries, which may equal the old value; ``clear_number``
    changes then too. A clear of another task in the run also changes ``clear_number``.
    """
    dag_run = context.get("dag_run")
    return int(context["ti"].max_tries), int(getattr(dag_run, "clear_number", 0) or 0)
