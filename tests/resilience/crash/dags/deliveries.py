"""What the kill matrix runs: deliveries of the same files, one over each of the connections that the run is given."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from outbound_transfer.operators.transfer import DeliverFilesOperator

ARGUMENTS: dict[str, Any] = {
    "task_id": "deliver",
    "files": os.environ["CRASH_FILES"].split(os.pathsep),
    "subject": "Report {{ ti.map_index }} of {{ run_id }}",  # as equal deliveries of one run are refused
    "recipients": os.environ["CRASH_RECIPIENTS"].split(),
    "max_parallel_uploads": 1,  # the cases mean the first upload, the second and the third
    # More than a case has kills: Airflow may take a task for dead by itself on a busy machine.
    "retries": 5,
    "retry_delay": timedelta(0),
}
DAG = {"schedule": None, "catchup": False, "params": {"connections": ["outbound_transfer_default"]}}
FIRST = "{{ params.connections[0] }}"


@dag(**DAG)
def plain() -> None:
    DeliverFilesOperator(**ARGUMENTS, outbound_transfer_conn_id=FIRST)


@dag(**DAG)
def parallel() -> None:
    DeliverFilesOperator(**{**ARGUMENTS, "max_parallel_uploads": 4}, outbound_transfer_conn_id=FIRST)


@dag(**DAG)
def poking() -> None:
    DeliverFilesOperator(**ARGUMENTS, outbound_transfer_conn_id=FIRST, wait=True, poke_interval=1)


@dag(**DAG)
def deferring() -> None:
    DeliverFilesOperator(**ARGUMENTS, outbound_transfer_conn_id=FIRST, wait=True, poke_interval=1, deferrable=True)


@task
def connections(params: dict[str, Any]) -> list[str]:
    return list(params["connections"])


@dag(**DAG)
def mapped() -> None:
    DeliverFilesOperator.partial(**ARGUMENTS).expand(outbound_transfer_conn_id=connections())


@dag(**DAG)
def mapped_deferring() -> None:
    deliveries = DeliverFilesOperator.partial(**ARGUMENTS, wait=True, poke_interval=1, deferrable=True)
    deliveries.expand(outbound_transfer_conn_id=connections())


plain(), parallel(), poking(), deferring(), mapped(), mapped_deferring()
