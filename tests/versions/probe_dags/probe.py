"""Dags whose tasks write down what this version of Airflow lets a running try know, as a line of JSON each time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task_group

#: What is read of each object, where this version of Airflow has it.
TI_FIELDS: Final = ("dag_id", "run_id", "task_id", "map_index", "try_number", "max_tries", "region_id", "region_index")
LOOP_FIELDS: Final = ("node_id", "index", "max_iterations")
RUN_FIELDS: Final = ("run_id", "clear_number", "run_after", "start_date", "logical_date", "run_type", "state")
METHODS: Final = ("get_task_states", "get_ti_count")

OPTIONS: Final[dict[str, Any]] = {
    "schedule": None,
    "catchup": False,
    "default_args": {"retry_delay": timedelta(seconds=5)},
}


def read_loop(ti: Any) -> Any:
    return getattr(ti._ti_context_from_server, "loop", None)


def read_groups(task: Any) -> Iterator[str]:
    """Yield the kind of each task group around a task, the innermost first."""
    group = task.task_group
    while group is not None:
        yield group.__class__.__name__  # behind a weak reference, it has another type
        group = group.parent_group


def fields_of(thing: Any, names: tuple[str, ...]) -> dict[str, Any] | None:
    return None if thing is None else {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def make_calls(context: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield calls of the task SDK: method, arguments, and what it returned."""
    ti, run = context["ti"], {"dag_id": context["ti"].dag_id, "run_ids": [context["ti"].run_id]}
    index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
    task_ids = sorted(context["dag"].task_ids)

    def make_call(method: str, **arguments: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        return method, arguments, {"returned": getattr(ti, method)(**arguments)}

    yield make_call("get_task_states", **run, task_ids=[ti.task_id], map_index=index)
    yield make_call("get_ti_count", **run)
    yield make_call("get_ti_count", **run, task_ids=[ti.task_id])
    yield make_call("get_ti_count", **run, task_ids=task_ids)


def write_down(context: Any, step: str) -> None:
    """Append one line to the file of the recorder.

    :param step: the method that runs, or the state of the task instance that its process has waited for.
    """
    ti, server = context["ti"], context["ti"]._ti_context_from_server
    known = {
        "step": step,
        "ti": fields_of(ti, TI_FIELDS),
        "retries": ti.task.retries,
        "next_method": server.next_method,
        "loop": fields_of(read_loop(ti), LOOP_FIELDS),
        "groups": list(read_groups(ti.task)),
        "methods": [name for name in METHODS if hasattr(ti, name)],
        "dag_run": fields_of(context["dag_run"], RUN_FIELDS),
        "task_ids": sorted(context["dag"].task_ids),
        "calls": list(make_calls(context)),
    }
    with Path(os.environ["PROBE_FILE"]).open("a") as file:
        file.write(json.dumps(known, default=str) + "\n")


class Probe(BaseOperator):
    """Write down what a try knows.

    In the run's ``conf``, ``fails`` says up to which try a task fails, and ``holds`` for which states of its instance
    its first try waits ("other" is any but running).
    """

    def __init__(self, *, defers: bool = False, item: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.defers, self.item = defers, item

    def execute(self, context: Any) -> None:
        self.work(context, "execute")
        if self.defers:
            # Not at once: until the scheduler has processed its end, it takes a try that runs again for a killed one.
            self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=3)), method_name="resume")

    def resume(self, context: Any, event: Any = None) -> None:
        self.work(context, "resume")

    def work(self, context: Any, step: str) -> None:
        ti, conf = context["ti"], context["dag_run"].conf or {}
        loop = read_loop(ti)
        name = ti.task_id if loop is None else f"{ti.task_id}@{loop.index}"
        write_down(context, step)
        for state in conf.get("holds", {}).get(name, []) if ti.try_number == 1 else []:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which Airflow sends first to a try that it has given up
            deadline = time.monotonic() + 60
            while not self.has_state(ti, state) and time.monotonic() < deadline:
                time.sleep(0.05)
            write_down(context, state)
        if ti.try_number <= conf.get("fails", {}).get(f"{name}.{step}", 0):
            raise RuntimeError("This try fails")

    @staticmethod
    def has_state(ti: Any, state: str) -> bool:
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id])
        return (states.get(ti.run_id, {}).get(ti.task_id) == "running") == (state == "running")


with DAG("probe", **OPTIONS):
    Probe(task_id="plain", retries=1)
    Probe.partial(task_id="mapped", retries=1).expand(item=["a", "b"])
    Probe(task_id="deferring", retries=1, defers=True)
    Probe(task_id="other") >> Probe(task_id="late")
    if Path(__file__).with_name("with_extra").exists():
        Probe(task_id="extra")

if hasattr(task_group(lambda: None), "loop"):  # Airflow 3.4
    with DAG("looping", **OPTIONS):

        @task_group
        def body() -> None:
            last = Probe(task_id="last", trigger_rule="one_success")
            [Probe(task_id="member", retries=1), Probe(task_id="quick")] >> last
            Probe.partial(task_id="mapped", retries=1).expand(item=["a", "b"]) >> last

        body.loop(max_iterations=3) >> Probe(task_id="outside")
