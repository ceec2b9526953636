"""Airflow's names, some of which are elsewhere in 3.1 than in later versions."""

# mypy: disable-error-code="no-redef, attr-defined, import-not-found, assignment"

from __future__ import annotations

from typing import Any

from airflow import __version__
from airflow.configuration import conf, get_airflow_home
from airflow.sdk import BaseHook, timezone
from airflow.sdk.log import mask_secret, redact

try:
    from airflow.sdk import exceptions
    from airflow.sdk.bases.decorator import determine_kwargs
except ImportError:  # before 3.2
    from airflow import exceptions
    from airflow.utils.operator_helpers import determine_kwargs

__all__ = ["BaseHook", "conf", "determine_kwargs", "get_airflow_home", "mask_secret", "redact", "timezone"]

AirflowException = exceptions.AirflowException
AirflowFailException = exceptions.AirflowFailException
AirflowNotFoundException = exceptions.AirflowNotFoundException
AirflowRescheduleException = exceptions.AirflowRescheduleException
AirflowSensorTimeout = exceptions.AirflowSensorTimeout
AirflowSkipException = exceptions.AirflowSkipException
AirflowTaskTimeout = exceptions.AirflowTaskTimeout
TaskDeferred = exceptions.TaskDeferred
#: Frees the worker until a person answers; before 3.3, a trigger waits for the answer.
TaskAwaitingInput = getattr(exceptions, "TaskAwaitingInput", TaskDeferred)

#: Whether an asset event can be of a partition.
HAS_PARTITIONS = tuple(map(int, __version__.split(".")[:2])) >= (3, 2)


def get_stats() -> Any:
    """Return the object with Airflow's ``incr``, ``gauge`` and ``timing``."""
    try:
        from airflow.sdk.observability import stats
    except ImportError:  # before 3.2
        from airflow import stats
    return stats if hasattr(stats, "incr") else stats.Stats  # functions from 3.3 on
