"""The ledger in a worker: open while a task works, and waited for only at the task's very end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.ledger.counts import CALLS
from outbound_transfer.ledger.journal import Journal, in_a_line
from outbound_transfer.ledger.place import place, tables_of
from outbound_transfer.ledger.writer import Writer
from outbound_transfer.warehouse.deliveries import DeliveryTables, Note, Task
from outbound_transfer.warehouse.progress import feed_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

#: Seconds that the end of a task, or its deferral, waits for the ledger at most.
LAST_WAIT: Final = 3.0


@contextmanager
def recording(operator: Any, context: Context, hook: OutboundTransferHook) -> Iterator[Journal]:
    """A journal of what the task does in the block, which goes to the ledger as it comes; and the calls it made.

    Whatever is wrong with the ledger is a line in the log, and no more.

    :param operator: ``delivers`` says whether its task makes deliveries, or only sees them.
    """
    opened = _open(operator, context, hook)
    if opened is None:
        yield Journal()
        return
    writer, journal = opened
    try:
        yield journal
    except BaseException as error:
        if not _is_pause(error):
            journal.failed(error)
        raise
    finally:
        if calls := CALLS.take():
            writer.put("calls", lambda tables: tables.count(calls))
        if not writer.close(LAST_WAIT):
            operator.log.warning("The delivery ledger does not answer; what it has not taken is left out")


def _open(operator: Any, context: Context, hook: OutboundTransferHook) -> tuple[Writer[DeliveryTables], Journal] | None:
    if (where := place()) is None:
        return None
    try:
        # Not in the thread: a lookup goes over the one socket to Airflow that the task's own requests take too.
        connection = hook.get_connection(where.conn_id)
        account = feed_name(hook.get_conn().settings.base_url)
    except Exception as error:
        operator.log.warning("No delivery ledger is kept: %s", in_a_line(error))
        return None
    writer = Writer(partial(tables_of, where, connection), operator.log)

    def put(note: Note) -> None:
        writer.put(note.transfer_id, lambda tables: tables.save(note))

    return writer, Journal(account, _task(operator, context), put)


def _task(operator: Any, context: Context) -> Task:
    ti = context["ti"]
    return Task(
        operator.outbound_transfer_conn_id,
        ti.dag_id,
        ti.task_id,
        ti.run_id,
        ti.map_index if ti.map_index is not None else -1,
        ti.try_number,
        delivers=operator.delivers,
    )


def _is_pause(error: BaseException) -> bool:
    """Whether the task goes on later, or was skipped as asked for: neither is an error."""
    from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException, TaskDeferred

    from outbound_transfer.operators.base import LongWait

    return isinstance(error, LongWait | TaskDeferred | AirflowSkipException | AirflowRescheduleException)
