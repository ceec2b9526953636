"""Remove the draft of a task that fails for good: no later try of it would send the draft or remove it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from outbound_transfer.airflow_compat.names import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from outbound_transfer.client.deferral import DeferRequested
from outbound_transfer.delivery.task_run import TaskNotRunning
from outbound_transfer.protocol.errors import FileConflict, WrongTransfer
from outbound_transfer.protocol.flows import DiscardOutcome, discard_draft
from outbound_transfer.tasks.errors import fail_without_retry

if TYPE_CHECKING:
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

#: With these errors, the draft may be another's, or hold what another task has attached.
_KEEPING_DRAFT: Final = (FileConflict, TaskNotRunning, WrongTransfer)


@contextmanager
def discard_after_failure(delivery: Delivery, open_hook: Callable[[], OutboundTransferHook]) -> Iterator[None]:
    """Remove the delivery's unsent draft if the block fails and Airflow does not retry the task.

    The block's error is raised in any case; a failure to remove the draft is only logged.

    :param open_hook: returns a hook whose calls give up soon and do not defer.
    """
    try:
        with fail_without_retry():
            yield
    except (DeferRequested, AirflowSkipException, AirflowRescheduleException):
        raise
    except (Exception, AirflowTaskTimeout) as error:
        is_final = isinstance(error, AirflowFailException) or not delivery.run.has_retries
        if is_final and not isinstance(error.__cause__, _KEEPING_DRAFT) and _is_unsent(delivery):
            _discard(delivery, open_hook)
        raise


def _is_unsent(delivery: Delivery) -> bool:
    """Return whether there is a draft and certainly no send of it: one in doubt may still be applied."""
    draft = delivery.draft
    return draft is not None and draft.transfer.is_draft and not draft.state.send_started


def _discard(delivery: Delivery, open_hook: Callable[[], OutboundTransferHook]) -> None:
    assert delivery.draft is not None
    transfer_id = delivery.draft.state.transfer_id
    try:
        delivery.run.check_still_running()  # a later try may be working on the draft
        with open_hook() as hook:
            delivery.check_account(transfer_id, hook.get_account())
            outcome = hook.run(discard_draft(transfer_id))
    except Exception as error:
        delivery.log.warning(
            "Could not discard draft '%s' of this failed task; the service removes it after 30 days: %s",
            transfer_id,
            error,
        )
        return
    if outcome is not DiscardOutcome.SENT:
        delivery.observer.record_draft_removed(transfer_id)
    delivery.log.info("Transfer '%s' of this failed task: %s", transfer_id, outcome.value)
