"""The form of a connection in Airflow's own UI: what it shows, saves and hides, and its test against the sandbox."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from outbound_transfer.exceptions import InvalidApiKey
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import NoSignals
from support.airflow_stack.processes import Processes
from support.airflow_stack.stack import Airflow, Stack
from support.timeouts import TEST_TIMEOUT

pytestmark = pytest.mark.e2e


#: The extra fields, each with what the form says of it.
EXTRA = {
    "Event API key": "begins with obs_",
    "Timeout (seconds)": "each step of a call",
    "Verify TLS": "only for a test service",
    "Web application": "for links",
}


class ApiServer(Stack):
    """An Airflow of which nothing runs but the API server, and which lets its users test connections."""

    components = ("api-server",)

    def settings(self) -> dict[str, str]:
        return super().settings() | {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}

    def connections(self) -> dict[str, str]:
        return {}


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[Airflow]:
    Stack.wipe(tmp_path)
    processes = Processes(tmp_path, NoSignals())
    try:
        with closing(ApiServer(tmp_path, processes, Reporter())) as stack:
            stack.begin_migration()
            yield stack.start_airflow()
    finally:
        assert processes.stop() == []


@pytest.fixture
def page(chromium: Browser, airflow: Airflow) -> Iterator[Page]:
    with chromium.new_context(
        base_url=airflow.url, locale="en-US", viewport={"width": 1180, "height": 1040}
    ) as context:
        context.set_default_timeout(TEST_TIMEOUT * 1000)
        yield context.new_page()


def test_a_connection_is_filled_in_saved_and_tested(page: Page, airflow: Airflow, sandbox: Sandbox) -> None:
    page.goto("/connections")
    page.get_by_role("button", name="Add Connection").click()
    form = page.get_by_role("dialog")
    form.get_by_role("combobox").click()
    page.keyboard.type("Outbound")
    page.get_by_role("option", name="Outbound Transfer").click()

    fill_in(form, sandbox)
    photograph(page)
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="outbound_transfer_default")).to_be_visible()

    (saved,) = airflow.call("GET", "connections")["connections"]
    extra = {
        "event_api_key": "***",
        "timeout": 60,
        "verify": True,
        "web_url": "https://account.example.com/app",
        "rehearse": False,
    }
    assert (saved["password"], json.loads(saved["extra"])) == ("***", extra)

    page.get_by_role("button", name="Test Connection").click()
    expect(told(page)).to_contain_text("The transfer key is accepted. The event key is accepted.")

    change_key(page, "wrong")
    page.get_by_role("button", name="Test Connection").click()
    expect(told(page).filter(has_text="401 invalid_api_key")).to_contain_text(InvalidApiKey.advice)

    change_key(page, sandbox.transfer_api_key)
    page.get_by_role("button", name="Test Connection").click()
    # The event key has outlived both changes, though the form never had it.
    expect(told(page).filter(has_text="accepted")).to_contain_text("The event key")


def fill_in(form: Locator, sandbox: Sandbox) -> None:
    """What the form asks for, and nothing else."""
    url = urlsplit(sandbox.base_url)
    form.get_by_label("Connection ID").fill("outbound_transfer_default")
    standard = form.get_by_role("region", name="Standard Fields")
    expect(standard.get_by_role("group")).to_have_text(
        [re.compile(f"^{label}") for label in ("Description", "Service address", "Transfer API key", "Port")]
    )
    standard.get_by_label("Service address").fill(f"{url.scheme}://{url.hostname}")
    standard.get_by_label("Port").fill(str(url.port))
    standard.get_by_label("Transfer API key").fill(sandbox.transfer_api_key)
    expect(standard.get_by_label("Transfer API key")).to_have_attribute("type", "password")

    form.get_by_role("button", name="Extra Fields", exact=True).click()
    for label, says in EXTRA.items():
        expect(field(form, label)).to_contain_text(says)
    event_key = field(form, "Event API key").get_by_role("textbox")
    event_key.fill(sandbox.event_api_key)
    expect(event_key).to_have_attribute("type", "password")
    field(form, "Web application").get_by_role("textbox").fill("https://account.example.com/app")


def field(form: Locator, label: str) -> Locator:
    return form.get_by_role("group").filter(has_text=re.compile(f"^{re.escape(label)}"))


def told(page: Page) -> Locator:
    """What Airflow says at the page's lower edge."""
    return page.get_by_role("region", name="Notifications").get_by_role("status").filter(has_text="Test Connection")


def change_key(page: Page, key: str) -> None:
    page.get_by_role("button", name="Edit Connection").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Transfer API key").fill(key)
    form.get_by_role("button", name="Save").click()
    expect(form).to_have_count(0)


def photograph(page: Page) -> None:
    """Keeps a picture of the form, as docs/connection.md shows it, where $OUTBOUND_TRANSFER_SCREENSHOTS says."""
    if folder := os.environ.get("OUTBOUND_TRANSFER_SCREENSHOTS"):
        page.get_by_role("dialog").screenshot(path=Path(folder) / "connection.png")
