"""One attempt of a task, as Airflow knows it: facts, on which :mod:`.decision` decides."""

from __future__ import annotations

import json
from datetime import UTC
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias

from airflow.sdk import Context

from outbound_transfer.client.errors import InvalidDelivery, OutboundTransferError, TaskNotRunning

#: Dag, run, task and map index; the index is -1 if the task is not mapped.
Task: TypeAlias = tuple[str, str, str, int]

#: States of a task that does not run, and will not unless somebody clears it; None if Airflow has no state.
FINISHED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", None})

#: Of these, those in which it attaches nothing. A task that was cleared, and is to run, has no state.
LEFT_OUT: Final = frozenset({"skipped", "removed"})

#: How many task ids a request to Airflow names: they are in its URL.
_MAX_TASK_IDS: Final = 100


class StaleTry(OutboundTransferError):
    """A later attempt of the task has started, so this one must stop.

    What to do: nothing, as a later attempt or another task delivers; a retry returns its transfer. If this is the
    newest attempt, the schedulers' clocks differ: clear the task again.
    """


class TaskTry(NamedTuple):
    """One attempt of one task instance of one run, as a row compares it with others."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    run_started_at: str  # ISO 8601 in UTC: a deleted run may return under its id
    max_tries: int = 0
    clear_number: int = 0

    @classmethod
    def of(cls, context: Context) -> TaskTry:
        """Return the attempt that is running."""
        ti, run = context["ti"], context["dag_run"]
        return cls(
            ti.dag_id,
            ti.run_id,
            ti.task_id,
            -1 if ti.map_index is None else ti.map_index,
            int(ti.try_number),
            run.start_date.astimezone(UTC).isoformat(timespec="microseconds") if run.start_date else "",
            int(ti.max_tries),
            int(run.clear_number or 0),
        )

    @property
    def task(self) -> Task:
        return self[:4]

    @property
    def asked(self) -> tuple[str, str, int]:
        """Stays the same in a retry and a clear of other tasks; a clear of the task changes it.

        ``max_tries`` grows by each clear, unless the task's retries were lowered meanwhile.
        """
        return task_name(self.task), self.run_started_at, self.max_tries

    def check_newest(self, run_started_at: str, try_number: int) -> None:
        """Check that no later attempt has begun. A deleted task instance of a cleared run begins with try 1."""
        if (run_started_at, try_number) > (self.run_started_at, self.try_number):
            raise StaleTry(
                f"Attempt {try_number} of this task has started, in its run of {run_started_at}. This is attempt "
                f"{self.try_number}: it stops, and sends nothing. If it is the newest, the schedulers' clocks differ, "
                f"or the task instance was created again: clear the task until its attempt is {try_number}"
            )


class Attempt:
    """One attempt of a task; ``claim`` is that of the process that was deferred, which this one continues, or 0."""

    def __init__(self, context: Context, conn_id: str, claim: int = 0) -> None:
        _refuse_loop(context)
        self._context, self.conn_id, self.claim, self.by = context, conn_id, claim, TaskTry.of(context)

    @property
    def name(self) -> str:
        return task_name(self.by.task)

    @property
    def has_retries(self) -> bool:
        """Whether Airflow retries the task if this attempt fails with an error that may pass."""
        return self.by.try_number <= self.by.max_tries

    @cached_property
    def may_have_twins(self) -> bool:
        """Whether another task instance of the run may deliver the same: indexes can shift, and tasks be renamed."""
        return self.by.map_index >= 0 or bool(self.by.clear_number) or _has_removed_tasks(self._context)

    def check_still_running(self) -> None:
        """Check that Airflow still wants this attempt: a process can outlive the failure of its attempt."""
        if (state := self.state_of(self.name)) != "running":
            raise TaskNotRunning(
                f"Airflow has given up this attempt (the task is {state or 'unknown to it'}): nothing is sent"
            )

    def is_at_work(self, name: str, *, has_handed_on: bool = False) -> bool:
        """Return whether Airflow runs another task instance, or is going to."""
        state = self.state_of(name)
        if has_handed_on and state == "success":  # other tasks of its run may be using its draft
            dag_id, run_id, *_ = task_of(name)
            return self._context["ti"].get_dagrun_state(dag_id, run_id) in ("queued", "running")
        return state not in FINISHED

    def state_of(self, name: str) -> str | None:
        return find_state(self._context, *task_of(name))


def find_state(context: Context, dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Return the state of a task instance; None if it has none."""
    index = map_index if map_index >= 0 else None
    states = context["ti"].get_task_states(dag_id=dag_id, map_index=index, task_ids=[task_id], run_ids=[run_id])
    found = states.get(run_id, {}).get(task_id if index is None else f"{task_id}_{index}")
    return None if found is None else str(found)


def _has_removed_tasks(context: Context) -> bool:
    """Return whether the run has a task that its Dag no longer has."""
    ti, task_ids = context["ti"], list(context["dag"].task_ids)
    count = partial(ti.get_ti_count, dag_id=ti.dag_id, run_ids=[ti.run_id])

    def are_fewer() -> bool:
        parts = (task_ids[at : at + _MAX_TASK_IDS] for at in range(0, len(task_ids), _MAX_TASK_IDS))
        return sum(count(task_ids=part) for part in parts) < count()

    return are_fewer() and are_fewer()  # twice, as the scheduler may expand a mapped task between two counts


def _refuse_loop(context: Context) -> None:
    """Refuse a delivery in a task loop, which Airflow has from 3.4 on: its iterations share their ids."""
    ti: Any = context["ti"]
    group = getattr(ti.task, "task_group", None)
    while group is not None and not hasattr(group, "max_iterations"):
        group = group.parent_group
    if group is not None or "loop" in context:
        raise InvalidDelivery(
            f"Task '{ti.task_id}' is in a loop, whose iterations cannot be told apart. Nothing was created. "
            "Deliver in a mapped task after the loop: deliver.expand(files=<what the iterations return>)"
        )


def task_name(task: Task) -> str:
    """Return what identifies a task instance in a row."""
    return json.dumps(task)


def task_of(name: str) -> Task:
    dag_id, run_id, task_id, map_index = json.loads(name)
    return dag_id, run_id, task_id, map_index


def describe(name: str) -> str:
    """Return a task instance in words."""
    dag_id, run_id, task_id, map_index = task_of(name)
    index = f" (index {map_index})" if map_index >= 0 else ""
    return f"task {task_id}{index} of run {run_id} of {dag_id}"
