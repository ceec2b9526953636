"""Names of Airflow that have moved, as the newest version has them.

Each is looked for there first, and where older versions have it otherwise: what matters is the name, not the version.
"""

# mypy: disable-error-code="no-redef, attr-defined, import-not-found, assignment"

from __future__ import annotations

from typing import Any

from airflow import __version__
from airflow.configuration import get_airflow_home
from airflow.sdk import BaseHook, BaseNotifier, exceptions, timezone
from airflow.sdk.log import mask_secret, redact

__all__ = [
    "HAS_PARTITIONS",
    "BaseHook",
    "BaseNotifier",
    "conf",
    "determine_kwargs",
    "get_airflow_home",
    "get_hook_lineage_collector",
    "get_stats",
    "mask_secret",
    "redact",
    "timezone",
]

try:
    from airflow.sdk import conf
except ImportError:  # before 3.2
    from airflow.configuration import conf

if not hasattr(exceptions, "TaskDeferred"):  # before 3.2
    from airflow import exceptions

AirflowException = exceptions.AirflowException
AirflowFailException = exceptions.AirflowFailException
AirflowRescheduleException = exceptions.AirflowRescheduleException
AirflowSensorTimeout = exceptions.AirflowSensorTimeout
AirflowSkipException = exceptions.AirflowSkipException
AirflowTaskTimeout = exceptions.AirflowTaskTimeout
TaskDeferred = exceptions.TaskDeferred

try:
    from airflow.sdk.bases.decorator import determine_kwargs
except ImportError:  # before 3.2
    from airflow.utils.operator_helpers import determine_kwargs

#: Whether an asset event can be of a partition.
HAS_PARTITIONS = tuple(map(int, __version__.split(".")[:2])) >= (3, 2)


def get_hook_lineage_collector() -> Any:
    """Return Airflow's collector of hook lineage, which older versions import half of Airflow for."""
    try:
        from airflow.sdk.lineage import get_hook_lineage_collector
    except ImportError:  # before 3.2
        from airflow.lineage.hook import get_hook_lineage_collector
    return get_hook_lineage_collector()


def get_stats() -> Any:
    """Return what has Airflow's ``incr``, ``gauge`` and ``timing``."""
    try:
        from airflow.sdk.observability import stats
    except ImportError:  # before 3.2
        from airflow import stats
    return stats if hasattr(stats, "incr") else stats.Stats  # functions from 3.3 on
