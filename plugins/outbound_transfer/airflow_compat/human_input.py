"""Airflow's requests for the input of a person: make one, and wait for its answer."""

from __future__ import annotations

import signal
import time
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.hitl import HITLOperator

from outbound_transfer.airflow_compat.names import TaskAwaitingInput, TaskDeferred, timezone
from outbound_transfer.airflow_compat.run_state import is_in_process

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Whether Airflow's operator takes the timeout by its name; before standard 1.12.2 it was ``execution_timeout``.
TAKES_RESPONSE_TIMEOUT: Final = "response_timeout" in signature(HITLOperator.__init__).parameters


def request_input(task: HITLOperator, context: Context) -> dict[str, Any]:
    """Show a request, and free the worker: ``execute_complete`` gets the answer. In ``dag.test()``, it is returned."""
    if not TAKES_RESPONSE_TIMEOUT:
        task.execution_timeout = task.response_timeout  # that of this task has been set before
    try:
        HITLOperator.execute(task, context)
    except (TaskAwaitingInput, TaskDeferred):
        if not is_in_process():
            raise
    return _answer_in_test(task, context)


def wait_again(task: HITLOperator, context: Context) -> dict[str, Any]:
    """Wait as :func:`request_input` for an earlier attempt's request: a new one would delete its answer."""
    if not is_in_process():
        from airflow.providers.standard.triggers.hitl import HITLTrigger

        assert task.response_timeout is not None
        end = timezone.utcnow() + task.response_timeout
        trigger = HITLTrigger(ti_id=context["ti"].id, options=task.options, params={}, timeout_datetime=end)
        task.defer(trigger=trigger, method_name="execute_complete")
    return _answer_in_test(task, context)


def _answer_in_test(task: HITLOperator, context: Context) -> dict[str, Any]:
    """Return the event of the answer, or of the timeout: ``dag.test()`` resumes and ends no wait for input."""
    from airflow.models.hitl import HITLDetail
    from airflow.utils.session import create_session

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Airflow's own lets the task continue
    assert task.response_timeout is not None
    deadline = time.monotonic() + task.response_timeout.total_seconds()
    while time.monotonic() < deadline:
        with create_session() as session:
            found = session.get(HITLDetail, context["ti"].id)
            if found and found.response_received:
                return {name: getattr(found, name) for name in ("chosen_options", "responded_at", "responded_by_user")}
        time.sleep(0.2)
    return {"error": "Nobody has answered", "error_type": "timeout"}
