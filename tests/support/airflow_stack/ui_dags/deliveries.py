"""Dags whose runs the page of deliveries leads to. Nothing here delivers: the rows of the table are the tests' own."""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule=None, catchup=False)
def deliver_files() -> None:
    @task
    def deliver() -> None: ...

    @task
    def deliver_each(number: int) -> None: ...

    deliver()
    deliver_each.expand(number=[1, 2])


deliver_files()
