"""The running try of a task instance, as its memory is filed."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, NamedTuple

from outbound_transfer.client.errors import OutboundTransferError

if TYPE_CHECKING:
    from airflow.sdk import Context


def is_test_run(context: Context) -> bool:
    """Return whether ``airflow dags test``, ``airflow tasks test`` or ``dag.test()`` runs the task."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)  # Airflow sets it when it runs a task
    is_in_process = type(comms).__name__ == "InProcessSupervisorComms"
    return (
        is_in_process or getattr(context.get("dag_run"), "triggering_user_name", None) == "dag_test"
    )  # by an executor


class StaleTry(OutboundTransferError):
    """A later try of the task has begun, so this one must do nothing more.

    What to do: nothing, as a later try runs or another task delivers: a retry returns its transfer. If this is the
    newest try, the schedulers' clocks differ: clear the task again.
    """


class TaskTry(NamedTuple):
    """One try of one task instance of one run.

    :ivar map_index: -1 if the task is not mapped.
    :ivar run_started_at: when the run was started, ISO 8601 in UTC: a run may be deleted and made anew under its id.
    :ivar is_fresh: the task's first try, not deferred, in a run that was not cleared: it has nothing to remember.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    run_started_at: str
    is_fresh: bool

    @classmethod
    def of(cls, context: Context) -> TaskTry:
        """Return the try that runs."""
        ti, started = context["ti"], context["dag_run"].start_date
        index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else -1
        was_deferred = bool(getattr(getattr(ti, "_ti_context_from_server", None), "next_method", None))
        return cls(
            ti.dag_id,
            ti.run_id,
            ti.task_id,
            index,
            int(ti.try_number),
            started.astimezone(UTC).isoformat(timespec="microseconds") if started else "",
            # In a run that was cleared, a task instance that was deleted is made anew as a first try.
            ti.try_number == 1 and not was_deferred and not getattr(context["dag_run"], "clear_number", 0),
        )

    @property
    def task(self) -> tuple[str, str, str, int]:
        """The task instance, which its tries have in common."""
        return self[:4]

    def check_newest(self, run_started_at: str, try_number: int) -> None:
        """Check that another attempt of the task instance has not begun after this one.

        :param run_started_at: of that attempt, as ``try_number``.
        :raises StaleTry: it has, or the run was started again since this attempt began.
        """
        if run_started_at > self.run_started_at:
            raise StaleTry(
                "This task's run was started again since, so this try does nothing more, and sends nothing. If it is "
                "the newest try, the schedulers' clocks differ: clear the task again"
            )
        # A task instance that was deleted, and made anew in a run that was started again, counts its tries from 1.
        if run_started_at == self.run_started_at and try_number > self.try_number:
            raise StaleTry(
                f"Try {try_number} of this task has begun: try {self.try_number} does nothing more, and sends nothing. "
                f"If the task instance was deleted and created again, clear the task until its try number is "
                f"{try_number} or more"
            )
