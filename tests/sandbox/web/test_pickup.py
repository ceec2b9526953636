"""Recipients: six ways to authenticate, wrong answers, what one link opens, and what a download does."""

from __future__ import annotations

import re
import socket
import sqlite3
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox

ANN = {"email": "ann@example.com", "name": "Ann", "phone": "+1 555 0100 42"}
BOB = {"email": "bob@example.com", "phone": "5550143"}
QUESTION = {"security": "question", "security_question": "Where?", "security_answer": "In  Lisbon"}
FILE = re.compile(r'href="(/pickup/[^"]+/files/[^"]+)"')


@pytest.fixture
def link(send: Any, links: Any) -> Callable[..., str]:
    """Ann's link to a transfer that was just sent."""

    def make(**fields: Any) -> str:
        send(**{"recipients": [ANN], **fields})
        found: str = links()["ann@example.com"]
        return found

    return make


@pytest.fixture
def status(sandbox: Sandbox) -> Callable[[], str]:
    """Of the transfer that was sent last."""

    def read() -> str:
        bearer = {"Authorization": f"Bearer {sandbox.transfer_api_key}"}
        return str(httpx.get(f"{sandbox.base_url}/v1/transfers", headers=bearer).json()["data"][0]["status"])

    return read


def downloads(sandbox: Sandbox) -> list[dict[str, Any]]:
    """The events that say so."""
    bearer = {"Authorization": f"Bearer {sandbox.event_api_key}"}
    sandbox.patch_account(feed_interval_seconds=0)
    lines = httpx.get(f"{sandbox.base_url}/v1/events", headers=bearer).text.splitlines()
    events = [httpx.Response(200, text=line).json() for line in lines]
    return [event["data"] for event in events if event["type"] == "file_downloaded"]


def codes(sandbox: Sandbox) -> list[tuple[str, str, str]]:
    return [(m["channel"], m["address"], m["code"]) for m in sandbox.call("GET", "mailbox") if m["code"]]


def test_the_link_suffices_as_the_control_api_does(
    sandbox: Sandbox, send: Any, link: Any, browser: Any, status: Any
) -> None:
    sandbox.pickup(send(recipients=[ANN])["id"], "ann@example.com")
    recipient = browser()
    page = recipient.get(link())
    assert status() == "pending"
    assert recipient.get(FILE.search(page.text)[1]).content == b"hello"
    assert status() == "complete"
    by_control, by_page = downloads(sandbox)
    told = {"recipient": "ann@example.com", "file_name": "report.txt", "file_size": 5}
    assert set(by_control) == set(by_page)
    assert by_control.items() & by_page.items() >= told.items()
    assert "First downloaded" in recipient.get(page.url.path).text


@pytest.mark.parametrize("security", ["email", "email_code", "sms", "question", "login"])
def test_nothing_is_told_before(link: Any, browser: Any, security: str) -> None:
    fields = QUESTION if security == "question" else {"security": security}
    page = browser().get(link(subject="Layoffs", message="All of them", **fields)).text
    assert "sender@example.com" in page
    for secret in ("Layoffs", "All of them", "report.txt", "Lisbon", ANN["phone"]):
        assert secret not in page


def test_the_address_is_confirmed_and_those_that_differ_are_two_people(send: Any, links: Any, browser: Any) -> None:
    send(security="email", recipients=[{"email": "strauß@example.com"}, ANN])
    path = links()["strauß@example.com"]
    assert not FILE.search(browser().get(path).text)
    for wrong in ("ann@example.com", "strauss@example.com"):
        assert browser().post(path, answer=wrong).status_code == 403
    assert FILE.search(browser().post(path, answer=" STRAUß@Example.com ").text)


