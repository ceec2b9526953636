"""Both keys are replaced in the order that docs/recipes.md gives, while a real Airflow delivers, waits and ingests."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.repository import REPOSITORY
from support.timeouts import eventually

pytestmark = pytest.mark.nightly

ANN = "ann@example.com"
CONNECTION = "outbound_transfer_default"
DELIVERIES, INGESTION = "deliver_files", "ingest_event_feed"
POKE_INTERVAL = 2


class RotationStack(ManySandboxesStack):
    """With the Dags of deliveries and ingestion, and the service's connection in Airflow's database."""

    def start(self) -> None:
        self.dags = self.folder / "dags"  # type: ignore[misc]
        self.dags.mkdir()
        for dag_id in (DELIVERIES, INGESTION):
            shutil.copy(REPOSITORY / "dags" / f"{dag_id}.py", self.dags)
        super().start()

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "OUTBOUND_TRANSFER_POKE_INTERVAL": str(POKE_INTERVAL),
        }

    def connections(self) -> dict[str, str]:
        warehouse = {"conn_type": "sqlite", "host": str(self.warehouse)}
        return {"AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE": json.dumps(warehouse)}

    def connect(self, method: str, path: str, key: str, event_key: str) -> None:
        """Store the connection with these keys."""
        body = {
            "connection_id": CONNECTION,
            "conn_type": "outbound_transfer",
            "host": self.sandboxes[0].base_url,
            "password": key,
            "extra": json.dumps({"event_api_key": event_key}),
        }
        self.airflow.call(method, path, body)

    def deliver(self) -> str:
        conf = {"files": [str(self.files[0])], "recipients": [ANN], "subject": "Report"}
        return self.airflow.trigger(DELIVERIES, conf)

    def tasks_of(self, dag_id: str, **params: Any) -> list[dict[str, Any]]:
        tasks = self.airflow.call("GET", f"dags/{dag_id}/dagRuns/~/taskInstances", limit=1000, **params)
        instances: list[dict[str, Any]] = tasks["task_instances"]
        return instances

    def events(self) -> Counter[str]:
        """Count the events in the warehouse by type."""
        with closing(sqlite3.connect(f"file:{self.warehouse}?mode=ro", uri=True)) as warehouse:
            return Counter(kind for (kind,) in warehouse.execute("SELECT type FROM outbound_transfer_events"))


@pytest.fixture
def stack(tmp_path: Any) -> Iterator[RotationStack]:
    with running_stack(tmp_path / "stack", Reporter(), 1, kind=RotationStack) as stack:
        stack.wait_for_dags(stack.airflow, DELIVERIES, INGESTION)
        yield stack


@pytest.fixture
def service(stack: RotationStack) -> Sandbox:
    return stack.sandboxes[0]


def deliver_until(stack: RotationStack, done: Event) -> int:
    """Start a delivery every two seconds, and return their number."""
    count = 0
    while not done.wait(2):
        stack.deliver()
        count += 1
    return count


def polls(service: Sandbox, start: int) -> int:
    """Count how often waits have read the same transfer, or the listing, since then."""
    calls = [call["path"] for call in service.requests()[start:] if call["method"] == "GET"]
    return max(Counter(path for path in calls if "transfers" in path).values(), default=0)


def replace_transfer_key(stack: RotationStack, service: Sandbox) -> None:
    old, new = service.transfer_api_key, service.new_key(service.state()["user"])
    service.plan_faults({"kind": "hold", "method": "POST", "path": "*/files"})
    eventually(lambda: [fault for fault in service.faults() if fault["state"] == "held"], interval=0.5)
    stack.connect("PATCH", f"connections/{CONNECTION}", new, service.event_api_key)
    changed_at = datetime.now(UTC).isoformat()
    service.call("POST", "faults/release")
    before_change = {"state": "running", "start_date_lte": changed_at}
    eventually(lambda: not stack.tasks_of("~", **before_change), interval=0.5)
    start = len(service.requests())
    eventually(lambda: polls(service, start) > 2, interval=0.5)  # the first may have begun with the old key
    service.revoke_key(old)
    service.transfer_api_key = new


def replace_event_key(stack: RotationStack, service: Sandbox) -> None:
    stack.airflow.call("PATCH", f"dags/{INGESTION}", {"is_paused": True})
    # A paused Dag's deferred or scheduled tasks do not run, and read the connection afterwards.
    eventually(lambda: not stack.tasks_of(INGESTION, state=["queued", "running"]), interval=0.5)
    stack.connect("PATCH", f"connections/{CONNECTION}", service.transfer_api_key, service.new_event_key())
    stack.airflow.unpause(INGESTION)


def test_nothing_fails_and_no_event_is_lost(stack: RotationStack, service: Sandbox) -> None:
    stack.connect("POST", "connections", service.transfer_api_key, service.event_api_key)
    stack.airflow.unpause(DELIVERIES)
    stack.airflow.unpause(INGESTION)
    waiting = [stack.deliver() for _ in range(10)]
    eventually(lambda: len(service.sent()) == len(waiting) and stack.airflow.runs(INGESTION), interval=0.5)

    done = Event()
    with ThreadPoolExecutor(1) as pool:
        others: Future[int] = pool.submit(deliver_until, stack, done)
        try:
            replace_transfer_key(stack, service)
            replace_event_key(stack, service)
        finally:
            done.set()
    count = len(waiting) + others.result()
    eventually(lambda: len(service.sent()) == count, interval=0.5)
    for transfer in service.sent():
        service.pickup(transfer, ANN)
    eventually(
        lambda: all(run["state"] in ("success", "failed") for run in stack.airflow.runs(DELIVERIES)), interval=0.5
    )
    stack.airflow.trigger(INGESTION, {})
    eventually(lambda: stack.events().total() >= 2 * count, interval=0.5)

    tasks = stack.tasks_of("~")
    print(f"{count} deliveries, {len(stack.airflow.runs(INGESTION))} ingestions: {len(tasks)} tasks")
    assert {run["state"] for run in stack.airflow.runs(DELIVERIES)} == {"success"}
    assert [task for task in tasks if task["state"] == "failed"] == []
    # On a busy machine, Airflow itself takes a try from a task that resumes soon, and logs that.
    logs = "".join(log.read_text() for log in stack.folder.glob("logs/*") if log.is_file())
    assert logs, "the log of the scheduler"
    taken = logs.count("but the task instance's state attribute is queued")
    assert sum(task["try_number"] - 1 for task in tasks) <= taken
    assert {call["status"] for call in service.requests() + service.feed_calls()}.isdisjoint({401, 403})
    assert stack.events() == {"transfer_sent": count, "file_downloaded": count}
