"""What the kill matrix runs: deliveries of the same files, one over each of the connections that the run is given."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import httpx
from airflow.sdk import dag, task

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.delivery.memory_store import TaskMemoryStore
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.queries.export import QueryExport, RowCounter
from outbound_transfer.queries.rows import Batch
from outbound_transfer.queries.spec import QuerySpec
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

PATHS = [Path(path) for path in os.environ["CRASH_FILES"].split(os.pathsep)]
GIVEN = os.environ["CRASH_GIVEN"]
Deliver = SqlToOutboundTransferOperator if GIVEN == "query" else DeliverFilesOperator
INPUTS: dict[str, dict[str, Any]] = {
    "paths": {"files": list(map(str, PATHS))},
    "contents": {"files": [{"name": path.name, "content": path.read_bytes} for path in PATHS]},
    "query": json.loads(os.environ.get("CRASH_QUERIES", "{}")),
}
ARGUMENTS: dict[str, Any] = {
    "task_id": "deliver",
    **INPUTS[GIVEN],
    "subject": "Report of {{ run_id }}",  # runs share sandboxes, and what one has sent is not another's
    "recipients": os.environ["CRASH_RECIPIENTS"].split(),
    "max_parallel_uploads": 1,  # the cases mean the first upload, the second and the third
    "poke_interval": 1,
    # More than a case has kills: Airflow may take a task for dead by itself on a busy machine.
    "retries": 5,
    "retry_delay": timedelta(0),
}
DAG = {"schedule": None, "catchup": False, "params": {"connections": ["outbound_transfer_default"]}}
FIRST = "{{ params.connections[0] }}"


class StoringAfterTheSend(Deliver):
    """A mutant: the draft's id is stored, but only after the send."""

    def run_task(self, hook: Any, context: Any) -> dict[str, Any]:
        saved: list[tuple[TaskMemoryStore, Memory]] = []
        save = TaskMemoryStore.save

        def keep(store: TaskMemoryStore, memory: Memory) -> None:
            save(store, memory) if not memory.draft_id else saved.append((store, memory))

        with mock.patch.object(TaskMemoryStore, "save", keep):
            result = super().run_task(hook, context)
        for store, memory in saved[-1:]:
            save(store, memory)
        return result


class CallingAtItsQueries(Deliver):
    """Calls the sandbox when a query has returned rows and when they are written, so that it can be held there."""

    def _write(self, export: QueryExport, query: QuerySpec, file: BinaryIO) -> None:
        service = BaseHook.get_connection(self.outbound_transfer_conn_id)

        def call(moment: str) -> None:
            httpx.get(f"{service.host}/v1/moments/{moment}", timeout=None, trust_env=False)

        def count(counter: RowCounter, batches: Iterable[Batch]) -> Iterator[Batch]:
            for number, batch in enumerate(uninterrupted(counter, batches)):
                if number == 0:
                    call("read")
                yield batch

        uninterrupted = RowCounter.count
        with mock.patch.object(RowCounter, "count", count):
            super()._write(export, query, file)
        call("written")


@dag(**DAG)
def plain() -> None:
    Deliver(**ARGUMENTS, outbound_transfer_conn_id=FIRST)


@dag(**DAG)
def parallel() -> None:
    Deliver(**{**ARGUMENTS, "max_parallel_uploads": 4}, outbound_transfer_conn_id=FIRST)


@dag(**DAG)
def poking() -> None:
    Deliver(**ARGUMENTS, outbound_transfer_conn_id=FIRST, wait=True)


@dag(**DAG)
def deferring() -> None:
    Deliver(**ARGUMENTS, outbound_transfer_conn_id=FIRST, wait=True, deferrable=True)


@task
def connections(params: dict[str, Any]) -> list[str]:
    return list(params["connections"])


@dag(**DAG)
def mapped() -> None:
    Deliver.partial(**ARGUMENTS).expand(outbound_transfer_conn_id=connections())


@dag(**DAG)
def mapped_deferring() -> None:
    deliveries = Deliver.partial(**ARGUMENTS, wait=True, deferrable=True)
    deliveries.expand(outbound_transfer_conn_id=connections())


@dag(**DAG)
def querying() -> None:
    CallingAtItsQueries(**ARGUMENTS, outbound_transfer_conn_id=FIRST)


@dag(**DAG)
def mutant() -> None:
    StoringAfterTheSend(**ARGUMENTS, outbound_transfer_conn_id=FIRST)


plain(), parallel(), poking(), deferring(), mapped(), mapped_deferring(), mutant()
if GIVEN == "query":
    querying()
