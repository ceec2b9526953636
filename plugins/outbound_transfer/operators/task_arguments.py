"""Airflow's own arguments of every operator and sensor: with them, a type checker finds a misspelled argument."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Required, TypedDict

if TYPE_CHECKING:
    from airflow.sdk import DAG, TaskGroup


class TaskArguments(TypedDict, total=False):
    """Arguments of ``BaseOperator`` in every supported Airflow version."""

    task_id: Required[str]
    task_display_name: str | None
    task_group: TaskGroup | None
    dag: DAG | None
    default_args: dict[str, Any] | None
    params: MutableMapping[str, Any] | None
    owner: str
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: Any
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    trigger_rule: str
    priority_weight: int
    weight_rule: Any
    queue: str
    pool: str | None
    pool_slots: int
    sla: timedelta | None
    execution_timeout: timedelta | None
    on_execute_callback: Any
    on_failure_callback: Any
    on_success_callback: Any
    on_retry_callback: Any
    on_skipped_callback: Any
    pre_execute: Any
    post_execute: Any
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Any
    outlets: Any
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class SensorArguments(TaskArguments, total=False):
    """Arguments of ``BaseSensorOperator``, except ``poke_interval`` and ``timeout``."""

    soft_fail: bool
    mode: str
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool
