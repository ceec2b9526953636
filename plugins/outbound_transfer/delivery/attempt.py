"""One attempt of a task, as Airflow knows it: facts, on which :mod:`.decision` decides."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from outbound_transfer.airflow_compat.run_state import find_state, has_removed_tasks, read_clears
from outbound_transfer.airflow_compat.task_loops import refuse_loop
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.client.errors import TaskNotRunning
from outbound_transfer.delivery.row import task_name, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context

#: States of a task that does not run, and is not going to unless somebody clears it; None if Airflow has none.
FINISHED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", None})

#: Of these, those in which it is not going to attach anything. A task that was cleared, and is to run, has no state.
LEFT_OUT: Final = frozenset({"skipped", "removed"})


class Attempt:
    """One attempt of a task.

    :param conn_id: the Airflow connection.
    :param claim: of the process that was deferred, which this one continues; 0 if it was not.
    :ivar by: the attempt, as a row compares it with others.
    :raises TaskInLoop: the task is in a loop.
    """

    def __init__(self, context: Context, conn_id: str, claim: int = 0) -> None:
        refuse_loop(context)
        self._context, self.conn_id, self.claim, self.by = context, conn_id, claim, TaskTry.of(context)
        self.max_tries, self.clear_number = read_clears(context)

    @property
    def name(self) -> str:
        """What identifies the task instance."""
        return task_name(self.by.task)

    @property
    def asked(self) -> tuple[str, str, int]:
        """What a clear changes, and a retry does not: task instance, start of the run, and ``max_tries``."""
        return self.name, self.by.run_started_at, self.max_tries

    @property
    def has_retries(self) -> bool:
        """Whether Airflow retries the task if this attempt fails with an error that may pass."""
        return self.by.try_number <= self.max_tries

    @property
    def run_of_twins(self) -> str:
        """The start of the run, if none of its rows can be of another one: it was never cleared; otherwise ""."""
        return "" if self.clear_number else self.by.run_started_at

    @cached_property
    def may_have_twins(self) -> bool:
        """Whether another task instance of the run may deliver the same item.

        A list that a task is mapped over may change its order; a task that was renamed may have delivered before.
        """
        return self.by.map_index >= 0 or bool(self.clear_number) or has_removed_tasks(self._context)

    def check_still_running(self) -> None:
        """Check with Airflow that this attempt should still run: a process can outlive the failure of its attempt.

        :raises TaskNotRunning: it should not.
        """
        if (state := find_state(self._context, *self.by.task)) != "running":
            raise TaskNotRunning(
                f"Airflow has given this try up (the task is {state or 'not known to it'}): nothing is sent"
            )

    def is_at_work(self, name: str) -> bool:
        """Return whether Airflow runs another task instance, or is going to."""
        return find_state(self._context, *task_of(name)) not in FINISHED

    def state_of(self, name: str) -> str | None:
        """Return the state of another task instance; None if it has none."""
        return find_state(self._context, *task_of(name))
