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
    "HAS_STATE_STORES", "NEVER_EXPIRE", "AirflowException", "AirflowFailException", "AirflowNotFoundException",
    "AirflowRescheduleException", "AirflowSensorTimeout", "AirflowSkipException", "AirflowTaskTimeout",
    "BaseHook", "BaseNotifier", "DagBag", "TaskAwaitingInput", "TaskDeferralError", "TaskDeferralTimeout",
    "TaskDeferred", "conf", "determine_kwargs", "mask_secret", "redact", "timezone",
]  # fmt: skip

if not hasattr(exceptions, "TaskDeferred"):  # before 3.2
    from airflow import exceptions

AirflowException = exceptions.AirflowException
AirflowFailException = exceptions.AirflowFailException
AirflowNotFoundException = exceptions.AirflowNotFoundException
AirflowRescheduleException = exceptions.AirflowRescheduleException
AirflowSensorTimeout = exceptions.AirflowSensorTimeout
AirflowSkipException = exceptions.AirflowSkipException
AirflowTaskTimeout = exceptions.AirflowTaskTimeout
TaskDeferralError = exceptions.TaskDeferralError
TaskDeferralTimeout = exceptions.TaskDeferralTimeout
TaskDeferred = exceptions.TaskDeferred

#: Raised by a task that waits for a person; before 3.3, a trigger waits.
TaskAwaitingInput = getattr(exceptions, "TaskAwaitingInput", TaskDeferred)

try:
    from airflow.sdk import conf
except ImportError:  # before 3.2
    from airflow.configuration import conf

try:
    from airflow.sdk.bases.decorator import determine_kwargs
except ImportError:  # before 3.2
    from airflow.utils.operator_helpers import determine_kwargs

try:
    from airflow.sdk import NEVER_EXPIRE
except ImportError:  # before 3.3
    NEVER_EXPIRE = None

#: Whether Airflow keeps the state of tasks and of assets: from 3.3 on.
HAS_STATE_STORES = NEVER_EXPIRE is not None


def __getattr__(name: str) -> Any:
    """Import ``DagBag`` when a test asks for it, as it takes a second."""
    if name != "DagBag":
        raise AttributeError(name)
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before 3.2
        from airflow.models.dagbag import DagBag
    return DagBag
