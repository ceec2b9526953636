"""Values that a task keeps from attempt to attempt beside its delivery, such as the deadline of a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.delivery.place import open_rows
from outbound_transfer.delivery.row import Row
from outbound_transfer.warehouse.config import get_option

if TYPE_CHECKING:
    from airflow.sdk import Context


class StateStore(Protocol):
    """The part of Airflow's task state store that is used."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class Notes:
    """The notes in the row of a task instance."""

    def __init__(self, row: Row, by: TaskTry) -> None:
        self._row, self._by = row, by

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; the default if there is none, or it is of a run that was deleted and made again."""
        started, value = self._row.read()[1].notes.get(key, ("", default))
        return default if self._by.is_fresh and started != self._by.run_started_at else value

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:  # noqa: ARG002  # the row stays
        """Store a value that JSON can represent."""
        note = (self._by.run_started_at, value)
        self._row.change(lambda memory: replace(memory, notes={**memory.notes, key: note}))


def state_store(context: Context) -> StateStore:
    """Return what keeps the values of the running task.

    Airflow's task state store, where Airflow has one (from 3.3 on) and ``deliveries_conn_id`` is not set.

    :raises NoDeliveriesTable: neither it nor a table of deliveries is there.
    """
    native: StateStore | None = context.get("task_state_store")
    if native is not None and not get_option("deliveries_conn_id"):
        return native
    by = TaskTry.of(context)
    return Notes(Row.of_task(open_rows(), by.task), by)
