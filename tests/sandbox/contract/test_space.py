"""Whatever clients do much of, with and without a key, what is kept stays within the quota: in bytes on the disk."""

from __future__ import annotations

import itertools
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox

pytestmark = [pytest.mark.control, pytest.mark.slow]

QUOTA = 1_048_576
BLOCK = 4096
ADMINISTRATOR = "admin@example.com"


def on_disk(folder: Path) -> int:
    """Bytes of all files, each a whole number of blocks."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return sum(max(1, -(-size // BLOCK)) * BLOCK for size in sizes)


def client(base_url: str, key: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=base_url, headers=headers, timeout=600, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


class Clients:
    """What can be done to a sandbox from outside; each of it as often and as large as its arguments say."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.folder = folder
        self.http = client(sandbox.base_url, sandbox.transfer_api_key)
        self.anyone = client(sandbox.base_url, None)
        self.links: list[str] = []

    def begin(self) -> None:
        self.sandbox.reset()
        self.sandbox.patch_account(
            requests_per_window=10**9, feed_interval_seconds=0, outstanding_transfer_limit=10**9, delivery_window_days=1
        )
        self.http.cookies.clear()
        self.anyone.cookies.clear()
        self.links.clear()

    def check(self, response: httpx.Response) -> bool:
        """Whether it was done; else there was no room, or a reason that is the client's."""
        if response.status_code >= 500:
            assert (response.status_code, "disk space" in response.text) == (503, True), response.text
        assert on_disk(self.folder) <= QUOTA, f"{on_disk(self.folder):,} bytes after {response.request}"
        return response.is_success or response.is_redirect

    def until_refused(self, act: Callable[[], httpx.Response], most: int) -> None:
        for _ in range(most):
            if not self.check(act()):
                return

    # ------------------------------------------------------------------------------------------------ without a key

    def call(self, length: int, times: int) -> None:
        for number in range(times):
            path = f"/v1/{'%C3%A9' * (length // 6)}{number}?{'q' * (length % 1000)}"
            for status, text in self.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()):
                assert status < 500, text
        assert on_disk(self.folder) <= QUOTA

    def read_the_feed(self, times: int) -> None:
        for _ in range(times):
            self.check(self.anyone.get("/v1/events"))

    def guess(self, length: int, times: int) -> None:
        """Signs in under names that do not exist."""
        token = csrf(self.anyone.get("/sign-in").text)
        for number in range(times):
            form = {"csrf": token, "user": f"{number}{'x' * length}", "password": "x"}
            self.check(self.anyone.post("/sign-in", data=form))

    def raw(self, request: bytes) -> list[tuple[int, bytes]]:
        """The answers to bytes that no client would send: status and text of each."""
        url = httpx.URL(self.sandbox.base_url)
        answer = b""
        with socket.create_connection((url.host, url.port), 600) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                while chunk := connection.recv(65_536):
                    answer += chunk
            except OSError:  # what was answered before the connection ended counts
                pass
        return [(int(found[1]), answer) for found in re.finditer(rb"^HTTP/1.1 (\d+) ", answer, re.MULTILINE)]

    # --------------------------------------------------------------------------------------------------- with a key

    def create(self, length: int, recipients: int = 1, **fields: Any) -> httpx.Response:
        people = [{"email": f"{number}@example.com"} for number in range(recipients)]
        return self.http.post("/v1/transfers", json={"subject": "\x01" * length + "x", "recipients": people, **fields})

    def attach(self, draft: str, name: str, size: int) -> httpx.Response:
        disposition = f'attachment; filename="{name}"'
        return self.http.post(f"{draft}/files", content=b"x" * size, headers={"Content-Disposition": disposition})

    def drafts(self, length: int, recipients: int, times: int) -> None:
        self.until_refused(lambda: self.create(length, recipients), times)

    def files(self, length: int, size: int, times: int) -> None:
        created = self.create(1)
        if self.check(created):
            numbers = itertools.count()
            names = lambda: f"{next(numbers)}{'n' * length}"  # noqa: E731
            self.until_refused(lambda: self.attach(created.headers["Location"], names(), size), times)

    def drafts_that_are_discarded(self, length: int, times: int) -> None:
        for _ in range(times):
            created = self.create(length)
            if self.check(created):
                self.check(self.http.delete(created.headers["Location"]))

    def sends(self, recipients: int, times: int, **fields: Any) -> None:
        """All of them at the end, when there is no room for much more."""
        drafts = []
        for _ in range(times):
            created = self.create(1, recipients, **fields)
            if self.check(created) and self.check(self.attach(created.headers["Location"], "n" * 2000, 1)):
                drafts.append(created.headers["Location"])
        for draft in drafts:
            self.check(self.http.post(f"{draft}/send"))
        self.links = [row["link"] for row in self.sandbox.call("GET", "mailbox") if row["link"]][-5:]

    # ----------------------------------------------------------------------------------- with a link, with a password

    def downloads(self, times: int) -> None:
        for link in self.links[:1]:
            page = self.http.get(link)
            found = re.search(r'href="(/pickup/[^"]+/files/[^"]+)"', page.text)
            for _ in range(times if found else 0):
                try:
                    self.check(self.http.get(found[1]))
                except httpx.RemoteProtocolError:  # there was no room for the event, so the download never ends
                    self.check(self.http.get("/v1/transfers"))

    def admissions(self, times: int) -> None:
        """A recipient who confirms the address again and again, each time in another browser."""
        for link in self.links[-1:]:
            for _ in range(times):
                self.anyone.cookies.clear()
                page = self.anyone.get(link)
                if 'name="csrf"' not in page.text:
                    return
                self.check(self.anyone.post(link, data={"csrf": csrf(page.text), "answer": "0@example.com"}))

    def keys(self, times: int) -> None:
        try:
            self.sandbox.call("POST", "sign-ins", {"user": ADMINISTRATOR, "password": "word", "administrator": True})
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 503, "no space is left for it"
        http = self.anyone
        http.post("/sign-in", data={"csrf": csrf(http.get("/sign-in").text), "user": ADMINISTRATOR, "password": "word"})
        for path in ("/profile/integrations/api-keys", "/account/security/events/key"):
            page = http.get(path.removesuffix("/key"))
            if 'name="csrf"' in page.text:
                form = {"csrf": csrf(page.text), "label": "l" * 1000}
                self.until_refused(lambda path=path, form=form: http.post(path, data=form), times)

    # ------------------------------------------------------------------------------------------ who runs the sandbox

    def events(self, count: int, length: int) -> None:
        body = {"count": count, "type": "t" * length, "data": {"x": "y" * length}}
        self.check(self.control(body, "events"))

    def plans(self, count: int, length: int) -> None:
        fault = {"kind": "malformed_json", "path": "/nowhere", "text": "t" * length}
        self.check(self.control([fault] * count, "faults"))

    def control(self, body: Any, path: str) -> httpx.Response:
        return self.anyone.post(f"/_sandbox/{path}", json=body)


