"""Decide which errors fail a task without a retry: the one place that turns them into Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.client.errors import (
    AlreadyDelivered,
    CallError,
    FileConflict,
    InvalidDelivery,
    TaskNotRunning,
    WrongTransfer,
)


class DeferRequested(Exception):
    """Control flow, not an error: asks the task to wait in deferred mode instead of holding its worker slot."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"waiting {seconds:.0f} s")
        self.seconds = seconds


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Fail the task without a retry if a retry would fail in the same way (service-api.md, R50).

    :raises AirflowFailException: instead of such an error, with its text.
    """
    try:
        yield
    except Exception as error:
        if fails_without_retry(error):
            raise AirflowFailException(str(error)) from _without_text(error)
        raise


def _without_text(error: Exception) -> Exception:
    """Return an error of the same class, for callbacks; with its text as well, a log would have that twice."""
    cause = copy(error)
    cause.args = ()
    return cause.with_traceback(error.__traceback__)


def fails_without_retry(error: BaseException) -> bool:
    """Return whether a retry would fail in the same way (service-api.md, R50)."""
    # Loaded with the first task: a DAG file that is only parsed does not need them.
    from outbound_transfer.client.errors import InvalidSettings
    from outbound_transfer.store.errors import NoDeliveriesTable, UnsupportedDatabase, UnusableDatabase

    if isinstance(error, CallError):
        return not error.is_transient
    final = (InvalidDelivery, FileConflict, WrongTransfer, AlreadyDelivered, TaskNotRunning)
    return isinstance(error, (*final, InvalidSettings, NoDeliveriesTable, UnsupportedDatabase, UnusableDatabase))


@contextmanager
def fail_without_retry_on_warehouse_errors() -> Iterator[None]:
    """Fail the task as :func:`fail_without_retry` does, and on the warehouse's errors too.

    A cursor that another run moved, a file that is in use, and a database that fails are left to the task's retries.

    :raises DatabaseFailed: instead of an error of the database, whose text may quote the row.
    """
    from sqlalchemy.exc import DBAPIError

    from outbound_transfer.store.errors import CursorMoved, DatabaseFailed, WarehouseBusy, WarehouseError, words_of

    try:
        with fail_without_retry():
            yield
    except (CursorMoved, WarehouseBusy):
        raise
    except DBAPIError as error:
        raise DatabaseFailed(f"The database failed with {words_of(error)}") from None
    except WarehouseError as error:
        raise AirflowFailException(str(error)) from _without_text(error)
