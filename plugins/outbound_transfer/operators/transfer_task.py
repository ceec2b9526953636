"""An operator that works on one transfer: its link, its lineage, and errors that name what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)
from outbound_transfer.airflow_compat.task_try import TaskTry, is_test_run
from outbound_transfer.client.errors import Rehearsed
from outbound_transfer.client.ids import resolve_transfer_id
from outbound_transfer.client.models import to_result
from outbound_transfer.client.outcomes import REHEARSED, TransferOutcome
from outbound_transfer.client.wording import pluralize
from outbound_transfer.links.transfer import TransferLink, push_link
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.tasks.outcome_report import report_outcome
from outbound_transfer.tasks.waiting import to_seconds

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.client.retry import RetryPolicy
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.delivery.row import Memory, Row


class RehearsalFinished(AirflowSkipException):
    """The task has done everything but its send."""


class TransferTaskOperator(OutboundTransferOperator):
    """An operator that works on one transfer."""

    operator_extra_links = (TransferLink(),)

    #: Of the operators that have this argument.
    transfer_id: Any

    _delivery: Delivery | None = None

    def attempt(self, context: Context) -> Attempt:
        """Return what Airflow says of this attempt."""
        from outbound_transfer.delivery.attempt import Attempt

        return Attempt(context, self.outbound_transfer_conn_id, self._claim)

    def check_known_transfer_id(self) -> None:
        """:raises InvalidDelivery: ``transfer_id`` is known when the DAG is parsed, and cannot be an id."""
        if self.is_known("transfer_id"):
            resolve_transfer_id(self.transfer_id)

    def row_of(self, client: Client, context: Context, transfer_id: str) -> Row:
        """Return the row of a draft that another task made.

        :raises WrongTransfer: no delivery of this Airflow has made it; or it was replaced or deleted; or the connection
            leads to another account than then.
        """
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import require_row

        push_link(context, client.settings, transfer_id)
        self._row = require_row(open_rows(), client.settings.account, transfer_id)
        return self._row

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the files, the transfer and its status; OpenLineage's provider calls it, if installed."""
        from outbound_transfer.operators.openlineage import delivery_lineage

        return delivery_lineage(self, task_instance)

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete


