"""Forget a sent transfer, so that its task sends again when it is cleared."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec.structs import replace

from outbound_transfer.client.errors import DraftInUse, WrongTransfer
from outbound_transfer.delivery.attempt import FINISHED, describe, find_state, task_of
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.personal_data import without_person
from outbound_transfer.delivery.place import open_rows
from outbound_transfer.delivery.row import Memory, Row
from outbound_transfer.store.deliveries import Deliveries


def forget_delivery(transfer_id: str) -> str:
    """Forget a transfer from within a task; see :func:`forget`. The kept row names the user who triggered the run."""
    from airflow.sdk import get_current_context

    context = get_current_context()
    run = context["dag_run"]
    by = getattr(run, "triggering_user_name", None) or f"run {run.run_id} of {run.dag_id}"
    return forget(open_rows(), transfer_id, lambda *task: find_state(context, *task), by)


def forget(rows: Deliveries, transfer_id: str, state_of: Callable[[str, str, str, int], str | None], by: str) -> str:
    """Empty the row of a transfer, and keep a copy under another key with the user and the time.

    A transfer that was sent stays sent. One in doubt may still be sent: check the service first.

    :param state_of: returns the state of a task instance: Dag, run, task and map index.
    :return: the task that created the draft, which is the one to clear, as text.
    :raises DraftInUse: a task of the delivery is running or scheduled.
    :raises WrongTransfer: no delivery has sent it or started to send it.
    """

    def is_sent(memory: Memory) -> bool:
        return memory.transfer_id == transfer_id and memory.phase is Phase.SENDING

    def emptied(memory: Memory) -> Memory:
        if not is_sent(memory):  # it was emptied, and the answer was lost
            return memory
        for task in filter(None, {memory.owner, memory.asked[0], *memory.tries, *memory.entries}):
            if state_of(*task_of(task)) not in FINISHED:
                raise DraftInUse(f"The {describe(task)} is working on transfer {transfer_id}: wait until it has ended")
        return memory.emptied()

    def copy(memory: Memory) -> Memory | None:
        """Return what no task can send or delete, and never counts as a twin."""
        return replace(without_person(memory), phase=Phase.EMPTY, item="") if is_sent(memory) else None

    found = [Row(rows, key) for key, *_ in rows.find(transfer_id)]
    sent = [row for row in found if is_sent(row.read()[1])]
    if not sent:
        raise WrongTransfer(
            f"No delivery of this Airflow has sent transfer {transfer_id}, or started to; or it was already "
            "forgotten. Nothing is changed."
        )
    if len({row.memory.account for row in sent}) > 1:
        raise WrongTransfer(f"Transfers of several accounts have the id {transfer_id}. Nothing is changed.")
    row = sent[0]
    maker = describe(row.memory.asked[0] or row.memory.owner)
    row.change(emptied, copy, f"Forgotten by {by} at {datetime.now(UTC).isoformat(' ', 'seconds')}")
    return maker