def csrf(page: str) -> str:
    return re.search('name="csrf" value="([^"]+)"', page)[1]


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    monkeypatch.setattr(defaults, "PASSWORD_LOG_N", 4)
    with running_sandbox(tmp_path / "data", quota=QUOTA) as sandbox:
        clients = Clients(sandbox, tmp_path / "data")
        with clients.http, clients.anyone:
            clients.begin()
            yield clients


KINDS: dict[str, Callable[[Clients], None]] = {
    "calls without a key": lambda clients: clients.call(7_999, 600),
    "calls of long paths": lambda clients: clients.call(60_000, 100),
    "short calls without a key": lambda clients: clients.call(0, 800),
    "reads of the feed": lambda clients: clients.read_the_feed(600),
    "names that are tried": lambda clients: clients.guess(50_000, 60),
    "large drafts": lambda clients: clients.drafts(10_000, 1, 200),
    "drafts with many recipients": lambda clients: clients.drafts(1, 250, 200),
    "one huge draft": lambda clients: clients.drafts(170_000, 1, 5),
    "drafts that are discarded": lambda clients: clients.drafts_that_are_discarded(20_000, 100),
    "tiny files": lambda clients: clients.files(1, 1, 2000),
    "empty files": lambda clients: clients.files(1, 0, 2000),
    "long names": lambda clients: clients.files(6000, 1, 500),
    "large files": lambda clients: clients.files(1, 300_000, 20),
    "sends": lambda clients: clients.sends(250, 20),
    "downloads": lambda clients: (clients.sends(1, 1), clients.downloads(700)),
    "admissions": lambda clients: (clients.sends(1, 1, security="email"), clients.admissions(200)),
    "keys": lambda clients: clients.keys(1000),
    "events": lambda clients: clients.events(10_000_000, 1),
    "large events": lambda clients: clients.events(100, 100_000),
    "planned faults": lambda clients: clients.plans(100, 9_000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_thing_is_bounded(clients: Clients, kind: str) -> None:
    KINDS[kind](clients)
    clients.check(clients.http.get("/v1/transfers"))


def test_what_is_full_can_be_emptied(clients: Clients) -> None:
    drafts = []
    while (created := clients.create(10_000)).status_code == 201:
        drafts.append(created.headers["Location"])
    assert (created.status_code, created.json()["error"]) == (503, "service_unavailable")
    assert len(drafts) > 5
    assert clients.attach(drafts[0], "a", 300_000).status_code == 503
    for draft in drafts:
        assert clients.http.delete(draft).status_code == 204
    assert clients.create(10_000).status_code == 201


def test_without_a_quota_the_logs_are_bounded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MAX_LOG_BYTES", 20_000)
    with running_sandbox(tmp_path / "data") as sandbox:
        with client(sandbox.base_url, None) as http:
            for number in range(300):
                http.get(f"/v1/{'x' * 900}{number}")
        rows = sandbox.requests()
        assert 10 < len(rows) < 20
        assert [row["path"][-3:] for row in rows[-2:]] == ["298", "299"]


def test_a_log_that_is_full_keeps_the_newest_and_the_last_success_of_the_feed(clients: Clients) -> None:
    clients.sandbox.patch_account(feed_interval_seconds=3600)
    headers = {"Authorization": f"Bearer {clients.sandbox.event_api_key}"}
    assert httpx.get(f"{clients.sandbox.base_url}/v1/events", headers=headers).status_code == 200
    clients.read_the_feed(500)
    assert len(clients.sandbox.feed_calls()) < 200
    assert clients.sandbox.feed_calls()[-1]["status"] == 401
    assert httpx.get(f"{clients.sandbox.base_url}/v1/events", headers=headers).status_code == 429
