"""A person approves a draft in Airflow's own page, and it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from e2e.airflow.test_drafts import APPROVAL, DraftsStack
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import running_stack
from support.timeouts import TEST_TIMEOUT

pytestmark = pytest.mark.e2e


def test_the_button_approves_what_is_sent(chromium: Browser, tmp_path: Path) -> None:
    with running_stack(tmp_path / "stack", Reporter(), 1, kind=DraftsStack) as stack:
        stack.wait_for_dags(stack.airflow, APPROVAL)
        run_id = stack.ask()
        approve, reject = stack.options(run_id)
        with chromium.new_context(base_url=stack.airflow.url, locale="en-US") as context:
            context.set_default_timeout(TEST_TIMEOUT * 1000)
            page = context.new_page()
            page.goto(f"/dags/{APPROVAL}/runs/{run_id}/tasks/approve/required_actions")
            expect(page.get_by_role("button", name=reject)).to_be_visible()
            expect(page.get_by_text("ann@example.com")).to_be_visible()
            stack.sandboxes[0].assert_nothing_sent()
            page.get_by_role("button", name=approve).click()
            assert {*stack.airflow.finish(APPROVAL, run_id).values()} == {"success"}
        stack.sandboxes[0].assert_sent_once()
