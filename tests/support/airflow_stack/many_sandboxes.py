"""The stack of `make demo` with several sandboxes, one connection for each, and Airflow's metadata in PostgreSQL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.processes import Processes, members
from support.airflow_stack.stack import Stack
from support.postgres import Database, running_server
from support.repository import REPOSITORY

#: The last is longer than what the sandbox takes for a small body.
SIZES = {"a.csv": 1_000, "b.csv": 1, "c.csv": 100_000}

AStack = TypeVar("AStack", bound="ManySandboxesStack")


class ManySandboxesStack(Stack):
    """Start ``count`` sandboxes, with connections ``sandbox_0``, ``sandbox_1`` and so on."""

    dags = REPOSITORY / "dags"
    #: Seconds after which Airflow gives a task up whose supervisor is silent. Few are too few for a busy machine.
    heartbeat_timeout = 300

    def __init__(self, folder: Path, processes: Processes, reporter: Reporter, count: int, database: Database) -> None:
        super().__init__(folder, processes, reporter)
        self.processes, self.count, self.database = processes, count, database
        (folder / "outbox").mkdir(parents=True)
        self.files = [folder / "outbox" / name for name in SIZES]
        for letter, path in zip(b"ABC", self.files, strict=True):
            path.write_bytes(bytes([letter]) * SIZES[path.name])
        self.sandboxes: list[Sandbox] = []

    def start(self) -> None:
        self.begin_migration()
        for number in range(self.count):
            sandbox = self.start_sandbox(f"sandbox {number}")
            sandbox.patch_account(requests_per_window=10**6)
            self.sandboxes.append(sandbox)
        self.airflow = self.start_airflow()

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__API__MAXIMUM_PAGE_LIMIT": "1000",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "100",
            "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "100",
            "AIRFLOW__CORE__PARALLELISM": str(self.count + 2),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database.url,
            "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": "state",
            "AIRFLOW_CONN_STATE": self.database.airflow_connection,
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(self.heartbeat_timeout),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
        }

    def connections(self) -> dict[str, str]:
        # No call may give up while it is held.
        return {
            f"AIRFLOW_CONN_SANDBOX_{number}": sandbox.airflow_connection(timeout=600)
            for number, sandbox in enumerate(self.sandboxes)
        }

    def restart_triggerer(self) -> None:
        leader = next(leader for leader in reversed(self.processes.leaders) if leader.name == "triggerer")
        self.kill([process.pid for process in members([leader])])
        self.start_component("triggerer")

    def kill(self, pids: Sequence[int]) -> None:
        """SIGKILL, to what this stack has started and nothing else."""
        ours = {process.pid for process in members(self.processes.leaders)}
        if not ours.issuperset(pids):
            raise RuntimeError(f"{set(pids) - ours} is not of this Airflow")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@contextmanager
def running_stack(
    folder: Path, reporter: Reporter, count: int, signals: Any = None, *, kind: type[AStack]
) -> Iterator[AStack]:
    """A started stack, all of whose processes are stopped at the end; what it wrote into ``folder`` stays."""
    signals = signals or NoSignals()
    Stack.wipe(folder)
    processes = Processes(folder, signals)
    # With so many tasks at once, Airflow's API server comes to wait for itself where SQLite has but one writer.
    with running_server() as database:
        try:
            with closing(kind(folder, processes, reporter, count, database)) as stack:
                stack.start()
                yield stack
        finally:
            signals.ignore()
            if left := processes.stop():
                raise RuntimeError(f"Could not stop {', '.join(left)}")


class NoSignals:
    held = staticmethod(nullcontext)

    def ignore(self) -> None:
        """Nothing to do."""
