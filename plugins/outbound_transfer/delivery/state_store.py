"""Where a task remembers what its tries did: Airflow's task state store, or a row of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.warehouse.config import get_option, require_memory_place

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.delivery.memory_store import StateStore


def state_store(context: Context) -> StateStore:
    """Return what keeps the memory of the running task from try to try.

    Airflow's task state store, where Airflow has one (from 3.3 on) and ``state_conn_id`` is not set; otherwise the
    task's row of the table, which the try has not claimed: see :class:`.MemoryRow`.

    :raises NoMemoryTable: neither is there.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    native = context.get("task_state_store")
    if native is not None and not get_option("state_conn_id"):
        return native
    return require_memory_place("Before Airflow 3.3, a delivery or a wait").open().of_task(TaskTry.of(context))
