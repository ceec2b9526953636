"""Fail a task without a retry where one cannot help, and add the transfer's outcome to an error or a skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Final

import msgspec

from outbound_transfer.airflow_compat import names
from outbound_transfer.client import errors as client
from outbound_transfer.client.models import OUTCOME_KEY, TransferOutcome, to_builtins
from outbound_transfer.delivery.attempt import TaskTry
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.observability import metrics
from outbound_transfer.store import errors as store

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.delivery.row import Row
    from outbound_transfer.operators.wait import Pickup

#: Errors that a retry would raise again.
_FINAL: Final = (
    client.AlreadyDelivered,
    client.FileConflict,
    client.InvalidDelivery,
    client.InvalidSettings,
    client.TaskNotRunning,
    client.WrongTransfer,
    store.NoDeliveriesTable,
    store.UnsupportedDatabase,
    store.UnusableDatabase,
    store.WarehouseError,
)


class DeferRequested(Exception):
    """Control flow, not an error: asks the task to wait in deferred mode instead of holding its worker slot."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"waiting {seconds:.0f} s")
        self.seconds = seconds


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Raise an AirflowFailException instead of an error that a retry would raise again (service-api.md, R50)."""
    try:
        yield
    except Exception as error:
        if not fails_without_retry(error):
            raise
        # Keeps the class, for callbacks, but not the message, which the log would show twice.
        cause = copy(error)
        cause.args = ()
        raise names.AirflowFailException(str(error)) from cause.with_traceback(error.__traceback__)


def fails_without_retry(error: BaseException) -> bool:
    """Return whether a retry would fail in the same way; a moved cursor or a busy warehouse is worth a retry."""
    if isinstance(error, client.CallError):
        return not error.is_transient
    return isinstance(error, _FINAL) and not isinstance(error, store.CursorMoved | store.WarehouseBusy)


@contextmanager
def fail_without_retry_on_warehouse_errors() -> Iterator[None]:
    """Fail as :func:`fail_without_retry` does, but without a driver's error message, which may quote the row."""
    from sqlalchemy.exc import DBAPIError

    try:
        with fail_without_retry():
            yield
    except DBAPIError as error:
        raise store.DatabaseFailed(f"The database failed with {store.words_of(error)}") from None


class Report:
    """The transfer as far as this process of a task knows it, for errors. Fields are set as they become known.

    :ivar reader: object with the transfer as it was last read; None if the task does not read it.
    :ivar transfer_id: id of the draft that the task is to send, or of the transfer; "" before it is known.
    :ivar is_sent: whether the transfer was sent; a later failure is then not a failed delivery.
    """

    def __init__(self, context: Context, conn_id: str, log: Logger, *, sends: bool, is_sent: bool) -> None:
        self._context, self._conn_id, self._log, self._sends, self.is_sent = context, conn_id, log, sends, is_sent
        self.row: Row | None = None
        self.reader: Delivery | Pickup | None = None
        self.transfer_id = ""

    @contextmanager
    def of_errors(self) -> Iterator[None]:
        """Report an error or a skip that ends the block. An error names the transfer that was sent or is in doubt."""
        from outbound_transfer.delivery.shown import emit_in_doubt, show_error

        with report_outcome(self._context, self._outcome):
            try:
                yield
            except (names.TaskDeferred, names.AirflowRescheduleException, names.AirflowSkipException):
                raise
            except BaseException as error:
                in_doubt = self._find_in_doubt()
                if not self.is_sent:
                    metrics.DELIVERIES.emit(outcome="in_doubt" if in_doubt else "failed", conn_id=self._conn_id)
                if self.row:
                    show_error(self.row.rows, self.row.key, error)
                self._name_transfer(error, in_doubt)
                raise
            finally:
                emit_in_doubt(self._conn_id)

    def _outcome(self, error: BaseException) -> TransferOutcome | None:
        transfer_id, transfer = self._find_in_doubt() or self.transfer_id, self.reader and self.reader.transfer
        if transfer and not (transfer.is_draft and transfer_id):  # a draft may have been sent since
            return TransferOutcome.from_transfer(transfer, str(error))
        return TransferOutcome(transfer_id, str(error)) if transfer_id else None

    def _find_in_doubt(self) -> str:
        """Return the id of the transfer that this task sent, or whose send is in doubt; "" if there is none."""
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import read_memory

        with suppress(Exception):  # the table itself may be the problem
            if self._sends:
                memory = self.row.memory if self.row else read_memory(open_rows(), TaskTry.of(self._context).task)
                return memory.transfer_id if memory.phase is Phase.SENDING else ""
        return ""

    def _name_transfer(self, error: BaseException, in_doubt: str) -> None:
        """Add the transfer that was sent, or is in doubt, to an error's message; keep the error's class."""
        text = str(error)
        if self.is_sent and self.transfer_id:
            text = f"Transfer {self.transfer_id} was sent. {text}"
        elif in_doubt and (in_doubt not in text or isinstance(error, client.CallError)):
            end = "" if text.endswith((".", "!", "?")) or not text else "."
            doubt = f"Transfer {in_doubt} may have been sent; the next attempt checks before it sends."
            text = f"{text}{end} {doubt}".strip()
        else:
            return
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._log.error("%s", text)  # Airflow does not show the text of SystemExit
        if isinstance(error, SystemExit):
            return
        arguments, error.args = error.args, (text,)
        if text not in str(error):  # its class builds the message itself
            error.args = arguments
            raise names.AirflowException(text) from error


@contextmanager
def report_outcome(context: Context, find_outcome: Callable[[BaseException], TransferOutcome | None]) -> Iterator[None]:
    """Push the transfer's outcome as an XCom if an error or a skip ends the block.

    The error gets it as its attribute ``outcome``, with the shortcuts ``transfer_id`` and ``not_picked_up``.
    """
    try:
        yield
    except names.AirflowRescheduleException:
        raise
    except (Exception, names.AirflowTaskTimeout) as error:
        with suppress(Exception):  # the error matters more
            if outcome := find_outcome(error):
                # The message may be a database driver's; an XCom is not masked, unlike a log.
                outcome = msgspec.structs.replace(outcome, reason=str(names.redact(outcome.reason)))
                vars(error).update(
                    outcome=outcome, transfer_id=outcome.transfer_id, not_picked_up=outcome.not_picked_up
                )
                context["ti"].xcom_push(OUTCOME_KEY, to_builtins(outcome))
        raise
