"""What a failed or skipped task tells of its transfer: in its error, to callbacks, in metrics, on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from outbound_transfer.airflow_compat.names import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
    redact,
)
from outbound_transfer.client.errors import CallError
from outbound_transfer.client.models import to_builtins
from outbound_transfer.client.outcomes import OUTCOME_KEY, TransferOutcome
from outbound_transfer.observability import metrics

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.row import Row

#: The task goes on later: no errors.
_GOES_ON: Final = (TaskDeferred, AirflowRescheduleException)


class Report:
    """What one process of a task does with a transfer. Its fields are set as they become known.

    :param sends: whether the task sends a transfer, and does not only prepare it.
    :param counts: whether an error is counted as a failed delivery.
    :ivar row: of the delivery.
    :ivar transfer_id: of the draft that the task is to send, or of the transfer; "" before it is known.
    :ivar transfer: as it was last read.
    :ivar is_sent: whether the transfer was sent: what fails from then on is no delivery.
    """

    def __init__(self, context: Context, conn_id: str, log: Logger, *, sends: bool, counts: bool) -> None:
        self._context, self._conn_id, self._log, self._sends, self._counts = context, conn_id, log, sends, counts
        self.row: Row | None = None
        self.transfer_id = ""
        self.transfer: Transfer | None = None
        self.is_sent = False

    @contextmanager
    def of_errors(self) -> Iterator[None]:
        """Report an error or a skip that ends the block. An error's text names what was sent, or may have been."""
        from outbound_transfer.delivery.shown import emit_in_doubt

        with report_outcome(self._context, self.outcome):
            try:
                yield
            except (*_GOES_ON, AirflowSkipException):
                raise
            except BaseException as error:
                self._count(error)
                self._name_transfer(error)
                raise
            finally:
                emit_in_doubt(self._conn_id)

    def outcome(self, error: BaseException) -> TransferOutcome | None:
        """Return what became of the transfer; None if there is none yet."""
        transfer_id = self.possibly_sent_id() or self.transfer_id
        if self.transfer and not (self.transfer.is_draft and transfer_id):  # a draft may be one no longer
            return TransferOutcome.from_transfer(self.transfer, str(error))
        return TransferOutcome(transfer_id, str(error)) if transfer_id else None

    def possibly_sent_id(self) -> str:
        """Return the id of what this task has sent or may have sent; "" if it has sent nothing."""
        from outbound_transfer.delivery.attempt import TaskTry
        from outbound_transfer.delivery.decision import Phase
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import read_memory

        if not self._sends:
            return ""
        with suppress(Exception):  # what is wrong may be the table
            memory = self.row.memory if self.row else read_memory(open_rows(), TaskTry.of(self._context).task)
            return memory.transfer_id if memory.phase is Phase.SENDING else ""
        return ""

    def _count(self, error: BaseException) -> None:
        from outbound_transfer.delivery.shown import show_error

        if self._counts and not self.is_sent:
            outcome = "in_doubt" if self.possibly_sent_id() else "failed"
            metrics.DELIVERIES.emit(outcome=outcome, conn_id=self._conn_id)
        if self.row:
            show_error(self.row.rows, self.row.key, error)

    def _name_transfer(self, error: BaseException) -> None:
        if not (text := self._describe_send(error)):
            return
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._log.error("%s", text)  # Airflow does not show the text of SystemExit
        if not isinstance(error, SystemExit):
            _change_text(error, text)

    def _describe_send(self, error: BaseException) -> str:
        """Return the text of an error with what was sent, or may have been; "" if it says so, or nothing was."""
        from outbound_transfer.delivery.sending import send_in_doubt_warning

        text = str(error)
        if self.is_sent and self.transfer_id:
            return f"Transfer {self.transfer_id} was sent. {text}"
        transfer_id = self.possibly_sent_id()
        if not transfer_id or (transfer_id in text and not isinstance(error, CallError)):
            return ""
        end = "" if text.endswith((".", "!", "?")) or not text else "."
        return f"{text}{end} {send_in_doubt_warning(transfer_id)}".strip()


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


def _change_text(error: BaseException, text: str) -> None:
    """Give an error another text, and leave it what it is, which may decide whether the task is retried.

    :raises AirflowException: instead of the error, if its class makes its own text.
    """
    arguments, error.args = error.args, (text,)
    if text not in str(error):
        error.args = arguments
        raise AirflowException(text) from error
