"""A person who approves or rejects a delivery in the pages of a real Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.approvals import DAG, ApprovalStack
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import running_stack
from support.timeouts import TEST_TIMEOUT

pytestmark = pytest.mark.e2e


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


def keep_picture(page: Page, name: str) -> None:
    """Keeps a picture, as docs/operators.md shows it, where $OUTBOUND_TRANSFER_SCREENSHOTS says."""
    if folder := os.environ.get("OUTBOUND_TRANSFER_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / name, clip={"x": 300, "y": 60, "width": 880, "height": 810})
