"""Read the state of a run: in a worker through its task instance, in a command from Airflow's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import Context

#: How many task ids a request to Airflow names: they are in its URL.
_MAX_TASK_IDS: Final = 100


def read_clears(context: Context) -> tuple[int, int]:
    """Return the task's ``max_tries`` and its run's ``clear_number``: a clear changes at least one, a retry neither.

    A clear sets ``max_tries`` to the tries so far plus the retries, which may equal the old value; ``clear_number``
    changes then too. A clear of another task in the run also changes ``clear_number``.
    """
    return int(context["ti"].max_tries), int(getattr(context.get("dag_run"), "clear_number", 0) or 0)


def find_state(context: Context, dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str | None:
    """Return the state of a task instance; None if it has none, or Airflow does not know it."""
    index = map_index if map_index is not None and map_index >= 0 else None
    states = context["ti"].get_task_states(dag_id=dag_id, map_index=index, task_ids=[task_id], run_ids=[run_id])
    found = states.get(run_id, {}).get(task_id if index is None else f"{task_id}_{index}")
    return None if found is None else str(found)


def has_removed_tasks(context: Context) -> bool:
    """Return whether the run has a task that its DAG no longer has."""
    ti, task_ids = context["ti"], list(context["dag"].task_ids)
    parts = [task_ids[at : at + _MAX_TASK_IDS] for at in range(0, len(task_ids), _MAX_TASK_IDS)]

    def count(task_ids: list[str] | None = None) -> int:
        return int(ti.get_ti_count(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=task_ids))

    def are_fewer() -> bool:
        return sum(map(count, parts)) < count()

    return are_fewer() and are_fewer()  # twice, as the scheduler may expand a mapped task between two counts


def read_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Return the state of a task instance as Airflow's database has it, for a command; None if it has none."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    task = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
    with create_session() as session:
        return session.scalar(select(TaskInstance.state).filter_by(**task))


def count_triggers(module: str) -> tuple[int, int]:
    """Return how many triggers there are of classes in a module, and how many triggerers are alive; for a command."""
    from airflow.jobs.job import Job
    from airflow.jobs.triggerer_job_runner import TriggererJobRunner
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        waiting = session.scalar(select(func.count()).where(Trigger.classpath.startswith(module, autoescape=True)))
        running = select(Job).where(Job.job_type == TriggererJobRunner.job_type, Job.state == "running")
        return waiting or 0, sum(job.is_alive() for job in session.scalars(running))
