"""A real Chromium, one for all tests of a worker, and what a person does with it. JavaScript is off everywhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, expect, sync_playwright

from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT

SCREENSHOTS = "OUTBOUND_TRANSFER_SCREENSHOTS"
PASSWORD = "correct horse"
SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


# Of a module: while it lives, its event loop runs in this thread, where other tests have loops of their own.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    expect.set_options(timeout=TEST_TIMEOUT * 1000)  # five seconds are too few on a busy machine
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="module")
def chromium(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("The browser tests need Chromium: apt-get install chromium")
    home = tmp_path_factory.mktemp("chromium")
    # A home of its own: Chromium's wrapper leaves caches and crash reports there.
    with playwright.chromium.launch(
        executable_path=executable, args=SWITCHES, env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    ) as browser:
        yield browser


@pytest.fixture
def open_page(chromium: Browser, sandbox: Sandbox) -> Iterator[Callable[..., Page]]:
    """Opens a browser of its own, with no script, and sees that nothing on a page was refused or missing."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # Chromium calls every answer from 400 up an error; those that a test provokes are what it looks at itself.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    contexts = []

    def open_one(**options: Any) -> Page:
        context = chromium.new_context(
            base_url=sandbox.base_url, java_script_enabled=False, viewport={"width": 1180, "height": 760}, **options
        )
        context.set_default_timeout(TEST_TIMEOUT * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def sign_in(sandbox: Sandbox, open_page: Callable[..., Page]) -> Callable[..., Page]:
    """A browser in which that user has signed in, who has a password from here on."""

    def make(user: str, *, administrator: bool = False) -> Page:
        sandbox.call("POST", "sign-ins", {"user": user, "password": PASSWORD, "administrator": administrator})
        page = open_page()
        page.goto("/")
        page.get_by_label("Email address").fill(user)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Transfers").wait_for()
        return page

    return make


@pytest.fixture
def send(sandbox: Sandbox) -> Callable[..., dict[str, Any]]:
    """Sends a transfer through the API, with the first key or another."""

    def make(*files: tuple[str, bytes], key: str = "", **fields: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key or sandbox.transfer_api_key}"}
        with httpx.Client(base_url=sandbox.base_url, headers=headers, verify=False) as http:
            path = http.post("/v1/transfers", json=fields).raise_for_status().headers["Location"]
            for name, content in files or (("report.pdf", b"%PDF-1.7 a report"),):
                disposition = f'attachment; filename="{name}"'.encode()
                attached = http.post(f"{path}/files", content=content, headers={"Content-Disposition": disposition})
                attached.raise_for_status()
            transfer: dict[str, Any] = http.post(f"{path}/send").raise_for_status().json()
        return transfer

    return make


@pytest.fixture
def shoot() -> Callable[[Page, str], None]:
    """Keeps a picture of a page, light and dark, where $OUTBOUND_TRANSFER_SCREENSHOTS says."""
    folder = os.environ.get(SCREENSHOTS)

    def take(page: Page, name: str) -> None:
        if folder:
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=Path(folder) / f"{name}-{scheme}.png", full_page=True)
            page.emulate_media(color_scheme=None)

    return take
