"""What Airflow says of the running try, of its task and of its run: facts, on which :mod:`.decision` decides."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.run_state import (
    count_instances,
    find_neighboring_runs,
    find_state,
    has_removed_tasks,
    iter_mappings,
    read_clears,
)
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.delivery.memory import Likeness, Memory, Writer
from outbound_transfer.protocol.errors import TaskNotRunning
from outbound_transfer.protocol.health import CLOCK_MARGIN

if TYPE_CHECKING:
    from airflow.sdk import Context

#: The XCom of a task with the transfers that it made in its run: each with its account and identity.
MADE_KEY: Final = "outbound_transfer_made"

#: The XCom of a task with the draft that it has removed: it was not sent.
DISCARDED_KEY: Final = "outbound_transfer_discarded"


class TaskFacts:
    """One try of a task, as Airflow knows it.

    :param is_resumed: the try was deferred before.
    :param delivery_key: what identifies the delivery; "" if it is the task instance.
    :ivar writer: who writes the memory. Others may go on with the delivery of a key.
    """

    def __init__(self, context: Context, *, is_resumed: bool = False, delivery_key: str = "") -> None:
        self._context, self.is_resumed, self.delivery_key = context, is_resumed, delivery_key
        task = _describe_task(context) if delivery_key else ""
        max_tries, self.clear_number = read_clears(context)
        self.writer = Writer(int(context["ti"].try_number), max_tries, task)

    @property
    def is_mapped(self) -> bool:
        """Whether the task is mapped: another index of it may have this one's item, before or after."""
        index = self._context["ti"].map_index
        return not self.delivery_key and index is not None and index >= 0

    @property
    def has_retries(self) -> bool:
        """Whether Airflow retries the task if this try fails with an error that may pass."""
        return self.writer.try_number <= self.writer.max_tries

    @property
    def is_first_of_all(self) -> bool:
        """Whether this is the first try, in a run of which nothing was ever cleared."""
        return self.writer.try_number == 1 and not self.clear_number

    @property
    def newest_before(self) -> int:
        """The number of the newest try that has begun before this process; 0 if none has."""
        return self.writer.try_number - (not self.is_resumed)

    @property
    def missing_memory(self) -> Likeness:
        """How alike a transfer must be if a try has begun of which nothing is remembered."""
        # The items of a mapped task, and the deliveries of keys, may have files and recipients in common on purpose.
        return Likeness.SAME_PEOPLE if self.is_mapped or self.delivery_key else Likeness.SHARED_PEOPLE

    def find_question(self, memory: Memory, *, is_own: bool) -> Likeness | None:
        """Return how alike a transfer must be that somebody else may have sent; None if nobody else can have.

        :param memory: of this try.
        :param is_own: whether it is about what the task is asked to deliver now, with the same files.
        """
        if self.delivery_key:  # the key identifies the delivery, whatever the index or the input
            return None
        has_other_input = memory.input is not None and not is_own
        if (self.is_mapped or has_other_input) and not self.is_first_of_all:
            # Items may be alike on purpose: if an index still has its own, only exactly the same counts.
            return Likeness.EXACT if is_own else Likeness.SAME_PEOPLE
        # An hourly run may send the like of the last one: for a task that was always there, nothing is asked.
        return Likeness.SAME_PEOPLE if self.has_removed_tasks() else None

    def has_removed_tasks(self) -> bool:
        """Return whether the run has a task that its DAG no longer has: this one may have been it."""
        return has_removed_tasks(self._context)

    def has_other_indexes(self) -> bool:
        """Return whether the task is mapped over several items."""
        ti = self._context["ti"]
        return self.is_mapped and count_instances(ti, [ti.task_id]) > 1

    def earliest_send(self) -> float:
        """Return a time before which the delivery was not sent, in seconds since the epoch by the service's clock."""
        if self.delivery_key:  # a key is older than its run
            return 0.0
        # Not the start of the run: a clear of a finished run sets that anew, and so does a user who queues it again.
        return float(self._context["dag_run"].run_after.timestamp()) - CLOCK_MARGIN

    def was_made_by_another_run(self, account: str, transfer_id: str, sent_at: float | None) -> bool:
        """Return whether this task made a transfer in a neighboring run, as its XComs say.

        False if it is not known: before Airflow 3.2, of a run without a logical date, or if the XComs were removed.
        """
        ti, now = self._context["ti"], time.time()
        at = now if sent_at is None else min(max(sent_at, 0), now)
        then = datetime.fromtimestamp(at + CLOCK_MARGIN, UTC)
        return any(
            (account, transfer_id) in _read_made(ti.xcom_pull(task_ids=ti.task_id, run_id=run_id, key=MADE_KEY))
            for run_id in find_neighboring_runs(ti, then, 0 if self.is_mapped else -1)
        )

    def was_made_by_another_task(self, account: str, transfer_id: str) -> bool:
        """Return whether another task of the DAG has made a transfer in this run."""
        return self._has_another_task_published(MADE_KEY, account, transfer_id)

    def was_discarded(self, account: str, transfer_id: str) -> bool:
        """Return whether another task of the run has removed a transfer as a draft, so that it was never sent."""
        return self._has_another_task_published(DISCARDED_KEY, account, transfer_id)

    def _has_another_task_published(self, key: str, account: str, transfer_id: str) -> bool:
        ti = self._context["ti"]
        others = [task_id for task_id in self._context["dag"].task_ids if task_id != ti.task_id]
        return bool(others) and (account, transfer_id) in _read_made(ti.xcom_pull(task_ids=others, key=key))

    def check_still_running(self) -> None:
        """Check with Airflow that this try should still run: a process can outlive the failure of its try.

        :raises TaskNotRunning: it should not.
        """
        ti = self._context["ti"]
        now = find_state(self._context, ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
        if now != "running":
            raise TaskNotRunning(
                f"Airflow has given this try up (the task is {now or 'not known to it'}): nothing is sent"
            )


def _describe_task(context: Context) -> str:
    identity = TaskTry.of(context)
    # With the start of the run: a run may be deleted and made anew under its id.
    return repr((*identity.task, identity.run_started_at))


def _read_made(pulled: Any) -> set[tuple[str, str]]:
    # Under a key, another run or task may have found what this one has made.
    made = (one for one in iter_mappings(pulled) if not one.get("delivery_key"))
    return {(str(one.get("account")), str(one.get("transfer_id"))) for one in made}
