"""Request the input of a person, and wait for the response without a worker: from Airflow 3.1 on.

Airflow keeps one request for each task instance. When a later try makes another, Airflow up to 3.3 goes on showing the
text and the options of the first one (apache/airflow#73235): a response is about what its option names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from outbound_transfer.airflow_compat.names import TaskAwaitingInput, conf, timezone

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context


def request_input(
    context: Context, subject: str, body: str, options: Sequence[str], assigned_users: Sequence[dict[str, str]]
) -> None:
    """Show a request to people, of whom one chooses one of the options.

    :param body: Markdown.
    :param assigned_users: who may respond, each with ``id`` and ``name``; empty for everybody who may respond at all.
    """
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=list(options),
        subject=subject,
        body=body,
        params={},
        assigned_users=list(assigned_users),  # type: ignore[arg-type]
    )


def await_response(
    operator: BaseOperator,
    context: Context,
    options: Sequence[str],
    timeout: timedelta,
    method_name: str,
    kwargs: dict[str, Any],
) -> NoReturn:
    """Leave the worker until somebody has responded, or nobody within the timeout; then ``method_name`` is called.

    Its argument ``event`` has ``chosen_options`` and ``responded_by_user``, or ``error`` and ``error_type``.
    """
    if TaskAwaitingInput:
        raise TaskAwaitingInput(method_name=method_name, kwargs=kwargs, timeout=timeout)
    from airflow.providers.standard.triggers.hitl import HITLTrigger

    trigger = HITLTrigger(
        ti_id=context["ti"].id, options=list(options), params={}, timeout_datetime=timezone.utcnow() + timeout
    )
    operator.defer(trigger=trigger, method_name=method_name, kwargs=kwargs)


def required_actions_url(context: Context) -> str:
    """Return the address of Airflow's page where people respond to a task's request; "" if it is not configured."""
    ti, base = context["ti"], conf.get("api", "base_url", fallback="").rstrip("/")
    index = f"/mapped/{ti.map_index}" if ti.map_index is not None and ti.map_index >= 0 else ""
    return base and f"{base}/dags/{ti.dag_id}/runs/{ti.run_id}/tasks/{ti.task_id}{index}/required_actions"