@pytest.mark.parametrize(
    ("security", "channel", "address"), [("email_code", "email", ANN["email"]), ("sms", "text", ANN["phone"])]
)
def test_a_code(sandbox: Sandbox, link: Any, browser: Any, security: str, channel: str, address: str) -> None:
    path, recipient = link(security=security), browser()
    assert ANN["phone"] not in recipient.get(path).text
    assert recipient.post(path, answer="").status_code == 403
    recipient.post(path, f"{path}/code")
    recipient.post(path, f"{path}/code")
    first, second = codes(sandbox)
    assert first[:2] == second[:2] == (channel, address)
    if first != second:
        assert recipient.post(path, answer=first[2]).status_code == 403
    assert FILE.search(recipient.post(path, answer=f"{second[2][:3]} {second[2][3:]}").text)
    assert browser().post(path, answer=second[2]).status_code == 403, "a code is good once"


def test_a_question(link: Any, browser: Any) -> None:
    path, recipient = link(**QUESTION), browser()
    assert "Where?" in recipient.get(path).text
    assert recipient.post(path, answer="Lisbon").status_code == 403
    assert FILE.search(recipient.post(path, answer="in LISBON").text)


def test_a_guest_registers_once_and_signs_in(sandbox: Sandbox, link: Any, browser: Any) -> None:
    path, recipient = link(security="login"), browser()
    assert recipient.post(path, answer="").status_code == 403
    assert recipient.post(path, f"{path}/register", password="short").status_code == 400
    registered = recipient.post(path, f"{path}/register", password="long enough")
    assert not FILE.search(registered.text)
    assert recipient.post(path, f"{path}/register", password="taken over").status_code == 409
    assert recipient.post(path, answer="taken over").status_code == 403
    assert FILE.search(recipient.post(path, answer="long enough").text)
    later = link(security="login", subject="Second", recipients=[{"email": "Ann@example.com"}, ANN])
    assert FILE.search(browser().post(later, answer="long enough").text)


@pytest.mark.parametrize("fields", [{"security": s} for s in ("email", "email_code", "sms", "login")] + [QUESTION])
def test_wrong_answers_are_limited(sandbox: Sandbox, link: Any, browser: Any, fields: dict[str, str]) -> None:
    path, recipient = link(**fields), browser()
    right = {"email": "ann@example.com", "login": "long enough", "question": "in lisbon"}.get(fields["security"])
    if fields["security"] == "login":
        recipient.post(path, f"{path}/register", password=right)
    if right is None:
        recipient.post(path, f"{path}/code")
        right = codes(sandbox)[0][2]
    for _ in range(defaults.MAX_WRONG_ANSWERS):
        assert browser().post(path, answer="wrong").status_code == 403
    locked = recipient.post(path, answer=right)
    assert locked.status_code == 429
    assert not FILE.search(locked.text)
    sandbox.advance_clock(defaults.LOCKOUT_SECONDS + 1)
    if right.isdigit():
        recipient.post(path, f"{path}/code")
        right = codes(sandbox)[-1][2]
    assert FILE.search(recipient.post(path, answer=right).text)


@pytest.mark.parametrize("security", ["email", "question"])
def test_one_recipient_never_sees_another(
    sandbox: Sandbox, send: Any, links: Any, browser: Any, status: Any, security: str
) -> None:
    send(recipients=[ANN, BOB], **({**QUESTION} if security == "question" else {"security": security}))
    ann, bob = links()["ann@example.com"], links()["bob@example.com"]
    recipient = browser()
    page = recipient.post(ann, answer="In Lisbon" if security == "question" else "ann@example.com")
    file = FILE.search(page.text)[1]
    assert "bob@example.com" not in page.text
    assert all(BOB["email"] not in m["text"] for m in sandbox.call("GET", "mailbox") if m["address"] == ANN["email"])
    assert not FILE.search(recipient.get(bob).text)
    assert recipient.get(file.replace(ann, bob)).status_code == 403
    # Not even with Ann's cookie sent to Bob's link on purpose.
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in recipient.http.cookies.jar if cookie.path == ann)
    assert httpx.get(f"{sandbox.base_url}{file}", headers={"Cookie": cookies}).status_code == 200
    stolen = httpx.get(f"{sandbox.base_url}{bob}/files/x", headers={"Cookie": cookies})
    assert stolen.status_code == 403
    assert browser().get(file).status_code == 403
    assert status() == "partial"


