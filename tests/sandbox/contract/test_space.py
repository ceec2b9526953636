"""Whatever clients do, what is kept stays within the quota, nothing fails, and the control API heeds no page.

A machine does what hostile clients might, in any order, with and without a key; sizes are counted in bytes on the disk.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from outbound_transfer_sandbox.domain import defaults, host_checks
from outbound_transfer_sandbox.service import login_throttle, space
from outbound_transfer_sandbox.store import blobs, logs
from outbound_transfer_sandbox.store.database import Database
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
        self.persistence = 1.0  # the part of its repetitions that each of them makes
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

    def often(self, times: int) -> range:
        return range(int(times * self.persistence))

    def until_refused(self, act: Callable[[], httpx.Response], most: int) -> None:
        for _ in self.often(most):
            if not self.check(act()):
                return

    # ------------------------------------------------------------------------------------------------ without a key

    def call(self, length: int, times: int) -> None:
        for number in self.often(times):
            path = f"/v1/{'%C3%A9' * (length // 6)}{number}?{'q' * (length % 1000)}"
            for status, text in self.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()):
                assert status < 500, text
        assert on_disk(self.folder) <= QUOTA

    def read_the_feed(self, times: int) -> None:
        for _ in self.often(times):
            self.check(self.anyone.get("/v1/events"))

    def guess(self, length: int, times: int) -> None:
        """Signs in under names that do not exist."""
        token = csrf(self.anyone.get("/sign-in").text)
        for number in self.often(times):
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
        for _ in self.often(times):
            created = self.create(length)
            if self.check(created):
                self.check(self.http.delete(created.headers["Location"]))

    def sends(self, recipients: int, times: int, **fields: Any) -> None:
        """All of them at the end, when there is no room for much more."""
        drafts = []
        for _ in self.often(times) or [1]:
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
            for _ in self.often(times if found else 0):
                try:
                    self.check(self.http.get(found[1]))
                except httpx.RemoteProtocolError:  # there was no room for the event, so the download never ends
                    self.check(self.http.get("/v1/transfers"))

    def admissions(self, times: int) -> None:
        """A recipient who confirms the address again and again, each time in another browser."""
        for link in self.links[-1:]:
            for _ in self.often(times):
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


# ------------------------------------------------------------------------------------------------------- the machine

FOREIGN = st.sampled_from(
    [
        ("Origin", "https://evil.example"), ("Origin", "null"), ("Origin", "http://localhost:3000"),
        ("Origin", "http://127.0.0.1:1"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site"),
        ("Host", "evil.example"), ("Host", "127.0.0.1.evil.example"), ("Host", "0.0.0.0"),
        ("X-Forwarded-For", "203.0.113.9"), ("Forwarded", "for=203.0.113.9"), ("Via", "1.1 proxy"),
        ("X-Real-IP", "203.0.113.9"), ("X-Forwarded-Host", "localhost"),
    ]
)  # fmt: skip
CHANGES = st.sampled_from(
    [
        ("POST", "reset", None), ("POST", "event-key", None), ("DELETE", "faults", None), ("GET", "mailbox", None),
        ("POST", "clock", {"advance_seconds": 10**6}), ("POST", "events", {"count": 3}), ("GET", "ledger", None),
        ("PATCH", "account", {"api_enabled": False}), ("POST", "keys", {"user": "x@example.com"}),
        ("POST", "faults", [{"kind": "reset"}]), ("POST", "faults/release", None), ("GET", "none", None),
    ]
)  # fmt: skip
tokens = st.text("!#$%&'*+-.^_`|~abcXYZ019", min_size=1, max_size=12)
octets = st.binary(max_size=30) | st.sampled_from(
    [b"\xff", b"\x00", b"..", b"%00", b"%ff", b"/", b";", b'"', b"9" * 30]
)
long = st.tuples(octets, st.sampled_from([1, 1, 50, 2000])).map(lambda pair: pair[0] * pair[1])
NAMES = st.sampled_from(
    [b"Cookie", b"Range", b"Content-Type", b"Content-Disposition", b"Content-Length", b"Transfer-Encoding", b"Expect",
     b"Authorization", b"Accept", b"Connection", b"Upgrade", b"Host", b"Origin", b"If-Range"]
) | tokens.map(str.encode)  # fmt: skip
PATHS = st.sampled_from(
    [b"/v1/transfers", b"/v1/events", b"/v1/", b"/sign-in", b"/pickup/", b"/static/app.css", b"/mailbox", b"/", b"*",
     b"/v1/transfers/x/files", b"/_sandbox/state"]
)  # fmt: skip
METHODS = st.sampled_from([b"GET", b"POST", b"DELETE", b"PATCH", b"PUT", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT"])


class Hostile(RuleBasedStateMachine):
    clients: Clients

    @initialize()
    def begin(self) -> None:
        self.clients.begin()

    @rule(kind=st.sampled_from(sorted(KINDS)))
    def much_of_one_kind(self, kind: str) -> None:
        KINDS[kind](self.clients)

    @rule(method=METHODS | tokens.map(str.encode), path=PATHS, more=long, body=long,
          headers=st.lists(st.tuples(NAMES, long), max_size=4))  # fmt: skip
    def a_request_of_anything(self, method: bytes, path: bytes, more: bytes, body: bytes, headers: Any) -> None:
        """Sent with the key, as that leads further."""
        lines = [method + b" " + path + more.translate(None, b" \r\n") + b" HTTP/1.1", b"Host: localhost"]
        lines += [b"Authorization: Bearer " + self.clients.sandbox.transfer_api_key.encode(), b"Connection: close"]
        lines += [name + b": " + value.translate(None, b"\r\n") for name, value in headers]
        for status, text in self.clients.raw(b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])):
            assert status < 500 or b"cut off" in text, text

    @rule(change=CHANGES, foreign=FOREIGN, kind=st.sampled_from([None, "text/plain", "application/json"]))
    def a_page_or_a_proxy_calls_the_control_api(self, change: Any, foreign: tuple[str, str], kind: str | None) -> None:
        method, path, body = change
        headers = dict([foreign, *([("Content-Type", kind)] if kind else [])])
        content = json.dumps(body) if body else None
        before = self.clients.sandbox.state()
        answer = self.clients.anyone.request(method, f"/_sandbox/{path}", content=content, headers=headers)
        assert answer.status_code == 403, (change, foreign)
        after = self.clients.sandbox.state()
        assert {**before, "clock": ""} == {**after, "clock": ""}

    @invariant()
    def it_answers_and_the_disk_is_not_full(self) -> None:
        self.clients.check(self.clients.http.get("/v1/transfers"))


def explore(clients: Clients, **more: Any) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    default = settings(max_examples=6, stateful_step_count=12, deadline=None, suppress_health_check=checks)
    machine = type("Machine", (Hostile,), {"clients": clients})
    clients.persistence = 0.1
    run_state_machine_as_test(machine, settings=settings(default, **more))


def test_no_order_of_hostile_requests_breaks_the_sandbox(clients: Clients) -> None:
    explore(clients)


# Tests of the test: with one mend taken out, the machine must find it.


def logs_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs._BoundedLog, "trim", lambda *_: None)


def names_are_kept_as_they_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "_digest", lambda subject: subject)


def records_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space.Space, "check_records", lambda *_: None)


def files_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space.Space, "check_file", lambda *_: None)


def a_file_takes_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "on_disk", lambda size: size)
    monkeypatch.setattr(blobs, "on_disk", lambda size: size)


def changes_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(self: Database, quota: int | None) -> None:
        self._page, self._log_reserve = 4096, 0
        self.run("PRAGMA wal_autocheckpoint=0")

    monkeypatch.setattr(Database, "_apply_quota", bound)
    monkeypatch.setattr(Database, "size", lambda self: self.fetch_value("PRAGMA page_count") * 4096)


def pages_may_call_the_control_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        host_checks, "is_from_another_site", lambda headers: headers.get("origin", "").startswith("https")
    )


def proxies_may_call_the_control_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "is_forwarded", lambda headers: False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        (logs_without_end, "calls without a key"),
        (names_are_kept_as_they_are_tried, "names that are tried"),
        (records_are_not_counted, "large drafts"),
        (records_are_not_counted, "sends"),
        (records_are_not_counted, "downloads"),
        (records_are_not_counted, "large events"),
        (files_are_not_counted, "large files"),
        (a_file_takes_what_it_holds, "tiny files"),
        (changes_pile_up, "drafts that are discarded"),
    ],
)
def test_a_kind_that_is_not_bounded_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        KINDS[kind](request.getfixturevalue("clients"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        names_are_kept_as_they_are_tried,
        records_are_not_counted,
        pages_may_call_the_control_api,
        proxies_may_call_the_control_api,
    ],
)
def test_the_machine_finds(mutant: Any, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    mutant(monkeypatch)
    quick = {"derandomize": True, "database": None, "report_multiple_bugs": False, "phases": [Phase.generate]}
    with pytest.raises(AssertionError):
        explore(request.getfixturevalue("clients"), max_examples=100, **quick)
