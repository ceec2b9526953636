"""Decide which errors fail a task without a retry: the one place that turns them into Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.protocol.errors import CallError, FileConflict, InvalidDelivery, NameRefused, WrongTransfer


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Fail the task without a retry if a retry would fail in the same way (service-api.md, R50).

    :raises AirflowFailException: instead of such an error, with its text.
    """
    # Loaded with the first task: a DAG file that is only parsed does not need them.
    from outbound_transfer.client.settings import InvalidSettings
    from outbound_transfer.delivery.comparison import AlreadyDelivered
    from outbound_transfer.delivery.task_run import TaskNotRunning

    try:
        yield
    except (
        InvalidDelivery,
        NameRefused,
        FileConflict,
        WrongTransfer,
        AlreadyDelivered,
        TaskNotRunning,
        InvalidSettings,
    ) as error:
        raise AirflowFailException(str(error)) from error
    except CallError as error:
        if error.is_transient:
            raise
        raise AirflowFailException(str(error)) from error


@contextmanager
def fail_without_retry_on_warehouse_errors() -> Iterator[None]:
    """Fail the task as :func:`fail_without_retry` does, and on the warehouse's errors too.

    A cursor that another run moved, and a file that is in use, are left to the task's retries.
    """
    from outbound_transfer.warehouse.errors import CursorMoved, WarehouseBusy, WarehouseError

    try:
        with fail_without_retry():
            yield
    except (CursorMoved, WarehouseBusy):
        raise
    except WarehouseError as error:
        raise AirflowFailException(str(error)) from error
