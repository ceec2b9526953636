"""What callbacks and other tasks learn of the transfer of a task that did not succeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from outbound_transfer.airflow_compat.names import AirflowRescheduleException, AirflowTaskTimeout, redact
from outbound_transfer.client.models import to_builtins
from outbound_transfer.client.outcomes import OUTCOME_KEY, TransferOutcome

if TYPE_CHECKING:
    from airflow.sdk import Context


@contextmanager
def report_outcome(context: Context, find_outcome: Callable[[BaseException], TransferOutcome | None]) -> Iterator[None]:
    """Let an error or a skip that ends the block carry the outcome of its transfer, and push it as an XCom.

    The error has it as its attribute ``outcome``, and for short ``transfer_id`` and ``not_picked_up``.

    :param find_outcome: returns the outcome; None if the task has no transfer.
    """
    try:
        yield
    except AirflowRescheduleException:
        raise
    except (Exception, AirflowTaskTimeout) as error:
        with suppress(Exception):  # the error matters more
            if outcome := find_outcome(error):
                # The text may be a database driver's; an XCom is not masked as a log is.
                outcome = msgspec.structs.replace(outcome, reason=str(redact(outcome.reason)))
                vars(error).update(
                    outcome=outcome, transfer_id=outcome.transfer_id, not_picked_up=outcome.not_picked_up
                )
                context["ti"].xcom_push(OUTCOME_KEY, to_builtins(outcome))
        raise
