"""The ledger in a worker: open while a task runs, flushed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import (
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)
from outbound_transfer.ledger.background_writer import BackgroundWriter
from outbound_transfer.ledger.config import (
    find_ledger_connection,
    load_config,
    open_tables,
)
from outbound_transfer.ledger.recorder import DeliveryRecorder, redacted_summary
from outbound_transfer.warehouse.deliveries import DeliveryFailure, DeliveryTables, DeliveryUpdate, TaskRef

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Maximum number of seconds that the end or the deferral of a task waits for the ledger.
FLUSH_TIMEOUT: Final = 3.0

#: Maximum number of seconds that a send waits until the ledger has it in doubt.
SEND_TIMEOUT: Final = 1.0


@contextmanager
def record_task(
    operator: Any, context: Context, account: Callable[[], str], *, on_in_doubt: Callable[[int], None] | None = None
) -> Iterator[DeliveryRecorder]:
    """Record the deliveries of a task.

    Errors of the ledger are logged and never raised.

    :param operator: its ``owns_delivery`` is False if the task makes no deliveries.
    :param account: returns the account's name; called only if there is a ledger and the task has a transfer.
    :param on_in_doubt: called after the block with :meth:`.DeliveryTables.count_in_doubt` of the task's connection.
    """
    opened = _open(operator, context, account)
    if opened is None:
        yield DeliveryRecorder()
        return
    writer, recorder = opened
    try:
        yield recorder
    except BaseException as error:
        if not is_control_flow(error):
            recorder.record_error(error)
        raise
    finally:
        if on_in_doubt is not None:
            conn_id = operator.outbound_transfer_conn_id
            writer.submit("in doubt", lambda tables: on_in_doubt(tables.count_in_doubt(conn_id)))
        if not writer.close(FLUSH_TIMEOUT):
            operator.log.warning(
                "The delivery ledger did not respond within %.0f s; pending entries are dropped", FLUSH_TIMEOUT
            )


def _open(
    operator: Any, context: Context, account: Callable[[], str]
) -> tuple[BackgroundWriter[DeliveryTables], DeliveryRecorder] | None:
    if (config := load_config()) is None:
        return None
    try:
        connection = find_ledger_connection(config)
    except Exception as error:
        operator.log.warning("The delivery ledger is disabled: %s", redacted_summary(error))
        return None
    writer = BackgroundWriter(partial(open_tables, config, connection), operator.log)

    def submit(update: DeliveryUpdate | DeliveryFailure) -> None:
        writer.submit(update.transfer_id, lambda tables: tables.save(update))

    recorder = DeliveryRecorder(
        account,
        _task(operator, context),
        submit,
        flush=lambda: writer.flush(SEND_TIMEOUT),
        # An operator with a subject makes a draft.
        subject=str(operator.subject or "") if hasattr(operator, "subject") else None,
        naming=config.recipients,
    )
    return writer, recorder


def _task(operator: Any, context: Context) -> TaskRef:
    ti = context["ti"]
    return TaskRef(
        operator.outbound_transfer_conn_id,
        ti.dag_id,
        ti.task_id,
        ti.run_id,
        ti.map_index if ti.map_index is not None else -1,
        ti.try_number,
        owns_delivery=operator.owns_delivery,
    )


def is_control_flow(error: BaseException) -> bool:
    """Return whether the task continues later or was skipped, which is not an error."""
    from outbound_transfer.protocol.errors import DeferRequested

    return isinstance(error, DeferRequested | TaskDeferred | AirflowSkipException | AirflowRescheduleException)
