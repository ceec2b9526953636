"""Records what a running try learns from this version of Airflow: ``python -m versions.record_contexts``.

Starts a real Airflow, lets the tasks of ``probe_dags`` run, fail, wait, be cleared and deleted, and writes what they
saw to the file of this version that :mod:`support.recorded_contexts` reads.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import airflow
import httpx

from support.airflow_stack.console import DemoFailed, Reporter
from support.airflow_stack.processes import Processes, Signals
from support.airflow_stack.stack import Airflow, Stack
from support.recorded_contexts import file_of
from support.repository import TESTS

FINISHED: Final = {"success", "failed"}


class ProbeStack(Stack):
    """Airflow alone, with the Dags of ``probe_dags``."""

    def __init__(self, folder: Path, processes: Processes, reporter: Reporter) -> None:
        super().__init__(folder, processes, reporter)
        self.dags, self.lines = folder / "dags", folder / "contexts.jsonl"
        shutil.copytree(TESTS / "versions" / "probe_dags", self.dags)
        self.lines.touch()

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.folder / "plugins"),
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            # As late may a supervisor notice the end of its task.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
            "PROBE_FILE": str(self.lines),
        }

    def connections(self) -> dict[str, str]:
        return {}


class Recorder:
    """Runs one case after the other.

    :ivar cases: what the tasks wrote down, by case.
    """

    def __init__(self, stack: ProbeStack, airflow: Airflow, reporter: Reporter) -> None:
        self.stack, self.airflow, self.reporter = stack, airflow, reporter
        self.cases: dict[str, list[Any]] = {}
        self._taken = 0

    def take(self, case: str, *task_ids: str) -> None:
        """Ascribe to a case what these tasks wrote down since the last one."""
        known = self.read_lines()
        self._taken += len(known)
        self.cases[case] = [one for one in known if one["ti"]["task_id"] in task_ids]
        if {one["ti"]["task_id"] for one in self.cases[case]} != set(task_ids):
            raise DemoFailed(f"Nothing was written down by some of {task_ids} in {case!r}", self.stack.folder / "logs")
        self.reporter.say(f"{case}: {len(self.cases[case])} contexts")

    def read_lines(self) -> list[Any]:
        """Return what was written down since the last case."""
        # The last line may not be complete.
        *lines, _ = self.stack.lines.read_text().split("\n")
        return [json.loads(line) for line in lines[self._taken :]]

    def wait(self, what: str, is_true: Callable[[], bool]) -> None:
        for _ in self.reporter.wait_for(lambda: what, 120, log=self.stack.folder / "logs", interval=0.2):
            if is_true():
                return

    def run(self, run_id: str, dag_id: str = "probe", **conf: Any) -> None:
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self.airflow.call("POST", f"dags/{dag_id}/dagRuns", body)

    def finish(self, run_id: str, dag_id: str = "probe") -> None:
        path = f"dags/{dag_id}/dagRuns/{run_id}"
        self.wait(f"the end of {run_id}", lambda: self.airflow.call("GET", path)["state"] in FINISHED)

    def run_and_take(self, run_id: str, case: str, dag_id: str, *task_ids: str, **conf: Any) -> None:
        self.run(run_id, dag_id, **conf)
        self.finish(run_id, dag_id)
        self.take(case, *task_ids)

    def wait_for_state(self, run_id: str, task_id: str, state: str) -> None:
        path = f"dags/probe/dagRuns/{run_id}/taskInstances/{task_id}"
        self.wait(f"{task_id} to be {state}", lambda: self.airflow.call("GET", path)["state"] == state)

    def wait_for_context(self, task_id: str, step: str) -> None:
        """Wait until a task has written down what it knows in a step."""

        def is_written() -> bool:
            return any((one["ti"]["task_id"], one["step"]) == (task_id, step) for one in self.read_lines())

        self.wait(f"what {task_id} knows in {step!r}", is_written)

    def clear(self, run_id: str, task: Any, **options: Any) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": [task], **options}
        self.airflow.call("POST", "dags/probe/clearTaskInstances", body)

    def queue(self, run_id: str) -> None:
        self.airflow.call("PATCH", f"dags/probe/dagRuns/{run_id}", {"state": "queued"})

    def change_dag(self, *, with_extra: bool) -> None:
        """Add a task to the Dag, or remove it: only then does a run get task instances that it lacks."""
        marker = self.stack.dags / "with_extra"
        marker.touch() if with_extra else marker.unlink()
        self.wait(
            "the changed Dag",
            lambda: (
                with_extra
                == any(task["task_id"] == "extra" for task in self.airflow.call("GET", "dags/probe/tasks")["tasks"])
            ),
        )

    def record(self) -> None:
        self.run_and_take("first", "first try", "probe", "plain", "mapped", "deferring")
        fails = {"plain.execute": 1, "mapped.execute": 1, "deferring.resume": 1}
        self.run_and_take("retried", "automatic retry", "probe", "plain", "mapped", "deferring", fails=fails)
        self.record_clears()
        self.record_given_up()
        self.record_deletions()
        if self.airflow.has_dag("looping"):
            self.run_and_take("first", "loop", "looping", "body.member", "body.mapped", "outside")
            fails = {"body.member@1.execute": 1}
            self.run_and_take("retried", "loop, automatic retry", "looping", "body.member", fails=fails)

    def record_clears(self) -> None:
        self.clear("first", "plain")
        self.finish("first")
        self.take("this task cleared", "plain")
        self.clear("first", ["mapped", 1])
        self.finish("first")
        self.take("one index cleared", "mapped")
        self.run("retrying", fails={"plain.execute": 1})
        self.wait_for_state("retrying", "plain", "up_for_retry")
        self.clear("retrying", "other")
        self.finish("retrying")
        self.take("another task cleared before the retry", "plain")
        self.run("waiting", fails={"plain.execute": 1})
        self.wait_for_state("waiting", "plain", "up_for_retry")
        self.clear("waiting", "plain")
        self.finish("waiting")
        self.take("this task cleared before its retry", "plain")
        self.run("late", fails={"other.execute": 1})
        self.finish("late")
        self.clear("late", "other", include_downstream=True)
        self.finish("late")
        self.take("first try in a cleared run", "late")
        self.run("queued", fails={"plain.execute": 1})
        self.wait_for_state("queued", "plain", "up_for_retry")
        self.queue("queued")
        self.finish("queued")
        self.take("run queued again before the retry", "plain")

    def record_given_up(self) -> None:
        self.run("marked", holds={"plain": ["other", "running"]})
        self.wait_for_context("plain", "execute")
        self.airflow.call("PATCH", "dags/probe/dagRuns/marked/taskInstances/plain", {"new_state": "failed"})
        self.wait_for_context("plain", "other")
        self.clear("marked", "plain")
        self.finish("marked")
        self.take("marked failed while it runs, then cleared", "plain")
        self.run("restarted", holds={"plain": ["other"]})
        self.wait_for_context("plain", "execute")
        self.clear("restarted", "plain")
        self.finish("restarted")
        self.take("cleared while it runs", "plain")

    def record_deletions(self) -> None:
        self.change_dag(with_extra=True)
        self.run("deleted")
        self.finish("deleted")
        self.take("the run that is changed", "plain")
        self.change_dag(with_extra=False)
        self.clear("deleted", "plain", run_on_latest_version=True)
        self.finish("deleted")
        self.take("this task cleared, another removed from the Dag", "plain")
        self.airflow.call("DELETE", "dags/probe/dagRuns/deleted")
        self.run("deleted")
        self.finish("deleted")
        self.take("run deleted and made again", "plain")


def in_lines(cases: dict[str, list[Any]]) -> str:
    """Return JSON with a line for each context."""
    parts = [json.dumps(case) + ": [\n" + ",\n".join(map(json.dumps, known)) + "\n]" for case, known in cases.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    folder, reporter, signals = Path(tempfile.mkdtemp(prefix="contexts-")), Reporter(), Signals()
    Stack.wipe(folder)
    processes = Processes(folder, signals)
    try:
        with closing(ProbeStack(folder, processes, reporter)) as stack:
            stack.begin_migration()
            recorder = Recorder(stack, stack.start_airflow(), reporter)
            stack.wait_for_dags(recorder.airflow, "probe")
            recorder.record()
    except (DemoFailed, httpx.HTTPError) as error:
        reporter.line(f"Not recorded: {error!r}; logs: {folder}")
        return 1
    finally:
        signals.ignore()
        processes.stop()
    file = file_of(airflow.__version__)
    file.write_text(in_lines(recorder.cases))
    reporter.say(f"Written to {file}")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
