"""How a clear of a task is told from its automatic retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


def clears_of(context: Context) -> tuple[int, int]:
    """The task's ``max_tries`` and its run's ``clear_number``: a clear changes at least one of them, a retry neither.

    A clear sets ``max_tries`` to the tries so far plus the retries, which may come to what it was; Airflow then still
    counts the clear for the run. Another task's clear raises the run's number too.
    """
    dag_run = context.get("dag_run")
    return int(context["ti"].max_tries), int(getattr(dag_run, "clear_number", 0) or 0)
