"""A person who approves or rejects a delivery in the pages of a real Airflow."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import DemoFailed, Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.repository import REPOSITORY
from support.timeouts import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.e2e

DAG = "approve_delivery"


class ApprovalStack(ManySandboxesStack):
    """With the example DAG, and one sandbox."""

    def start(self) -> None:
        self.dags = self.folder / "dags"  # type: ignore[misc]
        self.dags.mkdir()
        shutil.copy(REPOSITORY / "dags" / "approve_delivery.py", self.dags)
        super().start()

    def connections(self) -> dict[str, str]:
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection()
        }

    def trigger(self) -> str:
        return self.airflow.trigger(DAG, {"files": str(self.folder / "outbox" / "*.csv")})

    def task(self, run_id: str) -> Any:
        return self.airflow.tasks(DAG, run_id)[0]

    def wait_for(self, run_id: str, *states: str) -> Any:
        """The task instance, as soon as it has one of the states."""
        return eventually(lambda: (found := self.task(run_id))["state"] in states and found, interval=0.5)

    def request(self, run_id: str) -> Any:
        """What Airflow shows of the request."""
        return self.airflow.call("GET", f"{self._path(run_id)}/hitlDetails")

    def answer(self, run_id: str, option: str) -> None:
        # Airflow takes a task for failed that goes on before the end of its process has reached the scheduler.
        time.sleep(8)
        body = {"chosen_options": [option], "params_input": {}}
        self.airflow.call("PATCH", f"{self._path(run_id)}/hitlDetails", body)

    @staticmethod
    def _path(run_id: str) -> str:
        return f"dags/{DAG}/dagRuns/{run_id}/taskInstances/deliver/-1"

    def clear(self, run_id: str) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": ["deliver"]}
        self.airflow.call("POST", f"dags/{DAG}/clearTaskInstances", body)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApprovalStack]:
    with running_stack(tmp_path_factory.mktemp("approval") / "stack", Reporter(), 1, kind=ApprovalStack) as stack:
        stack.wait_for_dags(stack.airflow, DAG)
        yield stack


@pytest.fixture
def service(stack: ApprovalStack) -> Sandbox:
    return stack.sandboxes[0]


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1180, "height": 900})
    context.set_default_timeout(TEST_TIMEOUT * 1000)
    yield context.new_page()
    context.close()


def test_a_person_approves_in_the_browser(stack: ApprovalStack, service: Sandbox, page: Page) -> None:
    before = len(service.sent())
    run_id = stack.trigger()
    stack.wait_for(run_id, "awaiting_input")
    assert len(service.sent()) == before

    page.goto(f"{stack.airflow.url}/dags/{DAG}/runs/{quote(run_id, safe='')}/tasks/deliver/required_actions")
    approve = page.get_by_role("button", name="Approve")
    approve.wait_for()
    for text in ("please find the statements", "ann@example.com", "bob@example.com", "a.csv", "1,000"):
        expect(page.get_by_text(text).first).to_be_visible()
    keep_picture(page, "approval.png")
    approve.click()

    stack.wait_for(run_id, "success")
    assert len(service.sent()) == before + 1
    approval = stack.airflow.xcom(DAG, run_id, "deliver", key="approval")
    assert approval["by"]
    assert stack.request(run_id)["options"] == [f"Approve {approval['code']}", "Reject"]


def test_a_rejection_and_a_clear_with_other_content(stack: ApprovalStack, service: Sandbox) -> None:
    before = len(service.sent())
    run_id = stack.trigger()
    stack.wait_for(run_id, "awaiting_input")
    first = stack.request(run_id)
    stack.answer(run_id, "Reject")
    stack.wait_for(run_id, "skipped")

    (stack.folder / "outbox" / "a.csv").write_text("corrected")
    stack.clear(run_id)
    eventually(lambda: stack.task(run_id)["try_number"] == 2, interval=0.5)
    stack.wait_for(run_id, "awaiting_input")
    second = stack.request(run_id)
    stack.answer(run_id, second["options"][0])
    state = stack.wait_for(run_id, "success", "failed")["state"]
    # Airflow up to 3.3 goes on showing the first request: its approval is none of the corrected file.
    is_refreshed = second["options"] != first["options"]
    assert (state, len(service.sent()) - before) == (("success", 1) if is_refreshed else ("failed", 0))


def test_the_second_answer_is_refused(stack: ApprovalStack, service: Sandbox) -> None:
    run_id = stack.trigger()
    stack.wait_for(run_id, "awaiting_input")
    stack.answer(run_id, "Reject")
    with pytest.raises(DemoFailed, match="409"):
        stack.answer(run_id, stack.request(run_id)["options"][0])
    stack.wait_for(run_id, "skipped")


def keep_picture(page: Page, name: str) -> None:
    """Keeps a picture, as docs/operators.md shows it, where $OUTBOUND_TRANSFER_SCREENSHOTS says."""
    if folder := os.environ.get("OUTBOUND_TRANSFER_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / name, clip={"x": 300, "y": 60, "width": 880, "height": 810})
