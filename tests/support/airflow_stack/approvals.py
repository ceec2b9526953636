"""The example of approvals in a real Airflow."""

from __future__ import annotations

import shutil
import time
from typing import Any

from outbound_transfer.airflow_compat.names import TaskAwaitingInput
from outbound_transfer.airflow_compat.version import HAS_STATE_STORES
from support.airflow_stack.many_sandboxes import ManySandboxesStack
from support.repository import REPOSITORY
from support.timeouts import eventually

DAG = "approve_delivery"


class ApprovalStack(ManySandboxesStack):
    """With the example DAG, and one sandbox."""

    def start(self) -> None:
        self.dags = self.folder / "dags"  # type: ignore[misc]
        self.dags.mkdir()
        shutil.copy(REPOSITORY / "dags" / "approve_delivery.py", self.dags)
        super().start()

    def settings(self) -> dict[str, str]:
        table = {} if HAS_STATE_STORES else {"AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID": "state"}
        return super().settings() | table

    def connections(self) -> dict[str, str]:
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection(),
            "AIRFLOW_CONN_STATE": self.database.airflow_connection,
        }

    def trigger(self) -> str:
        return self.airflow.trigger(DAG, {"files": str(self.folder / "outbox" / "*.csv")})

    def task(self, run_id: str) -> Any:
        return self.airflow.tasks(DAG, run_id)[0]

    def wait_for(self, run_id: str, *states: str) -> Any:
        """The task instance, as soon as it has one of the states."""
        return eventually(lambda: (found := self.task(run_id))["state"] in states and found, interval=0.5)

    def request(self, run_id: str) -> Any:
        """What Airflow shows of the request."""
        return self.airflow.call("GET", f"{self._path(run_id)}/hitlDetails")

    def answer(self, run_id: str, option: str) -> None:
        # Airflow takes a task for failed that goes on before the end of its process has reached the scheduler.
        time.sleep(8)
        body = {"chosen_options": [option], "params_input": {}}
        self.airflow.call("PATCH", f"{self._path(run_id)}/hitlDetails", body)

    @staticmethod
    def _path(run_id: str) -> str:
        return f"dags/{DAG}/dagRuns/{run_id}/taskInstances/deliver/-1"

    def is_waiting(self, run_id: str) -> bool:
        """Return whether the task waits for a person: from Airflow 3.3 on without a triggerer."""
        return self.task(run_id)["state"] == ("awaiting_input" if TaskAwaitingInput else "deferred")

    def wait_for_request(self, run_id: str) -> Any:
        """Return what Airflow shows, as soon as the task waits for a person."""
        eventually(lambda: self.is_waiting(run_id), interval=0.5)
        return self.request(run_id)

    def clear(self, run_id: str) -> None:
        # A clear of a task between its end and its run's is lost in Airflow 3.3: the run ends regardless of it.
        path = f"dags/{DAG}/dagRuns/{run_id}"
        eventually(lambda: self.airflow.call("GET", path)["state"] in ("success", "failed"), interval=0.5)
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": ["deliver"]}
        self.airflow.call("POST", f"dags/{DAG}/clearTaskInstances", body)
