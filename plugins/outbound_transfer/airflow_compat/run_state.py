"""States of tasks and runs that the task SDK does not offer."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from airflow.sdk import Context


def is_test_run(context: Context) -> bool:
    """Return whether ``airflow dags test``, ``airflow tasks test`` or ``dag.test()`` runs the task."""
    # An executor may run it.
    return is_in_process() or getattr(context.get("dag_run"), "triggering_user_name", None) == "dag_test"


def is_in_process() -> bool:
    """Return whether the process that runs the task is that of a test run, which has Airflow's database."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)  # Airflow sets it when it runs a task
    return type(comms).__name__ == "InProcessSupervisorComms"


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


def last_start(operators: Collection[str]) -> datetime | None:
    """Return when a task of operators of these names started last and succeeded, within 30 days; for a command."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    query = select(func.max(TaskInstance.start_date)).where(
        TaskInstance.last_heartbeat_at > datetime.now(UTC) - timedelta(days=30),  # it has an index
        TaskInstance.operator.in_(list(operators)),
        TaskInstance.state == "success",
    )
    with create_session() as session:
        return session.scalar(query)
