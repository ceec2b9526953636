"""A person who approves or rejects a delivery, by the API of a real Airflow of any version from 3.1 on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbound_transfer.airflow_compat.version import HAS_HUMAN_INPUT
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.approvals import DAG, ApprovalStack
from support.airflow_stack.console import DemoFailed, Reporter
from support.airflow_stack.many_sandboxes import running_stack

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not HAS_HUMAN_INPUT, reason="before 3.1, Airflow cannot ask a person"),
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApprovalStack]:
    with running_stack(tmp_path_factory.mktemp("approvals") / "stack", Reporter(), 1, kind=ApprovalStack) as stack:
        stack.wait_for_dags(stack.airflow, DAG)
        yield stack


@pytest.fixture
def service(stack: ApprovalStack) -> Sandbox:
    return stack.sandboxes[0]


def test_an_approval_after_worker_and_triggerer_were_killed(stack: ApprovalStack, service: Sandbox) -> None:
    before = len(service.sent())
    run_id = stack.trigger()
    request = stack.wait_for_request(run_id)
    stack.restart_triggerer()
    stack.processes.kill("scheduler")  # with the workers that it has
    stack.start_component("scheduler")
    assert len(service.sent()) == before

    stack.answer(run_id, request["options"][0])
    stack.wait_for(run_id, "success")
    assert len(service.sent()) == before + 1
    approval = stack.airflow.xcom(DAG, run_id, "deliver", key="approval")
    assert request["options"] == [f"Approve {approval['code']}", "Reject"]
    assert approval["by"]


def test_a_rejection_and_a_clear_with_other_content(stack: ApprovalStack, service: Sandbox) -> None:
    before = len(service.sent())
    run_id = stack.trigger()
    first = stack.wait_for_request(run_id)
    stack.answer(run_id, "Reject")
    stack.wait_for(run_id, "skipped")

    (stack.folder / "outbox" / "a.csv").write_text("corrected")
    stack.clear(run_id)
    second = stack.wait_for_request(run_id)
    stack.answer(run_id, second["options"][0])
    state = stack.wait_for(run_id, "success", "failed")["state"]
    # Airflow up to 3.3 goes on showing the first request: its approval is none of the corrected file.
    is_refreshed = second["options"] != first["options"]
    assert (state, len(service.sent()) - before) == (("success", 1) if is_refreshed else ("failed", 0))


def test_the_second_answer_is_refused(stack: ApprovalStack, service: Sandbox) -> None:
    run_id = stack.trigger()
    stack.wait_for_request(run_id)
    stack.answer(run_id, "Reject")
    with pytest.raises(DemoFailed, match="409"):
        stack.answer(run_id, stack.request(run_id)["options"][0])
    stack.wait_for(run_id, "skipped")
