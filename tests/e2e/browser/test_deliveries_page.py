"""Operations at work: the page of deliveries in a real Airflow, signed in, at its root and below a path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Page, Route, expect

from support.airflow_stack.ui import PASSWORD, UiStack, running_ui
from support.deliveries_table import CONN_ID, DeliveriesTable
from support.postgres import running_server
from support.timeouts import TEST_TIMEOUT, eventually
from support.warehouses import Hook

pytestmark = pytest.mark.e2e

PATHS = ("", "/af")
WEB = "https://account.example.com/app"
#: Kept in Airflow's database, as most are.
CONNECTION = {
    "connection_id": CONN_ID,
    "conn_type": "outbound_transfer",
    "host": "https://account.example.com",
    "extra": json.dumps({"web_url": WEB}),
}
HOSTILE = "<script>alert(1)</script><b>Report</b> \u202egnp.exe"
NAV = "plugin/outbound-transfers"


@dataclass
class Ui:
    """A running Airflow with 200 deliveries of one run of ``deliver_files``, and some more."""

    stack: UiStack
    run_id: str

    def url(self, path: str) -> str:
        return self.stack.servers[path].url

    def task(self, path: str, task_id: str, map_index: int = -1) -> str:
        mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
        run = f"{self.url(path)}/dags/deliver_files/runs/{quote(self.run_id, safe='')}"
        return f"{run}/tasks/{task_id}{mapped}/plugin/outbound-transfers-of-task"


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("ui") / "stack"
    with running_server() as server:
        table = DeliveriesTable(Hook("postgresql", server.connect))
        with running_ui(folder, server.airflow_connection, *PATHS) as stack:
            for path in PATHS:
                stack.sign_in(path, "ann")
            stack.servers[""].call("POST", "connections", CONNECTION)
            run_id = stack.servers[""].trigger("deliver_files", {})
            fill(table, run_id)
            yield Ui(stack, run_id)


def fill(table: DeliveriesTable, run_id: str) -> None:
    now = datetime.now(UTC)
    table.fill(200, runs=[run_id])
    of_run: dict[str, Any] = {"run_id": run_id, "dag_id": "deliver_files"}
    long_ago = now - timedelta(days=28)
    markup = "<img src=x onerror=alert(2)>"
    table.add("hostile", subject=HOSTILE, error=markup, conn_id="no", created_at=long_ago, **of_run)
    people = [
        {"email": "ann@example.com", "name": "Ann", "picked_up_at": now.isoformat()},
        {"email": "bob@example.com", "name": "Bob", "picked_up_at": None},
    ]
    seen = {"status": "partial", "picked_up_count": 1}
    first = {"task_id": "deliver_each", "map_index": 0, "subject": "Mapped, first"} | seen
    table.add("mapped-0", recipients=json.dumps(people), **first, **of_run)
    table.add("mapped-1", task_id="deliver_each", map_index=1, subject="Mapped, second", **of_run)
    table.add("hidden", dag_id="not_of_this_airflow", subject="Nobody may see this")
    alone = {"task_id": "deliver_alone", "subject": "Quarterly report, third edition", "conn_id": CONN_ID}
    table.add("alone", created_at=now - timedelta(hours=2), **alone, **of_run)


@pytest.fixture
def signed_in(ui: Ui, chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Signs in with the form; nothing on a page of ours may be refused by its policy, or fail in a script."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        # Chromium's advice on the frame that Airflow makes is no word on what is in it.
        ours = "outbound-transfer" in where and "can escape its sandboxing" not in message.text
        if ours or "Content Security Policy" in message.text:
            complaints.append(f"{where}: {message.text}")

    contexts = []

    def make(path: str, user: str = "ann", **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
        context.set_default_timeout(TEST_TIMEOUT * 1000)
        context.route("**/outbound-transfer/*", fetch_in_time)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a script spoke: {dialog.message}"))
        page.goto(f"{ui.url(path)}/")
        page.locator("input[name=username]").fill(user)
        page.locator("input[name=password]").fill(PASSWORD)
        page.locator("button[type=submit]").click()
        page.get_by_role("link", name="Dags", exact=True).first.wait_for()
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


def fetch_in_time(route: Route) -> None:
    """Asks again where a busy machine could not read the page in its few seconds."""
    route.fulfill(response=eventually(lambda: (found := route.fetch(max_redirects=0)).status != 503 and found))


def frame(page: Page) -> FrameLocator:
    return page.frame_locator('iframe[title="Outbound transfers"]')


def shoot(page: Page, name: str) -> None:
    """Keeps a picture, where $OUTBOUND_TRANSFER_SCREENSHOTS says."""
    if folder := os.environ.get("OUTBOUND_TRANSFER_SCREENSHOTS"):
        page.wait_for_timeout(300)
        page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.parametrize("path", PATHS)
def test_from_the_navigation_to_a_delivery_and_its_run(ui: Ui, signed_in: Callable[..., Page], path: str) -> None:
    page = signed_in(path)
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Outbound transfers").click()
    inside = frame(page)
    expect(inside.get_by_role("heading", name="Outbound transfers")).to_be_visible()
    rows = inside.get_by_role("table").last.get_by_role("row")
    expect(rows).to_have_count(26)
    shoot(page, f"page{path.replace('/', '-')}")

    inside.get_by_role("link", name="Next").click()
    inside.get_by_role("link", name="First").click()
    expect(inside.get_by_role("link", name="First")).to_have_count(0)

    inside.get_by_label("Status").select_option("expired")
    inside.get_by_role("button", name="Show").click()
    expect(inside.locator("tbody .status").first).to_have_text("expired")
    assert set(inside.locator("tbody .status").all_inner_texts()) == {"expired"}

    inside.get_by_label("Status").select_option("")
    inside.get_by_label("Search").fill("THIRD edition")
    inside.get_by_label("Search").press("Enter")
    expect(rows).to_have_count(2)
    link = inside.get_by_role("link", name="deliver_files")
    link.click()
    page.wait_for_url(re.compile(re.escape(f"{ui.url(path)}/dags/deliver_files/runs/") + ".*"))
    expect(page.get_by_text(ui.run_id).first).to_be_visible()


def test_the_web_application_opens_outside_the_frame(signed_in: Callable[..., Page], ui: Ui) -> None:
    page = signed_in("")
    page.context.route("https://account.example.com/**", lambda route: route.fulfill(body="the web application"))
    page.goto(f"{ui.url('')}/{NAV}")
    link = frame(page).get_by_role("row", name=re.compile("third edition")).get_by_role("link", name="Web application")
    with page.context.expect_page() as opened:
        link.click()
    assert opened.value.url == f"{WEB}/transfers/alone"
    assert opened.value.evaluate("window.opener") is None


@pytest.mark.parametrize("path", PATHS)
def test_a_task_instance_shows_its_own_deliveries(ui: Ui, signed_in: Callable[..., Page], path: str) -> None:
    page = signed_in(path)
    page.goto(ui.task(path, "deliver_each", 0))
    inside = frame(page)
    expect(inside.get_by_role("heading", level=2)).to_have_text(["Mapped, first"])
    expect(inside.get_by_role("row", name="bob@example.com")).to_contain_text("not yet")
    shoot(page, f"task{path.replace('/', '-')}")

    page.goto(ui.task(path, "deliver"))
    expect(inside.get_by_role("heading", level=2).first).to_be_visible()
    expect(inside.get_by_text("Mapped")).to_have_count(0)


def test_it_takes_airflows_colours(signed_in: Callable[..., Page], ui: Ui) -> None:
    page = signed_in("")
    for theme, scheme in (("dark", "light"), ("light", "dark")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        page.goto(f"{ui.url('')}/{NAV}")
        body = frame(page).locator("body")
        expect(frame(page).locator("html")).to_have_attribute("data-theme", theme)
        background = "getComputedStyle(document.documentElement).backgroundColor"
        assert body.evaluate("body => getComputedStyle(body).backgroundColor") == page.evaluate(background)
        shoot(page, f"page-{theme}")


def test_it_is_read_and_used_without_a_mouse_on_a_narrow_screen(signed_in: Callable[..., Page], ui: Ui) -> None:
    page = signed_in("", viewport={"width": 390, "height": 844})
    page.goto(f"{ui.url('')}/outbound-transfer/deliveries")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shoot(page, "narrow")
    # What is laid out as cards is a table still to whoever hears it.
    expect(page.get_by_role("table").last.get_by_role("row")).to_have_count(26)
    page.locator("select").focus()
    page.keyboard.type("Comp")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("status=complete"))
    assert set(page.locator("tbody .status").all_inner_texts()) == {"complete"}
