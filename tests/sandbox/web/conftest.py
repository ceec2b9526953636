"""What the tests of the pages share: people who sign in, and browsers that send the forms they find."""

from __future__ import annotations

import html
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT

ANN = {"email": "ann@example.com"}
PASSWORD = "correct horse"


class Browser:
    """Follows redirects, keeps cookies, and sends forms with what their pages hide in them."""

    def __init__(self, base_url: str) -> None:
        self.http = httpx.Client(
            base_url=base_url,
            follow_redirects=True,
            timeout=TEST_TIMEOUT,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def csrf(self, page: str) -> str:
        return re.search('name="csrf" value="([^"]+)"', self.get(page).text)[1]

    def post(self, page: str, path: str | None = None, **fields: Any) -> httpx.Response:
        """Sends the form of `page`, to `path` where it does not go to the page itself."""
        return self.http.post(path or page, data={"csrf": self.csrf(page), **fields})

    def sign_in(self, user: str, password: str = PASSWORD) -> httpx.Response:
        return self.post("/sign-in", user=user, password=password)


def words(response: httpx.Response) -> str:
    """What a reader sees of a page."""
    text = re.sub("<(title|head)>.*?</\\1>|<[^>]*>", " ", response.text, flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes guessing slow makes signing in slow."""
    monkeypatch.setattr(defaults, "PASSWORD_LOG_N", 4)


@pytest.fixture
def browser(sandbox: Sandbox) -> Iterator[Callable[[], Browser]]:
    """Opens a browser of its own each time."""
    opened: list[Browser] = []

    def make() -> Browser:
        opened.append(Browser(sandbox.base_url))
        return opened[-1]

    yield make
    for one in opened:
        one.http.close()


@pytest.fixture
def user(sandbox: Sandbox, browser: Callable[[], Browser]) -> Browser:
    """Signed in as the owner of the first transfer key."""
    return _signed_in(sandbox, browser(), "sender@example.com", administrator=False)


@pytest.fixture
def administrator(sandbox: Sandbox, browser: Callable[[], Browser]) -> Browser:
    return _signed_in(sandbox, browser(), "admin@example.com", administrator=True)


@pytest.fixture
def other(sandbox: Sandbox, browser: Callable[[], Browser]) -> Browser:
    """Signed in as somebody else."""
    return _signed_in(sandbox, browser(), "other@example.com", administrator=False)


def _signed_in(sandbox: Sandbox, browser: Browser, name: str, *, administrator: bool) -> Browser:
    sandbox.call("POST", "sign-ins", {"user": name, "password": PASSWORD, "administrator": administrator})
    assert browser.sign_in(name).url.path == "/transfers"
    return browser


@pytest.fixture
def send(sandbox: Sandbox) -> Callable[..., dict[str, Any]]:
    """Sends a transfer through the API; files are (name, content)."""

    def make(files: tuple[tuple[str, bytes], ...] = (("report.txt", b"hello"),), **fields: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {sandbox.transfer_api_key}"}
        with httpx.Client(base_url=sandbox.base_url, headers=headers, verify=False) as http:
            created = http.post("/v1/transfers", json={"subject": "Report", "recipients": [ANN]} | fields)
            path = f"/v1/transfers/{created.raise_for_status().json()['id']}"
            for name, content in files:
                disposition = b'attachment; filename="' + name.encode() + b'"'
                attach = http.post(f"{path}/files", content=content, headers={"Content-Disposition": disposition})
                attach.raise_for_status()
            transfer: dict[str, Any] = http.post(f"{path}/send").raise_for_status().json()
        return transfer

    return make


@pytest.fixture
def links(sandbox: Sandbox) -> Callable[[], dict[str, str]]:
    """The newest pickup link of each address."""

    def find() -> dict[str, str]:
        return {row["address"]: row["link"] for row in sandbox.call("GET", "mailbox") if row["link"]}

    return find


@pytest.fixture
def read() -> Callable[[httpx.Response], str]:
    return words
