"""Where a task remembers what its tries did: Airflow's task state store, a table, or Variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.airflow_compat.task_attempt import TaskAttempt
from outbound_transfer.warehouse.config import get_option, open_states, state_conn_id

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.delivery.state import StateStore


def state_store(context: Context) -> StateStore:
    """Return what keeps the state of the running task from try to try.

    The table of the connection ``state_conn_id``, where it is configured; otherwise Airflow's task state store; before
    Airflow 3.3, which has none, the table of the ledger's connection, and Variables where there is no ledger.

    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    native = context.get("task_state_store")
    if native is not None and not get_option("state_conn_id"):
        return native
    attempt = TaskAttempt.of(context)
    if conn_id := state_conn_id():
        from outbound_transfer.warehouse.task_state import TaskState

        return TaskState(open_states(conn_id), attempt)

    from airflow.sdk.execution_time import task_runner

    from outbound_transfer.airflow_compat.variables import VariableState

    return VariableState(attempt, context["ti"].id, lambda message: task_runner.SUPERVISOR_COMMS.send(message))
