"""Remove the draft of a task that fails for good or is skipped: no later try of it would send or remove the draft."""

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
from outbound_transfer.delivery.comparison import check_identity
from outbound_transfer.delivery.task_run import TaskNotRunning
from outbound_transfer.protocol.errors import FileConflict, WrongTransfer
from outbound_transfer.protocol.flows import DiscardOutcome, discard_draft, find_transfer
from outbound_transfer.tasks.errors import fail_without_retry

if TYPE_CHECKING:
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.delivery.state import DeliveryState
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

#: With these errors, the draft may be another's, or hold what another task has attached.
_KEEPING_DRAFT: Final = (FileConflict, TaskNotRunning, WrongTransfer)


@contextmanager
def discard_unsent(delivery: Delivery, open_hook: Callable[[], OutboundTransferHook]) -> Iterator[None]:
    """Remove the delivery's unsent draft if the block skips the task, or fails and Airflow does not retry it.

    A skip may come before this try has asked for the draft of an earlier one. The block's error is raised in any case;
    a failure to remove the draft is only logged.

    :param open_hook: returns a hook whose calls give up soon and do not defer.
    """
    try:
        with fail_without_retry():
            yield
    except (DeferRequested, AirflowRescheduleException):
        raise
    except AirflowSkipException:
        if state := _find_unsent(delivery) if delivery.draft else delivery.history.unsent_draft:
            _discard(delivery, state, open_hook)
        raise
    except (Exception, AirflowTaskTimeout) as error:
        is_final = isinstance(error, AirflowFailException) or not delivery.run.has_retries
        if is_final and not isinstance(error.__cause__, _KEEPING_DRAFT) and (state := _find_unsent(delivery)):
            _discard(delivery, state, open_hook)
        raise


def _find_unsent(delivery: Delivery) -> DeliveryState | None:
    """Return the state of this try's draft if certainly no send of it has begun: one in doubt may still be applied."""
    draft = delivery.draft
    return draft.state if draft and draft.transfer.is_draft and not draft.state.send_started else None


def _discard(delivery: Delivery, state: DeliveryState, open_hook: Callable[[], OutboundTransferHook]) -> None:
    transfer_id = state.transfer_id
    try:
        delivery.run.check_still_running()  # a later try may be working on the draft
        with open_hook() as hook:
            for account in (state.account, hook.get_account()):
                delivery.check_account(transfer_id, account)
            if delivery.draft is None:  # this try has not read it
                if (transfer := hook.run(find_transfer(transfer_id))) is None:
                    return
                check_identity(state, transfer)
            outcome = hook.run(discard_draft(transfer_id))
    except Exception as error:
        delivery.log.warning(
            "Could not discard draft '%s' of this task; the service removes it after 30 days: %s",
            transfer_id,
            error,
        )
        return
    if outcome is not DiscardOutcome.SENT:
        delivery.observer.record_draft_removed(transfer_id)
    delivery.log.info("Transfer '%s' of this task: %s", transfer_id, outcome.value)
