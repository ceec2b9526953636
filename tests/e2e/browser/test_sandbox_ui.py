"""People at work in a real browser: a sender, recipients with each kind of authentication, an administrator."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from outbound_transfer_sandbox.testing import Sandbox

pytestmark = pytest.mark.e2e

ANN = {"email": "ann@example.com", "name": "Ann Reyes", "phone": "+1 (555) 010-4477"}
BOB = {"email": "bob@example.com", "name": "Bob"}
REPORT = ("Quarterly report Ⅲ – größer.pdf", b"%PDF-1.7 " + b"x" * 300_000)


def read_mail(page: Page, address: str, subject: str) -> None:
    page.get_by_role("link", name="Mailbox").first.click()
    page.get_by_label("To", exact=True).fill(address)
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name=subject).first.click()


def download(page: Page, name: str) -> bytes:
    with page.expect_download() as waiting:
        page.get_by_role("link", name=f"Download {name}").click()
    assert waiting.value.suggested_filename == name
    return Path(waiting.value.path()).read_bytes()


def test_a_senders_day(
    sandbox: Sandbox, sign_in: Callable[..., Page], send: Callable[..., Any], shoot: Callable[[Page, str], None]
) -> None:
    page = sign_in("sender@example.com")
    page.get_by_role("link", name="API keys").click()
    page.get_by_label("What it is for").fill("nightly deliveries")
    page.get_by_role("button", name="Create key").click()
    key = page.get_by_role("status").locator("code").inner_text()
    shoot(page, "keys")
    page.reload()
    expect(page.get_by_text(key)).to_have_count(0)

    text = "Dear all,\nthe figures of the third quarter are final. Questions to Kim, please."
    send(key=key, subject="Board minutes, draft for comment", recipients=[BOB])
    send(key=key, subject="Contract 2214, signed", recipients=[ANN], security="sms")
    send(REPORT, key=key, subject="Quarterly report", message=text, recipients=[ANN, BOB])
    page.reload()
    expect(page.get_by_role("row", name="nightly deliveries")).not_to_contain_text("never")

    read_mail(page, "ann@example.com", "Quarterly report")
    shoot(page, "message")
    page.get_by_role("link", name="Open the files").click()
    shoot(page, "pickup")
    assert download(page, REPORT[0]) == REPORT[1]

    page.goto("/transfers")
    expect(page.get_by_role("row", name="Quarterly report")).to_contain_text("partial")
    page.get_by_role("link", name="Quarterly report").click()
    expect(page.get_by_role("row", name="Ann Reyes")).not_to_contain_text("not yet")
    expect(page.get_by_role("row", name="Bob")).to_contain_text("not yet")
    shoot(page, "transfer")

    page.goto("/transfers")
    page.get_by_role("link", name="Board minutes").click()
    page.get_by_text("Cancel transfer…").click()
    page.get_by_role("button", name="Cancel this transfer").click()
    expect(page.get_by_text("canceled", exact=True)).to_be_visible()
    expect(page.get_by_text("Cancel transfer…")).to_have_count(0)
    read_mail(page, "ann@example.com", "Contract 2214")
    page.get_by_role("link", name="Open the files").click()
    page.get_by_role("button", name="Send me a code").click()
    page.get_by_label("Six digits").fill(sandbox.call("GET", "mailbox")[-1]["code"])
    page.get_by_role("button", name="Continue").click()
    download(page, "report.pdf")
    page.goto("/transfers")
    sandbox.advance_clock(3600)
    send(key=key, subject="Payroll, November", recipients=[BOB, ANN])
    page.get_by_role("link", name="Transfers").first.click()
    expect(page.get_by_role("row", name="Board minutes")).to_contain_text("canceled")
    expect(page.get_by_role("row", name="Contract 2214")).to_contain_text("complete")
    shoot(page, "transfers")
    page.get_by_role("link", name="Mailbox").click()
    shoot(page, "mailbox")

    page.get_by_role("link", name="API keys").click()
    page.get_by_role("button", name="Revoke nightly deliveries").click()
    expect(page.get_by_role("row", name="nightly deliveries")).to_contain_text("revoked")
    answer = httpx.get(f"{sandbox.base_url}/v1/transfers", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 401


def test_an_administrators_day(
    sandbox: Sandbox, sign_in: Callable[..., Page], send: Callable[..., Any], shoot: Callable[[Page, str], None]
) -> None:
    page = sign_in("admin@example.com", administrator=True)
    page.get_by_role("link", name="Account settings").click()
    page.get_by_label("Delivery window, days").fill("3")
    page.get_by_label("sms").uncheck()
    page.get_by_role("button", name="Save settings").click()
    expect(page.get_by_role("status")).to_have_text("Saved.")
    account = sandbox.state()["account"]
    assert account["delivery_window_days"] == 3
    assert "sms" not in account["security_options"]
    shoot(page, "account")

    page.get_by_role("link", name="Events").click()
    page.get_by_role("button", name="Turn monitoring off").click()
    page.get_by_role("button", name="Enable monitoring").click()
    key = page.get_by_role("status").locator("code").inner_text()
    assert key.startswith("obs_")
    send(subject="Report", recipients=[ANN])
    for _ in range(2):
        for _ in range(3):
            sandbox.add_events(337)
            feed = {"Authorization": f"Bearer {key}"}
            httpx.get(f"{sandbox.base_url}/v1/events", headers=feed)
            sandbox.advance_clock(90)
        httpx.get(f"{sandbox.base_url}/v1/events", headers=feed)
        httpx.get(f"{sandbox.base_url}/v1/events", headers=feed)
    httpx.get(f"{sandbox.base_url}/v1/events", headers={"Authorization": "Bearer obs_old"})
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_text(key)).to_have_count(0)
    rows = page.get_by_role("row").all_inner_texts()[1:]
    assert [re.split(r"\s+", row)[-2:] for row in rows[:3]] == [["401", "0"], ["429", "0"], ["200", "1,000"]]
    shoot(page, "events")


def test_by_keyboard_alone(sandbox: Sandbox, open_page: Callable[..., Page], send: Callable[..., Any]) -> None:
    send(subject="Report", recipients=[ANN])
    sandbox.call("POST", "sign-ins", {"user": "sender@example.com", "password": "correct horse"})
    page = open_page()
    page.goto("/")

    def reach(name: str) -> None:
        """Tabs to what a screen reader would call `name`."""
        for _ in range(40):
            if page.locator(":focus").count() and name in page.locator(":focus").inner_text():
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{name} cannot be reached")

    expect(page.get_by_label("Email address")).to_be_focused()
    page.keyboard.type("sender@example.com")
    page.keyboard.press("Tab")
    page.keyboard.type("correct horse")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Transfers").wait_for()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    reach("Report")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Report").wait_for()
    reach("Cancel transfer…")
    page.keyboard.press("Enter")
    reach("Cancel this transfer")
    page.keyboard.press("Enter")
    expect(page.get_by_text("canceled", exact=True)).to_be_visible()


@pytest.mark.parametrize("path", ["/transfers", "/mailbox", "/account", "/account/security/events"])
def test_a_phone_shows_it_without_scrolling_sideways(
    path: str, sign_in: Callable[..., Page], send: Callable[..., Any], shoot: Callable[[Page, str], None]
) -> None:
    send(subject="A long subject that goes on and on " * 4, recipients=[ANN, BOB])
    page = sign_in("admin@example.com", administrator=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(path)
    box = page.locator("body").bounding_box()
    assert box is not None
    assert box["width"] <= 390
    shoot(page, f"phone{path.replace('/', '-')}")
