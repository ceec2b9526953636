"""The Airflow in which processes are killed."""

from __future__ import annotations

import os
from typing import Any

from support.airflow_stack.many_sandboxes import ManySandboxesStack
from support.repository import TESTS

RECIPIENTS = ("ann@example.com", "bob@example.com")


class CrashStack(ManySandboxesStack):
    """Run the Dags of :mod:`resilience.crash.dags.deliveries`."""

    dags = TESTS / "resilience" / "crash" / "dags"
    heartbeat_timeout = 15

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "CRASH_FILES": os.pathsep.join(map(str, self.files)),
            "CRASH_RECIPIENTS": " ".join(RECIPIENTS),
        }

    def deliveries(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the task instances by run and map index."""
        found = self.airflow.call("GET", "dags/~/dagRuns/~/taskInstances", limit=1000, task_id="deliver")
        return {(row["dag_run_id"], row["map_index"]): row for row in found["task_instances"]}