class SendingOperator(TransferTaskOperator):
    """An operator whose errors, of whatever kind and origin, name what the task has sent or may have sent."""

    #: As it was last read, where the task waits for it.
    _last_read: Transfer | None = None

    #: The id of what this task sends, and whether it is known to be sent.
    _sends: str = ""
    _is_sent = False

    def __init__(self, *, slot_timeout: float | timedelta = timedelta(hours=1), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slot_timeout = slot_timeout
        if self.is_known("slot_timeout"):
            to_seconds(slot_timeout, "slot_timeout")

    def call_retry_policy(self) -> RetryPolicy:
        from outbound_transfer.client.retry import RetryPolicy

        return RetryPolicy(slot_timeout=max(to_seconds(self.slot_timeout) - self._waited, 0.0))

    def execute(self, context: Context) -> Any:
        with self._naming_transfer(context):
            return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._naming_transfer(context):
            return super().resume_execution(next_method, next_kwargs, context)

    @contextmanager
    def _naming_transfer(self, context: Context) -> Iterator[None]:
        """Let the error that ends the block say what was sent: the one place that does."""
        with report_outcome(context, partial(self._find_outcome, context)):
            try:
                yield
            except (AirflowSkipException, AirflowRescheduleException, TaskDeferred):
                raise
            except (KeyboardInterrupt, SystemExit) as interrupt:
                if text := self._describe_send(str(interrupt), context):
                    self.log.error("%s", text)
                    if isinstance(interrupt, KeyboardInterrupt):  # Airflow does not show the text of the other
                        interrupt.args = (text,)
                raise
            except BaseException as error:
                if text := self._describe_send(str(error), context):
                    _change_text(error, text)
                raise

    def _failed_as(self, context: Context) -> str:
        return "in_doubt" if self.possibly_sent_id(context) else "failed"

    def announce(self, client: Client, context: Context) -> None:
        """Log whether this try sends for real, where somebody may not expect it."""
        account = client.settings.account
        if client.settings.rehearses:
            self.log.warning("Rehearsal: nothing is sent to anybody through %s, and the draft is discarded", account)
        elif is_test_run(context) and not self._was_deferred:
            self.log.warning(
                "THIS TEST RUN SENDS FOR REAL through %s: so do `airflow dags test`, `airflow tasks test` and "
                "`dag.test()`, once for each run that they make. To leave the send out, set "
                "AIRFLOW__OUTBOUND_TRANSFER__REHEARSE=True",
                account,
            )

    @contextmanager
    def finishing_rehearsal(self, client: Client, context: Context, row: Row) -> Iterator[None]:
        """Skip the task if the connection rehearses: what runs after a delivery is not to run. Its result is the draft.

        :raises RehearsalFinished: instead of the send.
        """

        try:
            yield
        except Rehearsed:
            draft = client.get_transfer(row.memory.transfer_id)
            result = {**to_delivery_result(draft, row.memory), "status": REHEARSED}
            context["ti"].xcom_push("return_value", result)
            raise RehearsalFinished(
                f"Rehearsal: transfer '{draft.id}' with {pluralize(len(draft.files or ()), 'file')} would be sent to "
                f"{pluralize(len(draft.recipients), 'recipient')} now. Nothing is sent, and the draft is discarded"
            ) from None

    def possibly_sent_id(self, context: Context) -> str:
        """Return the id of what this task has sent or may have sent; "" if it has sent nothing."""
        from outbound_transfer.delivery.decision import Phase
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import read_memory

        with suppress(Exception):  # what is wrong may be the table
            memory = self._row.memory if self._row else read_memory(open_rows(), TaskTry.of(context).task)
            return memory.transfer_id if memory.phase is Phase.SENDING else ""
        return ""

    def _describe_send(self, text: str, context: Context) -> str:
        """Return the text of an error with what was sent, or may have been; "" if it says so, or nothing was."""
        if self._is_sent and self._sends:
            return f"Transfer {self._sends} was sent. {text}"
        from outbound_transfer.delivery.sending import send_in_doubt_warning

        transfer_id = self.possibly_sent_id(context)
        if not transfer_id or transfer_id in text:
            return ""
        end = "" if text.endswith((".", "!", "?")) or not text else "."
        return f"{text}{end} {send_in_doubt_warning(transfer_id)}".strip()

    def _find_outcome(self, context: Context, error: BaseException) -> TransferOutcome | None:
        transfer_id = self.possibly_sent_id(context) or self._sends
        read = self._last_read or (self._delivery.transfer if self._delivery else None)
        if read and not (read.is_draft and transfer_id):  # a draft may be one no longer
            return TransferOutcome.from_transfer(read, str(error))
        return TransferOutcome(transfer_id, str(error)) if transfer_id else None


def to_delivery_result(transfer: Transfer, memory: Memory) -> dict[str, Any]:
    """Convert a transfer to the mapping that every delivering task returns.

    :return: as :func:`.to_result` returns it, with ``security`` (None for the account's default), and with the
        ``sha256`` of each file in hexadecimal; None if the row's files were erased.
    """
    result = to_result(transfer)
    files = [
        {"id": held.id, "name": name, "size": held.size, "sha256": held.sha256} for name, held in memory.held.items()
    ]
    unknown = [{**file, "sha256": None} for file in result["files"] or ()]
    return {**result, "files": files or unknown, "security": memory.security or None}


def _change_text(error: BaseException, text: str) -> None:
    """Give an error another text, and leave it what it is, which may decide whether the task is retried.

    :raises AirflowException: instead of the error, if its class makes its own text.
    """
    arguments, error.args = error.args, (text,)
    if text not in str(error):
        error.args = arguments
        raise AirflowException(text) from error
