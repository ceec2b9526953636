"""Airflow's own knowledge of the running try and of the run's past, independent of the task's state store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.delivery.clears import read_clear_counters
from outbound_transfer.delivery.state import PossibleSend
from outbound_transfer.protocol.errors import OutboundTransferError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.delivery.state import DeliveryState

#: Seconds by which the clocks of the service and of Airflow may differ.
CLOCK_MARGIN: Final = 3_600.0

#: The same where only exactly the same transfer counts: frequent runs may send such on purpose.
EXACT_CLOCK_MARGIN: Final = 60.0

#: Added to the time from which on other runs are looked for: a run may be made for a time to come.
_FUTURE: Final = timedelta(days=3_650)

#: How many other runs of the DAG are asked for their results.
_MAX_OTHER_RUNS: Final = 100

#: The XCom of a task with the transfers that it made or sends in its run, and the account of each.
MADE_KEY: Final = "outbound_transfer_draft_account"

#: The XCom of a failed task with the transfer that it has sent or may have sent.
POSSIBLE_SEND_KEY: Final = "outbound_transfer_possible_send"

#: How many task ids a request to Airflow names: they are in its URL.
_MAX_TASK_IDS: Final = 100


class TaskNotRunning(OutboundTransferError):
    """Airflow has given this try up: it must do nothing that cannot be undone."""


class TaskRun:
    """One try of a task.

    :param resumed: the try was deferred before, so it has stored something.
    :ivar clear_counters: see :func:`.read_clear_counters`.
    :ivar try_number: the number under which it stores its record.
    :ivar delivery_key: what identifies the delivery; "" if it is the task itself.
    :ivar made_by: the task, if others may go on with its delivery; else "".
    :ivar is_sent: whether the delivery is known to be sent, so that there is nothing to store.
    """

    delivery_key = made_by = ""
    is_sent = False

    def __init__(self, context: Context, *, resumed: bool = False) -> None:
        self._context, self.resumed = context, resumed
        self.clear_counters = read_clear_counters(context)
        self._task_try_number = self.try_number = int(context["ti"].try_number)
        #: The transfers that other runs have made, each with its account.
        self._made_elsewhere: set[tuple[str, str]] = set()

    @property
    def expects_record(self) -> bool:
        """Whether the try before, or this one before it was deferred, has stored something."""
        return self.try_number > 1 or self.resumed

    @property
    def has_retries(self) -> bool:
        """Whether Airflow retries the task if this try fails with an error that may pass."""
        return self._task_try_number <= self.clear_counters[0]

    @property
    def has_predecessor(self) -> bool:
        """Whether another try has begun before, whose process may still work on what it made."""
        return self._task_try_number > 1 or self.clear_counters[1] > 0

    def is_newest_record(self, at: int, newest: int) -> bool:
        """Return whether no record is missing after the one of a try.

        :param at: the number of that try; 0 if there is none.
        :param newest: the number of the newest try that has begun; 0 if it is not known.
        """
        return at >= max(newest, self.try_number if self.resumed else self.try_number - 1)

    @property
    def is_mapped(self) -> bool:
        """Whether the task is mapped: another index of it may have this one's item, before or after."""
        index = self._context["ti"].map_index
        return index is not None and index >= 0

    def possible_send(
        self, record: DeliveryState | None, *, is_same_request: bool, has_gap: bool
    ) -> PossibleSend | None:
        """Return why this run may have sent this very delivery without a record of this task; None if it cannot have.

        :param record: what the try before stored; None if it stored nothing.
        :param is_same_request: the record is about this very delivery.
        :param has_gap: a try has begun whose record is missing.
        """
        _, clear_number = self.clear_counters
        if has_gap:
            return PossibleSend(
                f"this is try {self.try_number} of the task, and the task's state store lacks what a try of it stored"
            )
        is_own, is_first = record is not None and is_same_request, self.try_number == 1
        if is_first and record is not None and not record.has_request:
            record = None  # it says only that this try began, before it was deferred
        was_cleared = clear_number and (record is None or is_first or record.clear_counters[1] != clear_number)
        # Items may be alike on purpose: if an index still has its own, only exactly the same transfer counts.
        if was_cleared and (self.is_mapped or (record is not None and not is_own)):
            return PossibleSend(
                "the run was cleared, and another index or task of it may have made this delivery", exactly=is_own
            )
        if record is not None and self.try_number > 1 and (self.is_mapped or not is_own):
            return PossibleSend(
                "this is another try, and another index or task may have had this one's input", exactly=is_own
            )
        # An hourly run may send the like of the last one: for a task that was always there, nothing is asked.
        if self._has_other_tasks():
            return PossibleSend("the run has tasks that its DAG no longer has, and this task may have been one of them")
        return None

    def is_first_after_clear(self) -> bool:
        """Return whether this is the first try after a clear, judged by its number: a clear sets ``max_tries``.

        A try that was deferred is not what was cleared any more: it may have sent before.
        """
        max_tries, clear_number = self.clear_counters
        retries = int(self._context["ti"].task.retries or 0)
        number = self._task_try_number
        is_first = number > 1 and max_tries - (number - 1) == retries
        return clear_number > 0 and is_first and not self.resumed

    def has_other_instances(self) -> bool:
        """Return whether the run has another index of this task, or a task that its DAG no longer has."""
        ti = self._context["ti"]
        count = int(ti.get_ti_count(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id]))
        return count > 1 or self._has_other_tasks()

    def _has_other_tasks(self) -> bool:
        # Twice, as the scheduler may expand a mapped task between the two counts.
        return self._count_tasks() < self._count_all() and self._count_tasks() < self._count_all()

    def _count_all(self) -> int:
        ti = self._context["ti"]
        return int(ti.get_ti_count(dag_id=ti.dag_id, run_ids=[ti.run_id]))

    def _count_tasks(self) -> int:
        """Return how many task instances of the run are of tasks that its DAG has."""
        ti, task_ids = self._context["ti"], list(self._context["dag"].task_ids)
        parts = [task_ids[at : at + _MAX_TASK_IDS] for at in range(0, len(task_ids), _MAX_TASK_IDS)]
        return sum(int(ti.get_ti_count(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=part)) for part in parts)

    def lookup_in_other_runs(self, account: str) -> Callable[..., bool]:
        """Return what tells whether this task made a transfer of the account in another run, as its XComs say.

        It is for one question to the service: meanwhile, another run may make what it had not made when it was asked.
        False if it is not known: before Airflow 3.2, of a run without a logical date, or if the XComs were removed.
        """
        asked: set[str] = set()

        def is_of_another_run(transfer_id: str, sent_at: float | None = None) -> bool:
            runs = self._find_other_runs(sent_at)
            while (account, transfer_id) not in self._made_elsewhere:
                run_id = next(runs, None)
                if run_id is None:
                    return False
                if run_id not in asked:
                    asked.add(run_id)
                    self._made_elsewhere |= self._made_in(run_id)
            return True

        return is_of_another_run

    def _find_other_runs(self, sent_at: float | None) -> Iterator[str]:
        """Yield other runs in which the task was there: first those that were due when a transfer was sent."""
        now = datetime.now(timezone.utc)
        at = now.timestamp() if sent_at is None else min(max(sent_at, 0), now.timestamp())
        sent = datetime.fromtimestamp(at, timezone.utc)
        seen: set[str] = set()
        for before in (sent + timedelta(seconds=CLOCK_MARGIN), now + _FUTURE):
            for run_id in self._find_runs_before(before):
                if run_id not in seen:
                    seen.add(run_id)
                    yield run_id

    def _find_runs_before(self, before: datetime) -> Iterator[str]:
        ti = self._context["ti"]
        if not hasattr(ti, "get_previous_ti"):  # before Airflow 3.2
            return
        for _ in range(_MAX_OTHER_RUNS):
            found = ti.get_previous_ti(logical_date=before, map_index=0 if self.is_mapped else -1)
            if found is None or found.logical_date is None:
                return
            before = found.logical_date
            if found.run_id != ti.run_id:
                yield found.run_id

    def _made_in(self, run_id: str) -> set[tuple[str, str]]:
        """Return the transfers that this task, at any index, made or sent in a run, each with its account."""
        ti = self._context["ti"]
        made = iter_mappings(ti.xcom_pull(task_ids=ti.task_id, run_id=run_id, key=MADE_KEY))
        # Under a key, the run may have found what this one has made.
        return {(str(one.get("account")), str(one.get("transfer_id"))) for one in made if not one.get("delivery_key")}

    def made_by_other_tasks(self, account: str) -> set[str]:
        """Return the transfers of an account that other tasks of the DAG have made in this run."""
        ti = self._context["ti"]
        others = [task_id for task_id in self._context["dag"].task_ids if task_id != ti.task_id]
        made = iter_mappings(ti.xcom_pull(task_ids=others, key=MADE_KEY)) if others else ()
        return {str(one.get("transfer_id")) for one in made if one.get("account") == account}

    def started_at(self, possible: PossibleSend) -> float:
        """Return a time before which this run sent nothing, in seconds since the epoch by the service's clock."""
        return self.earliest_start + (CLOCK_MARGIN - EXACT_CLOCK_MARGIN if possible.exactly else 0)

    @property
    def earliest_start(self) -> float:
        """A time before the run, in seconds since the epoch by the service's clock."""
        # Not its start: a clear of a finished run sets that anew, and so does a user who queues the run again.
        return float(self._context["dag_run"].run_after.timestamp()) - CLOCK_MARGIN

    def check_still_running(self) -> None:
        """Check with Airflow that this try should still run: a process can outlive the failure of its try.

        :raises TaskNotRunning: it should not.
        """
        ti = self._context["ti"]
        now = find_task_state(self._context, ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
        if now != "running":
            raise TaskNotRunning(
                f"Airflow has given this try up (the task is {now or 'not known to it'}): nothing is sent"
            )

    @property
    def how_to_resend(self) -> str:
        """What a user does to send again what may have been sent, for an error."""
        return "give it another delivery_key" if self.delivery_key else "set resend=True and clear the task"

    def record_sent(self, transfer_id: str) -> None:
        """Store that the delivery was sent, where others wait for it."""


def find_task_state(context: Context, dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str | None:
    """Return the state of a task instance, as Airflow knows it; None if it has none, or Airflow does not know it."""
    index = map_index if map_index is not None and map_index >= 0 else None
    states = context["ti"].get_task_states(dag_id=dag_id, map_index=index, task_ids=[task_id], run_ids=[run_id])
    found = states.get(run_id, {}).get(task_id if index is None else f"{task_id}_{index}")
    return None if found is None else str(found)


def made_transfer(transfer_id: str, account: str, delivery_key: str) -> dict[str, str]:
    """Return one transfer in the XCom :data:`MADE_KEY`."""
    return {"transfer_id": transfer_id, "account": account} | ({"delivery_key": delivery_key} if delivery_key else {})


def iter_mappings(pulled: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings in the XComs of several tasks, some of them mapped or without an XCom."""
    if isinstance(pulled, Mapping):
        yield pulled
    elif isinstance(pulled, Iterable) and not isinstance(pulled, str):
        for each in pulled:
            yield from iter_mappings(each)
