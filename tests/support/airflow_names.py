"""Names of Airflow that have moved between 3.1.8 and 3.4: tests import them from here.

Each is looked for where the newest version has it, then where older versions do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier, exceptions, timezone
from airflow.sdk.log import mask_secret, redact

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

__all__ = [
    "BaseHook", "BaseNotifier", "DagBag", "TaskAwaitingInput", "mask_secret", "redact", "timezone",
]  # fmt: skip

if not hasattr(exceptions, "TaskDeferred"):  # before 3.2
    from airflow import exceptions

#: Raised by a task that waits for a person. Before 3.3, a trigger waits, and the task is deferred.
TaskAwaitingInput = getattr(exceptions, "TaskAwaitingInput", exceptions.TaskDeferred)


def __getattr__(name: str) -> Any:
    """Any of Airflow's exceptions, or ``DagBag``, which takes a second to import."""
    if name != "DagBag":
        return getattr(exceptions, name)
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before 3.2
        from airflow.models.dagbag import DagBag
    return DagBag
