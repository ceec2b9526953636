"""What Airflow knows of the try that runs, and of the run's past, whatever the task's own state store says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outbound_transfer.clears import clears_of
from outbound_transfer.protocol.errors import OutboundTransferError

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Seconds by which the service's clock and Airflow's may differ.
CLOCK_MARGIN: Final = 900.0


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

    def reason_for_a_past(self) -> str:
        """Why something may have been sent in this run that the task does not remember; "" where nothing can have been.

        Asked where the state store has nothing: of a first try that is what it should be.
        """
        ti, (_, clear_number) = self._context["ti"], self.clears
        if self.try_number > 1 or self._resumed:
            return (
                f"this is try {self.try_number} of the task, and the task's state store has nothing of the ones before"
            )
        if clear_number and (ti.map_index is not None and ti.map_index >= 0):
            return "the run was cleared, and items of a mapped task may have other indexes than before"
        if self._has_other_tasks():
            return "the run has tasks that its DAG has not any more, and this one may have been one of them"
        return ""

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