def test_a_file_of_another_transfer(send: Any, links: Any, browser: Any) -> None:
    other = send(recipients=[BOB])["files"][0]["id"]
    send(recipients=[ANN])
    assert browser().get(f"{links()['ann@example.com']}/files/{other}").status_code == 404


def test_links_are_kept_as_hashes_only(tmp_path: Any) -> None:
    """Beside the mail itself, as in any mailbox."""
    with running_sandbox(tmp_path) as sandbox, httpx.Client(base_url=sandbox.base_url) as http:
        http.headers["Authorization"] = f"Bearer {sandbox.transfer_api_key}"
        path = http.post("/v1/transfers", json={"subject": "x", "recipients": [ANN], **QUESTION}).headers["Location"]
        http.post(f"{path}/files", content=b"x", headers={"Content-Disposition": "attachment; filename=a"})
        http.post(f"{path}/send").raise_for_status()
        sandbox.call("POST", "sign-ins", {"user": "x", "password": "a-password-of-mine"})
        token = sandbox.call("GET", "mailbox")[0]["link"].removeprefix("/pickup/")
    with sqlite3.connect(tmp_path / "sandbox.sqlite") as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {table: str(db.execute(f"SELECT * FROM {table}").fetchall()) for table in tables}
    db.close()
    assert [table for table, text in rows.items() if token in text] == ["mail"]
    assert [table for table, text in rows.items() if "Lisbon" in text or "a-password-of-mine" in text] == []


@pytest.mark.parametrize("end", ["canceled", "expired"])
def test_a_link_ends_with_its_transfer(sandbox: Sandbox, send: Any, links: Any, browser: Any, end: str) -> None:
    transfer = send()
    path, recipient = links()["ann@example.com"], browser()
    file = FILE.search(recipient.get(path).text)[1]
    if end == "canceled":
        sandbox.cancel(transfer["id"])
    else:
        sandbox.advance_clock(15 * 86_400)
    for place in (path, file):
        answer = recipient.get(place)
        assert answer.status_code == 409
        assert end in answer.text
        assert "report.txt" not in answer.text


@pytest.mark.parametrize("size", [0, 1, 1 << 18, (1 << 20) + 1])
def test_a_download_marks_its_recipient_when_it_ends(
    sandbox: Sandbox, send: Any, links: Any, browser: Any, status: Any, size: int
) -> None:
    send((("a.bin", b"x" * size),), recipients=[ANN, BOB])
    recipient = browser()
    path = FILE.search(recipient.get(links()["ann@example.com"]).text)[1]
    assert recipient.http.head(path).status_code in {200, 405}
    assert status() == "pending"
    assert len(recipient.get(path).content) == size
    assert status() == "partial"
    assert len(downloads(sandbox)) == 1


def test_a_download_that_breaks_off_counts_for_nothing(
    sandbox: Sandbox, send: Any, links: Any, browser: Any, status: Any
) -> None:
    send((("big.bin", b"x" * 50_000_000),))
    path = FILE.search(browser().get(links()["ann@example.com"]).text)[1]
    url = httpx.URL(sandbox.base_url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    sandbox.state()
    assert status() == "pending"
    assert downloads(sandbox) == []


def test_the_mailbox_is_its_senders(sandbox: Sandbox, send: Any, user: Any, other: Any, administrator: Any) -> None:
    send(subject="For Ann")
    assert user.get("/mailbox/1").status_code == 200
    assert administrator.get("/mailbox/1").status_code == 200
    assert other.get("/mailbox/1").status_code == 404
    assert "For Ann" not in other.get("/mailbox").text
    assert "For Ann" in user.get("/mailbox?address=ann@example.com").text
    assert "For Ann" not in user.get("/mailbox?address=bob@example.com").text
    assert other.get(f"/mailbox/{10**30}").status_code == 404
