"""The web application: who may see what, keys shown once, settings that hold, and no way in for another site."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.testing import Sandbox
from outbound_transfer_sandbox.web import account, events, keys, mailbox, pickup, sign_in, transfers

KEYS, EVENTS = "/profile/integrations/api-keys", "/account/security/events"
SIGNED_IN = [*transfers.routes, *keys.routes, *account.routes, *events.routes, *mailbox.routes, sign_in.routes[-1]]
FORMS = [route.path for route in [*SIGNED_IN, *sign_in.routes, *pickup.routes] if "POST" in route.methods]


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "1", path)


@pytest.mark.parametrize("route", SIGNED_IN, ids=lambda route: f"{route.path} {min(route.methods)}")
def test_nobody_gets_past_sign_in(browser: Callable[[], Any], route: Any) -> None:
    stranger = browser()
    if "POST" in route.methods:
        answer = stranger.post("/sign-in", filled(route.path))
    else:
        answer = stranger.get(filled(route.path))
    assert answer.url.path == "/sign-in"
    assert answer.history[0].status_code == 303


@pytest.mark.parametrize(
    "route", [*account.routes, *events.routes], ids=lambda route: f"{route.path} {min(route.methods)}"
)
def test_only_an_administrator_sees_account_settings(
    sandbox: Sandbox, user: Any, administrator: Any, read: Any, route: Any
) -> None:
    before = sandbox.state()["account"]
    answer = user.post(KEYS, route.path, plan="free") if "POST" in route.methods else user.get(route.path)
    assert answer.status_code == 403
    assert "Only an administrator" in read(answer)
    assert sandbox.state()["account"] == before
    assert "Account settings" not in read(user.get("/transfers"))
    assert "Account settings" in read(administrator.get("/transfers"))


def test_no_form_works_without_its_token(send: Any, links: Any, administrator: Any) -> None:
    send()
    link = next(iter(links().values()))
    assert len(FORMS) >= 10
    for path in FORMS:
        for token in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ä"}):
            address = filled(path.replace("/pickup/{token}", link))
            answer = administrator.http.post(address, data={"user": "x", "answer": "x", **token})
            assert answer.status_code == 403, address
            assert "out of date" in answer.text


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost.evil.example", "null", "http://127.0.0.1"]
)
def test_forms_of_other_sites_are_refused(user: Any, origin: str) -> None:
    answer = user.http.post(KEYS, data={"csrf": user.csrf(KEYS), "label": "x"}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "another site" in answer.text


@pytest.mark.parametrize("password", ["wrong", "", "correct horse "])
def test_a_wrong_password(browser: Callable[[], Any], user: Any, password: str) -> None:
    stranger = browser()
    answer = stranger.sign_in("sender@example.com", password)
    assert answer.status_code == 403
    unknown = browser().sign_in("nobody@example.com", password)
    assert unknown.status_code == 403
    texts = [re.sub("value=.*|<time.*</time>", "", page.text) for page in (answer, unknown)]
    assert texts[0] == texts[1]


def test_a_session_ends(sandbox: Sandbox, user: Any, other: Any) -> None:
    cookies = dict(user.http.cookies)
    sandbox.advance_clock(100 * 86_400)
    assert user.get("/transfers").url.path == "/transfers"
    assert user.post("/transfers", "/sign-out").url.path == "/sign-in"
    user.http.cookies.update(cookies)
    assert user.get("/transfers").url.path == "/sign-in"
    sandbox.patch_user("other@example.com", active=False)
    assert other.get("/transfers").url.path == "/sign-in"


def test_a_key_is_shown_once_used_revoked_and_nobody_elses(
    sandbox: Sandbox, user: Any, other: Any, administrator: Any, read: Any
) -> None:
    def status() -> int:
        url = f"{sandbox.base_url}/v1/transfers"
        return httpx.get(url, headers={"Authorization": f"Bearer {key}"}).status_code

    shown = user.post(KEYS, label="<i>nightly</i>")
    key = re.search(r"obt_\w+", shown.text)[0]
    again = user.get(KEYS)
    assert key not in again.text
    assert "<i>nightly</i>" in read(again)
    assert read(again).count("never") == 2
    assert status() == 200
    assert read(user.get(KEYS)).count("never") == 1
    newest = re.search(r"/api-keys/(\d+)/revoke", again.text)[1]
    for stranger in (other, administrator):
        assert "You have no keys yet" in read(stranger.get(KEYS))
        assert stranger.post(KEYS, f"{KEYS}/{newest}/revoke").status_code == 404
    assert user.post(KEYS, f"{KEYS}/{10**30}/revoke").status_code == 404
    assert status() == 200
    assert "revoked" in read(user.post(KEYS, f"{KEYS}/{newest}/revoke"))
    assert status() == 401


def test_settings_are_saved(sandbox: Sandbox, administrator: Any) -> None:
    texts = {"plan": "trial", "default_security": "email", "billing": "per_transfer"}
    numbers = {
        "recipients_per_transfer": 9, "per_file_limit_mb": 7, "delivery_window_days": 3,
        "outstanding_transfer_limit": 5, "scheduled_sends": 1, "credits": 2, "requests_per_window": 11,
        "window_seconds": 2.5, "feed_interval_seconds": 0,
    }  # fmt: skip
    options = {"security_options": ["email", "sms"]}
    saved = administrator.post("/account", **texts, **numbers, **options, outgoing_enabled="true")
    assert "Saved." in saved.text
    switches = {"api_enabled": False, "outgoing_enabled": True, "auto_pickup_seconds": None}
    assert sandbox.state()["account"] == {**texts, **numbers, **options, **switches}


def test_monitoring(sandbox: Sandbox, administrator: Any, read: Any) -> None:
    def status(key: str) -> int:
        return httpx.get(f"{sandbox.base_url}/v1/events", headers={"Authorization": f"Bearer {key}"}).status_code

    sandbox.patch_account(feed_interval_seconds=0)
    assert "Enable monitoring" in read(administrator.post(EVENTS, f"{EVENTS}/end"))
    assert status(sandbox.event_api_key) == 401
    first = re.search(r"obs_\w+", administrator.post(EVENTS, f"{EVENTS}/key").text)[0]
    assert first not in administrator.get(EVENTS).text
    second = re.search(r"obs_\w+", administrator.post(EVENTS, f"{EVENTS}/key").text)[0]
    assert [status(key) for key in (first, second)] == [401, 200]


def test_transfers_are_their_senders_who_cancel_them(
    send: Any, user: Any, other: Any, administrator: Any, read: Any
) -> None:
    path = f"/transfers/{send(subject='Payroll')['id']}"
    assert "Payroll" in read(user.get("/transfers"))
    for stranger in (other, administrator):
        assert "Payroll" not in read(stranger.get("/transfers"))
        assert stranger.get(path).status_code == 404
        assert stranger.post("/transfers", f"{path}/cancel").status_code == 404
    assert "pending" in read(user.get(path))
    assert "canceled" in read(user.post(path, f"{path}/cancel"))
    assert user.post("/transfers", f"{path}/cancel").status_code == 409
    assert read(user.get("/transfers?status=canceled")).count("Payroll") == 1
    assert "No transfers are pending" in read(user.get("/transfers?status=pending"))


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}\r\nSet-Cookie: a=b"


def test_hostile_text_stays_text(sandbox: Sandbox, send: Any, links: Any, user: Any, browser: Any) -> None:
    transfer = send(
        ((HOSTILE.replace("/", "").replace('"', "").replace("\r\n", ""), b"x"),),
        subject=HOSTILE,
        message=HOSTILE,
        recipients=[{"email": "ann@example.com", "name": HOSTILE}],
        security="question",
        security_question=HOSTILE,
        security_answer="x",
    )
    link = links()["ann@example.com"]
    recipient = browser()
    pages = [user.get(path) for path in ("/transfers", f"/transfers/{transfer['id']}", "/mailbox", "/mailbox/1", KEYS)]
    pages += [recipient.get(link), recipient.post(link, answer="x"), browser().post("/sign-in", user=HOSTILE)]
    pages.append(user.get("/mailbox?address=" + httpx.QueryParams({"a": HOSTILE}).__str__()[2:]))
    for page in pages:
        assert "<script" not in page.text
        assert "<img src=x" not in page.text
        assert ">49" not in page.text
        assert "a" not in page.cookies
    assert sum("&lt;script&gt;" in page.text for page in pages) >= 7


def test_no_page_needs_or_allows_a_script(send: Any, links: Any, user: Any, administrator: Any, browser: Any) -> None:
    transfer = send()
    pages = [administrator.get(path) for path in ("/account", EVENTS, KEYS, "/nope/nope")]
    pages += [user.get(path) for path in ("/transfers", f"/transfers/{transfer['id']}", "/mailbox", "/mailbox/1")]
    pages += [browser().get("/sign-in"), browser().get(next(iter(links().values()))), user.get("/static/app.css")]
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert {d.split()[0] for d in policy.split("; ")} >= {"form-action", "base-uri", "frame-ancestors"}
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<script|<style|\son\w+=|\sstyle=|https?://(?!127)", page.text.split("</head>")[-1])
