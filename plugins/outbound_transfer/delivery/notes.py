"""Values that a task keeps from attempt to attempt beside its delivery, such as the deadline of a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.delivery.place import open_rows
from outbound_transfer.delivery.row import Row

if TYPE_CHECKING:
    from airflow.sdk import Context


class StateStore(NamedTuple):
    """The notes in the row of a task instance."""

    row: Row
    by: TaskTry

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; the default if there is none, or it is of a run that was deleted and made again."""
        started, value = self.row.read()[1].notes.get(key, ("", default))
        return default if self.by.is_fresh and started != self.by.run_started_at else value

    def set(self, key: str, value: Any) -> None:
        """Store a value that JSON can represent."""
        note = (self.by.run_started_at, value)
        self.row.change(lambda memory: replace(memory, notes={**memory.notes, key: note}))


def state_store(context: Context) -> StateStore:
    """Return what keeps the values of the running task.

    :raises NoDeliveriesTable: there is no table of deliveries.
    """
    by = TaskTry.of(context)
    return StateStore(Row.of_task(open_rows(), by.task), by)
