"""What Airflow's database says of triggers, for a command."""

from __future__ import annotations


def count_triggers(module: str) -> tuple[int, int]:
    """Return how many triggers there are of classes in a module, and how many triggerers are alive."""
    from airflow.jobs.job import Job
    from airflow.jobs.triggerer_job_runner import TriggererJobRunner
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        waiting = session.scalar(select(func.count()).where(Trigger.classpath.startswith(module, autoescape=True)))
        running = select(Job).where(Job.job_type == TriggererJobRunner.job_type, Job.state == "running")
        return waiting or 0, sum(job.is_alive() for job in session.scalars(running))
