"""What the demo plays: two deliveries from disk, recipients who collect them one after the other, and the feed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import DemoFailed, Reporter, size, tail
from support.airflow_stack.processes import Processes
from support.airflow_stack.stack import Airflow, Stack

BIG: Final = 200 * 1024 * 1024
STAGE_TIMEOUT: Final = 180.0

#: Seconds between two recipients, so that the transfer is seen half collected.
STAGGER: Final = 2.0


@dataclass(frozen=True)
class Delivery:
    """One delivery: what `deliver_files` is asked for, and the files on disk that it should take."""

    subject: str
    recipients: tuple[str | Mapping[str, str], ...]
    patterns: tuple[str, ...]
    paths: tuple[Path, ...]

    @property
    def emails(self) -> list[str]:
        return [recipient if isinstance(recipient, str) else recipient["email"] for recipient in self.recipients]

    def conf(self) -> dict[str, Any]:
        """The delivery as a parameter of the Dag."""
        return {"subject": self.subject, "recipients": list(self.recipients), "files": list(self.patterns)}

    def contents(self) -> dict[str, tuple[int, str]]:
        """Size and SHA-256 by name, as they are on disk now."""
        return {path.name: (path.stat().st_size, _sha256(path)) for path in self.paths}


@dataclass
class Observations:
    """What was seen while the deliveries ran."""

    transfers: dict[int, str] = field(default_factory=dict)
    statuses: dict[int, list[str]] = field(default_factory=dict)
    deferred: set[int] = field(default_factory=set)


def make_deliveries(folder: Path, reporter: Reporter) -> list[Delivery]:
    """Write the files and say what is to be delivered to whom."""
    figures = folder / "figures"
    figures.mkdir(parents=True)
    big = figures / "measurements.bin"
    with big.open("wb") as file:
        for _ in range(BIG // (1 << 20)):
            file.write(os.urandom(1 << 20))
    for month in ("april", "may", "june"):
        rows = (f"{day},{os.urandom(8).hex()}\n" for day in range(20_000))
        (figures / f"{month}.csv").write_text("day,value\n" + "".join(rows))
    resume = folder / 'Résumé "final" 2026 – 報告.pdf'  # noqa: RUF001  # the dash is meant
    resume.write_bytes(b"%PDF-1.7\n" + os.urandom(1_500_000) + b"\n%%EOF\n")
    deliveries = [
        Delivery(
            "Figures of the second quarter",
            ({"email": "ann@example.com", "name": "Ann Ōta"}, "bob@example.com", "carol@example.com"),
            (str(big), str(figures / "*.csv")),
            (big, *sorted(figures.glob("*.csv"))),
        ),
        Delivery("Application", ({"email": "dan@example.com", "name": "Dan Brown"},), (str(resume),), (resume,)),
    ]
    for delivery in deliveries:
        total = sum(path.stat().st_size for path in delivery.paths)
        reporter.say(f'On disk for "{delivery.subject}": {len(delivery.paths)} file(s), {size(total)}')
    return deliveries


class DemoScenario:
    """Plays the deliveries and the ingestion in a running stack."""

    def __init__(
        self, stack: Stack, sandbox: Sandbox, airflow: Airflow, processes: Processes, reporter: Reporter
    ) -> None:
        self._stack, self._sandbox, self._airflow = stack, sandbox, airflow
        self._processes, self._reporter = processes, reporter
        self._states: dict[tuple[str, str, int], str] = {}

    def deliver(self, deliveries: list[Delivery]) -> tuple[str, Observations]:
        """Run `deliver_files` until it has succeeded; the recipients collect as soon as it waits for them."""
        self._airflow.unpause("deliver_files")
        run_id = self._airflow.trigger("deliver_files", {"deliveries": [delivery.conf() for delivery in deliveries]})
        self._reporter.say(f"deliver_files is triggered: run {run_id}", "bold")
        upload = Upload(self._stack.blobs, [path for delivery in deliveries for path in delivery.paths], self._reporter)
        pickups = Pickups(self._sandbox, deliveries, self._reporter)
        for _ in self._wait_for("deliver_files", [delivery.subject for delivery in deliveries]):
            upload.report()
            if self._poll("deliver_files", run_id, [delivery.subject for delivery in deliveries]) == "success":
                return run_id, pickups.seen
            self._find_waiting(run_id, pickups)
            pickups.next()
        raise AssertionError("waiting ends with a result or an error")

    def _find_waiting(self, run_id: str, pickups: Pickups) -> None:
        for (_, task, index), state in self._states.items():
            if task == "delivery.wait_for_pickup" and state == "deferred" and index not in pickups.seen.deferred:
                transfer_id = self._airflow.xcom("deliver_files", run_id, "delivery.deliver", index, "transfer_id")
                pickups.on_deferred(index, transfer_id)

    def ingest(self) -> str:
        """Switch `ingest_event_feed` on and wait for its first run to succeed."""
        self._airflow.unpause("ingest_event_feed")
        self._reporter.say("ingest_event_feed is switched on; its schedule makes the first run", "bold")
        for _ in self._wait_for("ingest_event_feed", []):
            for run in self._airflow.runs("ingest_event_feed")[:1]:
                if self._poll("ingest_event_feed", run["dag_run_id"], []) == "success":
                    return str(run["dag_run_id"])
        raise AssertionError("waiting ends with a result or an error")

    def list_transfers(self) -> None:
        """Run `ingest_transfers` until it has succeeded."""
        self._airflow.unpause("ingest_transfers")
        run_id = self._airflow.trigger("ingest_transfers", {})
        self._reporter.say(f"ingest_transfers is triggered: run {run_id}", "bold")
        for _ in self._wait_for("ingest_transfers", []):
            if self._poll("ingest_transfers", run_id, []) == "success":
                return

    def _wait_for(self, dag_id: str, subjects: list[str]) -> Any:
        def what() -> str:
            open_tasks = [
                _label(key, subjects) + f" ({state})" for key, state in self._states.items() if not _is_terminal(state)
            ]
            return ", ".join(open_tasks) or f"{dag_id} to begin"

        for _ in self._reporter.wait_for(what, STAGE_TIMEOUT, log=self._stack.airflow_logs):
            self._processes.check()
            yield

    def _poll(self, dag_id: str, run_id: str, subjects: list[str]) -> str:
        """Say what has changed in a run; its state.

        :raises DemoFailed: the run has failed.
        """
        for task in self._airflow.tasks(dag_id, run_id):
            key, state = (dag_id, task["task_id"], task["map_index"]), task["state"] or "none"
            if self._states.get(key, "none") != state:
                style = {"success": "green", "failed": "red", "up_for_retry": "yellow"}.get(state, "")
                self._reporter.say(f"  {_label(key, subjects)}: {state}", style)
                self._states[key] = state
                if state == "up_for_retry":
                    self._report_errors(self._log_of(key, run_id))
        state = str(self._airflow.call("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])
        if state == "failed":
            failed = next((key for key, task_state in self._states.items() if task_state == "failed"), (dag_id, "", -1))
            raise DemoFailed(f"{_label(failed, subjects)} failed.", self._log_of(failed, run_id))
        return state

    def _report_errors(self, log: Path) -> None:
        for line in tail(log)[1]:
            if "  error  " in line:
                self._reporter.say(f"    {line}", "yellow")

    def _log_of(self, key: tuple[str, str, int], run_id: str) -> Path:
        dag_id, task, index = key
        folder = self._stack.airflow_logs / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task}"
        return folder / f"map_index={index}" if index >= 0 else folder


class Upload:
    """Tells how much the sandbox has received, from what it has on disk."""

    def __init__(self, folder: Path, paths: list[Path], reporter: Reporter) -> None:
        self._folder, self._reporter = folder, reporter
        self._total = sum(path.stat().st_size for path in paths)
        self._told = 0

    def report(self) -> None:
        received = sum(_size(path) for name in ("partial", "files") for path in (self._folder / name).glob("*"))
        if received - self._told >= self._total / 10 or received == self._total != self._told:
            self._reporter.say(f"  uploaded {size(received)} of {size(self._total)}")
            self._told = received


class Pickups:
    """The recipients: one at a time, each after the sensor of the delivery has begun to wait in the triggerer."""

    def __init__(self, sandbox: Sandbox, deliveries: list[Delivery], reporter: Reporter) -> None:
        self._sandbox, self._reporter, self._deliveries = sandbox, reporter, deliveries
        self._left = [(index, email) for index, delivery in enumerate(deliveries) for email in delivery.emails]
        self._next_at = 0.0
        self.seen = Observations()

    def on_deferred(self, index: int, transfer_id: str) -> None:
        """The sensor of a delivery waits for its recipients."""
        self.seen.deferred.add(index)
        self.seen.transfers[index] = transfer_id
        self._next_at = time.monotonic() + STAGGER

    def next(self) -> None:
        """The next recipient collects, if it is time."""
        ready = [pickup for pickup in self._left if pickup[0] in self.seen.deferred]
        if not ready or time.monotonic() < self._next_at:
            return
        index, email = ready[0]
        status = self._sandbox.pickup(self.seen.transfers[index], email)["status"]
        self.seen.statuses.setdefault(index, []).append(status)
        self._reporter.say(f'{email} collects "{self._deliveries[index].subject}": it is {status} now', "cyan")
        self._left.remove((index, email))
        self._next_at = time.monotonic() + STAGGER


def _label(key: tuple[str, str, int], subjects: list[str]) -> str:
    dag_id, task, index = key
    return f'{dag_id}.{task.rpartition(".")[2]} "{subjects[index]}"' if index >= 0 and subjects else f"{dag_id}.{task}"


def _is_terminal(state: str) -> bool:
    return state in ("success", "failed", "skipped", "upstream_failed", "removed")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it is whole now, and elsewhere
        return 0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
