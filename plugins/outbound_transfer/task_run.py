"""What Airflow knows of the try that runs, and of the run's past, whatever the task's own state store says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outbound_transfer.clears import clears_of
from outbound_transfer.protocol.errors import OutboundTransferError

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Seconds by which the service's clock and Airflow's may differ.
CLOCK_MARGIN: Final = 3_600.0


class GivenUp(OutboundTransferError):
    """Airflow has given this try up; it must do nothing more that cannot be taken back."""


class TaskRun:
    """One try of a task.

    :param resumed: the try was deferred before, so it has stored something.
    """

    def __init__(self, context: Context, *, resumed: bool = False) -> None:
        self._context, self._resumed = context, resumed
        self.clears = clears_of(context)
        self.try_number = int(context["ti"].try_number)

    def reason_for_a_past(self, *, remembers: bool) -> str:
        """Why something may have been sent in this run that the task does not remember; "" where nothing can have been.

        :param remembers: the try before has left what it knows, which is of something else than is asked for now;
            otherwise nothing is found of it, which of a first try is as it should be.
        """
        ti, (_, clear_number) = self._context["ti"], self.clears
        if not remembers and (self.try_number > 1 or self._resumed):
            return f"this is try {self.try_number} of the task, whose state store lacks what the tries before have done"
        if clear_number and (remembers or (ti.map_index is not None and ti.map_index >= 0)):
            return "the run was cleared, and another index or task of it may have been asked for this before"
        if not remembers and self._has_other_tasks():
            return "the run has tasks that its DAG has not any more, and this one may have been one of them"
        return ""

    def is_first_after_clear(self) -> bool:
        """Whether this is a clear's first try, as its number and the task's retries say: a clear sets ``max_tries``."""
        max_tries, clear_number = self.clears
        retries = int(self._context["ti"].task.retries or 0)
        return clear_number > 0 and self.try_number > 1 and max_tries - (self.try_number - 1) == retries

    def _has_other_tasks(self) -> bool:
        ti, dag = self._context["ti"], self._context["dag"]
        known = ti.get_ti_count(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=list(dag.task_ids))
        return bool(ti.get_ti_count(dag_id=ti.dag_id, run_ids=[ti.run_id]) > known)

    def began(self) -> float:
        """Nothing of this run was sent before; in the service's seconds since the epoch, with a margin."""
        dag_run = self._context["dag_run"]
        _, clear_number = self.clears
        # A clear of a run that has ended sets its start anew.
        moments = [dag_run.run_after] if clear_number or dag_run.start_date is None else [dag_run.start_date]
        return min(moment.timestamp() for moment in moments) - CLOCK_MARGIN

    def check_wanted(self) -> None:
        """Ask Airflow whether this try is still the one that should run: a failed one keeps its id and could go on.

        :raises GivenUp: it is not.
        """
        ti = self._context["ti"]
        index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
        states = ti.get_task_states(dag_id=ti.dag_id, map_index=index, task_ids=[ti.task_id], run_ids=[ti.run_id])
        now = states.get(ti.run_id, {}).get(ti.task_id if index is None else f"{ti.task_id}_{index}")
        if now != "running":
            raise GivenUp(f"Airflow has given this try up (the task is {now or 'not known to it'}): nothing is sent")
