"""The analysts' dashboard (`make dashboard`) in a browser: its figures are those that are known of its warehouse."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.views import create_views
from support import known_transfers
from support.airflow_stack.stack import free_ports
from support.databases import fresh_database
from support.known_transfers import FAILED_AUTHENTICATION, IN_ALL
from support.postgres import Database
from support.repository import REPOSITORY
from support.warehouses import Hook, sqlite_hook

pytestmark = pytest.mark.e2e

NOT_KNOWN = "not known"
PICTURE = {"width": 1180, "height": 820}
#: Markdown and HTML that would load something from elsewhere.
SUBJECT = '![x](http://elsewhere.example.com/x.png) <img src="http://elsewhere.example.com/y.png">'


@contextmanager
def dashboard(warehouse: str) -> Iterator[str]:
    """Run the command of the docs; its address, once it answers."""
    (port,) = free_ports(1)
    command = ["make", "--silent", "dashboard", f"WAREHOUSE={warehouse}", f"PORT={port}"]
    with subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                assert process.poll() is None, "it has ended"
                try:
                    httpx.get(address)
                    break
                except httpx.TransportError:
                    time.sleep(0.5)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page in a time zone of its own; all that it asks for is the dashboard's."""
    asked: set[str] = set()
    with chromium.new_context(viewport=PICTURE, timezone_id="America/Los_Angeles") as context:
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.on("request", lambda request: asked.add(httpx.URL(request.url).host))
        yield page
    assert asked == {"127.0.0.1"}


def tiles(page: Page) -> dict[str, str]:
    """The figures of the period, by title."""
    page.get_by_text("By day (UTC)").wait_for()
    expect(page.get_by_test_id("stMetric")).to_have_count(6)
    return dict(each.split("\n\n") for each in page.get_by_test_id("stMetric").all_inner_texts())


def days(page: Page) -> dict[str, list[str]]:
    """The rows of the last table, by day. It is drawn, and its text is what a screen reader gets."""
    table = page.get_by_test_id("stDataFrame").last
    table.scroll_into_view_if_needed()
    table.locator("tbody tr").nth(11).wait_for(state="attached")
    rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    return {row[0]: row[1:] for row in rows}


def figures(values: tuple[float | None, ...]) -> list[str]:
    """Figures as the tiles have them."""
    sent, expired, rate, seconds, overdue, _ = values
    assert rate is not None
    assert seconds is not None
    return [f"{sent}", f"{rate:.1%}", f"{seconds / 3600:.1f} h", f"{expired}", f"{overdue}"]


def as_shown(values: tuple[float | None, ...], *, failed: bool) -> list[float | None]:
    """A day's known figures in the order of the table's columns."""
    sent, expired, rate, seconds, overdue, refused = values
    return [sent, rate, seconds, expired, overdue, refused if failed else None]


def numbers(cells: list[str]) -> list[float | None]:
    return [None if cell in ("", "None") else float(cell.replace(",", "")) for cell in cells]


@pytest.mark.parametrize("password", ["secret", 'se"cr$e`t'])
def test_the_command_does_not_print_the_warehouses_password(password: str) -> None:
    command = ["make", "--dry-run", "--assume-old=setup", "dashboard"]
    url = f"postgresql://reader:{password}@db.example.com/lakehouse"
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True, "check": True}
    given = subprocess.run(command, env=os.environ | {"WAREHOUSE": url}, **options)  # type: ignore[call-overload]
    argument = subprocess.run([*command, f"WAREHOUSE={url}"], **options)  # type: ignore[call-overload]
    for done in (given, argument):
        assert "streamlit" in done.stdout
        assert "db.example.com" not in done.stdout


def test_the_demos_kind_of_warehouse_shows_the_known_figures(tmp_path: Path, page: Page) -> None:
    file = tmp_path / "warehouse.db"
    now = datetime.now(UTC)
    known_transfers.fill(Warehouse(sqlite_hook(file)), now)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE outbound_transfer_transfers SET subject = ?", (SUBJECT,))
    before = file.read_bytes()
    with dashboard(str(file)) as address:
        page.goto(address)
        assert list(tiles(page).values()) == [*figures(IN_ALL), NOT_KNOWN]
        found = days(page)
        for day, values in known_transfers.by_day(now).items():
            assert numbers(found.pop(day)) == pytest.approx(as_shown(values, failed=False)), day
        assert {tuple(numbers(cells)) for cells in found.values()} == {(0, None, None, 0, 0, None)}
        overdue = page.get_by_test_id("stDataFrame").first.locator("tbody tr")
        expect(overdue).to_have_count(IN_ALL[4])
        assert SUBJECT in overdue.first.inner_text()
        assert "@example.com" not in page.content(), "an address"
    assert file.read_bytes() == before, "something was written"


def test_marts_in_postgresql_show_the_known_figures_of_an_account(page: Page, postgres_server: Database) -> None:
    with fresh_database(postgres_server) as database:
        hook = Hook("postgresql", database.connect)
        known_transfers.fill(warehouse := Warehouse(hook), datetime.now(UTC))
        # Views and marts have the same SQL.
        for view in create_views(warehouse):
            hook.run(f'ALTER VIEW "{view}" RENAME TO "{view.replace("transfer_", "transfer__", 1)}"')
        hook.run(
            "ALTER VIEW outbound_transfer__events_by_day RENAME TO unnamed;"
            " CREATE VIEW outbound_transfer__events_by_day AS"
            f" SELECT account, occurred_on, (type = '{FAILED_AUTHENTICATION}')::int * events"
            " AS failed_authentications FROM unnamed"
        )
        with dashboard(f"postgresql+psycopg://postgres@/{database.name}?host={database.host}") as address:
            page.goto(address)
            assert list(tiles(page).values()) == [*figures(IN_ALL), f"{IN_ALL[5]}"]
            page.get_by_role("combobox", name="Account").click()
            page.get_by_role("option", name=known_transfers.OTHER_ACCOUNT).click()
            page.get_by_test_id("stMetric").filter(has_text="100.0%").wait_for()
            assert list(tiles(page).values()) == ["1", "100.0%", "1.5 h", "0", "0", NOT_KNOWN]
