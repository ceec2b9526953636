"""Forget a sent transfer, so that its task sends again when it is cleared."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outbound_transfer.airflow_compat.run_state import find_state
from outbound_transfer.client.errors import DraftInUse, WrongTransfer
from outbound_transfer.delivery.attempt import FINISHED
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.place import open_rows
from outbound_transfer.delivery.row import Memory, Row, describe, task_of

if TYPE_CHECKING:
    from outbound_transfer.store.rows import Rows

#: Returns the state of a task instance: Dag, run, task and map index.
FindState = Callable[[str, str, str, int], str | None]


def forget_delivery(transfer_id: str) -> str:
    """Forget a transfer from within a task. The kept row names the user who triggered the run.

    :return: the task to clear, as text.
    :raises DraftInUse: a task of the delivery is running or scheduled.
    :raises WrongTransfer: no delivery has sent it or started to send it.
    """
    from airflow.sdk import get_current_context

    context = get_current_context()
    run = context["dag_run"]
    by = getattr(run, "triggering_user_name", None) or f"run {run.run_id} of {run.dag_id}"
    return forget(open_rows(), transfer_id, lambda *task: find_state(context, *task), by)


def forget(rows: Rows, transfer_id: str, state_of: FindState, by: str) -> str:
    """Empty the row of a transfer, and keep a copy under another key with the user and the time.

    A transfer that was sent stays sent. One in doubt may still be sent: check the service first.

    :return: the task that created the draft, which is the one to clear, as text.
    :raises DraftInUse: a task of the delivery is running or scheduled.
    :raises WrongTransfer: no delivery has sent it or started to send it.
    """
    found = [Row(rows, key) for key, _ in rows.find(transfer_id)]
    sent = [row for row in found if _is_sent(row.read()[1], transfer_id)]
    if len({row.memory.account for row in sent}) > 1:
        raise WrongTransfer(f"Transfers of several accounts have the id {transfer_id}. Nothing is changed.")
    for row in sent:
        memory, is_kept = row.memory, False
        maker = describe(memory.asked[0] or memory.owner)
        while True:
            version, memory = row.read()
            if not _is_sent(memory, transfer_id):
                if is_kept:  # by this process, whose answer was lost, or by another
                    return maker
                break
            tasks = filter(None, {memory.owner, memory.asked[0], *memory.tries, *memory.entries})
            if at_work := [describe(each) for each in tasks if state_of(*task_of(each)) not in FINISHED]:
                raise DraftInUse(f"The {at_work[0]} is at work on transfer {transfer_id}: wait until it has ended")
            at = datetime.now(UTC).isoformat(" ", "seconds")
            # No task can send or delete from the copy, and it never counts as a twin.
            row.keep(replace(memory.erased(), phase=Phase.EMPTY, item=""), transfer_id, f"Forgotten by {by} at {at}")
            is_kept = True
            if row.put(version, memory.emptied()):
                return maker
    raise WrongTransfer(
        f"No delivery of this Airflow has sent transfer {transfer_id}, or has begun to; or it was forgotten before. "
        "Nothing is changed."
    )


def _is_sent(memory: Memory, transfer_id: str) -> bool:
    return memory.transfer_id == transfer_id and memory.phase is Phase.SENDING
