"""Planned faults: each kind does to a real connection what it says, and is accounted for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.faults import kinds
from outbound_transfer_sandbox.testing import running_sandbox
from support.timeouts import TEST_TIMEOUT, eventually

# A caller who waits for no answer; the other limits only end a test that would hang.
GIVES_UP = httpx.Timeout(TEST_TIMEOUT, read=0.1)


@pytest.fixture
def plan(control: Any) -> Any:
    """Plan faults; at the end, every one must have been met."""
    yield control.plan_faults
    assert [row["state"] for row in control.faults()] == ["triggered"] * len(control.faults())


def drafts(control: Any) -> int:
    """Those that were created, whatever their creator was told."""
    rows = control.requests()
    return sum((row["method"], row["path"], row["status"]) == ("POST", "/v1/transfers", 201) for row in rows)


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_request"), (409, "invalid_state"), (429, "rate_limited"), (504, None)]
)
@pytest.mark.parametrize(("effect", "created"), [("before", 0), ("after", 1)])
def test_an_error(
    api: Any, control: Any, plan: Any, refused: Any, status: int, code: Any, effect: str, created: int
) -> None:
    plan({"kind": "error", "status": status, "effect": effect} | ({"code": code} if code else {}))
    refused(api.create(), status, code or "service_unavailable")
    assert drafts(control) == created
    assert api.create().status_code == 201
    assert [row["status"] for row in control.requests()] == [201] * (created + 1), "what reached the service"


@pytest.mark.parametrize("text", ["7", "0", "", "soon", "-1", "Wed, 21 Oct 2037 07:28:00 GMT"])
def test_retry_after_goes_out_as_it_is(api: Any, plan: Any, text: str) -> None:
    plan({"kind": "error", "status": 429, "retry_after": text}, {"kind": "error", "status": 429})
    assert api.create().headers["retry-after"] == text
    assert "retry-after" not in api.create().headers


@pytest.mark.parametrize(("effect", "created"), [("before", 0), ("after", 1)])
def test_a_reset(api: Any, control: Any, plan: Any, effect: str, created: int) -> None:
    plan({"kind": "reset", "effect": effect})
    with pytest.raises(httpx.TransportError):
        api.create()
    assert drafts(control) == created
    assert api.create().status_code == 201


@pytest.mark.parametrize("after_bytes", [0, 1, 1_000_000, 10**9])
def test_a_reset_within_the_request(api: Any, plan: Any, after_bytes: int) -> None:
    transfer = api.draft()["id"]
    plan({"kind": "reset_in_request", "after_bytes": after_bytes})
    with pytest.raises(httpx.TransportError):
        api.attach(transfer, content=b"x" * 3_000_000)
    assert api.get(transfer)["files"] == []


def test_a_reset_within_the_response(api: Any, control: Any, plan: Any, wire: Any) -> None:
    transfer = api.draft()["id"]
    plan({"kind": "reset_in_response", "after_bytes": 7})
    connection = wire()
    connection.request("GET", f"/v1/transfers/{transfer}")
    assert connection._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert connection._exactly(7) == b'{"id":"'
    with pytest.raises(ConnectionResetError):
        connection.socket.recv(1)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[float], threading.Event]]:
    """The seconds that delays were for; they are over when the event is set."""
    asked: list[float] = []
    over = threading.Event()

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await asyncio.get_running_loop().run_in_executor(None, over.wait)

    monkeypatch.setattr(kinds, "sleep", sleep)
    yield asked, over
    over.set()


@pytest.mark.parametrize(("effect", "status"), [("before", "draft"), ("after", "pending")])
def test_a_delay_of_a_send(api: Any, control: Any, plan: Any, delays: Any, effect: str, status: str) -> None:
    transfer = api.draft()["id"]
    api.attached(transfer)
    asked, over = delays
    plan({"kind": "delay", "seconds": 1.5, "path": "*/send", "effect": effect})
    with pytest.raises(httpx.ReadTimeout):
        api.http.post(f"/v1/transfers/{transfer}/send", timeout=GIVES_UP)
    eventually(lambda: asked == [1.5])
    assert api.get(transfer)["status"] == status
    assert control.faults()[0]["state"] == "held"
    over.set()
    eventually(lambda: control.faults()[0]["state"] == "triggered")
    assert api.get(transfer)["status"] == "pending"


@pytest.mark.parametrize(("effect", "created"), [("before", 0), ("after", 1)])
@pytest.mark.parametrize("then", ["go_on", "reset"])
def test_a_held_call_completes_or_is_lost_when_it_is_released(
    api: Any, control: Any, plan: Any, effect: str, created: int, then: str
) -> None:
    plan({"kind": "hold", "effect": effect} | ({"then": then} if then == "reset" else {}))
    ended: list[httpx.Response | httpx.TransportError] = []

    def create() -> None:
        try:
            ended.append(api.create())
        except httpx.TransportError as error:
            ended.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    eventually(lambda: control.faults()[0]["state"] == "held")
    assert control.faults()[0]["call"] == {"method": "POST", "path": "/v1/transfers"}
    assert drafts(control) == created
    assert not ended

    assert control.release_held_calls() == 1
    thread.join(TEST_TIMEOUT)
    assert isinstance(ended[0], httpx.TransportError) if then == "reset" else ended[0].status_code == 201
    assert drafts(control) == (created if then == "reset" else 1)
    assert control.release_held_calls() == 0


def test_a_sandbox_stops_while_a_call_is_held(capfd: Any) -> None:
    with running_sandbox() as sandbox:
        sandbox.plan_faults({"kind": "hold"})
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{sandbox.base_url}/v1/transfers", timeout=GIVES_UP)
    assert capfd.readouterr().err == ""


def test_a_truncated_page_and_a_malformed_line(api: Any, control: Any, unlimited: Any, plan: Any) -> None:
    control.add_events(3)
    whole = api.events().content
    for cut_bytes in (1, 10):
        plan({"kind": "truncated_page", "cut_bytes": cut_bytes})
        response = api.events()
        assert response.content == whole[:-cut_bytes]
        assert int(response.headers["content-length"]) == len(whole) - cut_bytes
        assert response.headers["x-next-cursor"] == "3"
    plan({"kind": "malformed_line", "line": 1, "text": "nonsense"})
    first, _, last = whole.splitlines()
    assert api.events().content.splitlines() == [first, b"nonsense", last]


@pytest.mark.parametrize("name", ["X-Next-Cursor", "X-Has-More", "Content-Type"])
def test_a_feed_header(api: Any, plan: Any, unlimited: Any, name: str) -> None:
    for value in (None, "", "-1"):
        plan({"kind": "feed_header", "name": name, "value": value})
        assert api.events().headers.get(name) == value


def test_a_status_outside_the_list(api: Any, plan: Any) -> None:
    draft, sent = api.draft()["id"], api.sent()["id"]
    plan(*[{"kind": "status_value", "status": "frozen", "method": "GET"}] * 2)
    assert api.get(draft)["status"] == "draft"
    assert api.get(sent)["status"] == "frozen"
    assert api.page()["data"][0]["status"] == "frozen"
    assert api.get(sent)["status"] == "pending"


def test_an_error_with_a_body_and_headers_of_its_own(api: Any, plan: Any) -> None:
    headers = {"Date": "Thu, 01 Jan 1970 00:00:00 GMT", "X-Request-Id": "7"}
    body = '{"detail":"Not Found"}'
    plan({"kind": "error", "status": 404, "body": body, "headers": headers, "retry_after": "9" * 400})
    response = api.http.get("/v1/transfers/x")
    assert (response.text, response.headers["retry-after"]) == (body, "9" * 400)
    assert response.headers["date"] == headers["Date"]
    assert response.headers["x-request-id"] == "7"


@pytest.mark.parametrize(
    ("name", "value"),
    [("Date", "Fri, 31 Dec 9999 23:59:59 GMT"), ("Retry-After", "1" + "0" * 30), ("Content-Type", None), ("X-New", "")],
)
def test_a_header_of_any_answer(api: Any, plan: Any, name: str, value: str | None) -> None:
    plan(*[{"kind": "header", "name": name, "value": value}] * 2)
    for response in (api.http.get("/v1/transfers"), api.http.get("/v1/transfers/none")):
        assert response.headers.get_list(name) == ([] if value is None else [value])


@pytest.mark.parametrize("json_text", ["null", "7", '"\\ud800"', "[[]]", "1e999", "{]", '"' + "x" * 100_000 + '"'])
def test_a_field_of_one_row(api: Any, plan: Any, json_text: str) -> None:
    older, newer = api.sent()["id"], api.sent()["id"]
    whole = api.http.get("/v1/transfers").text
    plan({"kind": "field_value", "field": "subject", "json": json_text, "row": 1, "path": "/v1/transfers"})
    answer = api.http.get("/v1/transfers").text
    assert answer.count(f'"subject":{json_text}') == 1
    assert answer.index(newer) < answer.index(json_text)
    assert answer.replace(f'"subject":{json_text}', '"subject":"Report"') == whole
    plan({"kind": "field_value", "field": "status", "json": json_text})
    assert f'"status":{json_text}' in api.http.get(f"/v1/transfers/{older}").text


@pytest.mark.parametrize(("effect", "created"), [("before", 0), ("after", 1)])
def test_a_call_gets_a_non_http_reply(api: Any, control: Any, plan: Any, wire: Any, effect: str, created: int) -> None:
    plan(*[{"kind": "not_http", "text": f"Bearer {api.key} what?\r\n", "effect": effect}] * 2)
    # A connection that is closed with something unread may be reset before the client has read the text.
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        api.create()
    assert drafts(control) == created
    connection = wire()
    connection.request("GET", "/v1/transfers")
    assert connection._until(b"\n") == f"Bearer {api.key} what?\r\n".encode()
    assert connection.socket.recv(1) == b""
    assert api.create().status_code == 201


def test_broken_json(api: Any, control: Any, plan: Any) -> None:
    plan({"kind": "truncated_json", "keep_bytes": 3}, {"kind": "malformed_json", "text": "<html>"})
    assert api.create().content == b'{"i'
    assert api.create().content == b"<html>"
    assert drafts(control) == 2


def test_faults_that_need_an_answer_wait_for_one_that_can_bear_them(api: Any, control: Any, plan: Any) -> None:
    plan({"kind": "truncated_page"}, {"kind": "error", "status": 500})
    assert api.events().status_code == 200, "an empty page cannot be truncated"
    assert api.create().status_code == 201
    assert [row["state"] for row in control.faults()] == ["planned", "planned"]
    control.add_events(1)
    control.advance_clock(60)
    with pytest.raises(json.JSONDecodeError):
        api.events().json()
    assert api.create().status_code == 500


def test_plans_are_met_in_order_by_the_calls_that_they_mean(api: Any, control: Any, plan: Any) -> None:
    plan(
        {"kind": "error", "status": 500, "method": "GET", "path": "/v1/transfers/*", "skip": 1},
        {"kind": "error", "status": 502, "skip": 1},
    )
    transfer = api.draft()["id"]
    assert [api.http.get(f"/v1/transfers/{transfer}").status_code for _ in range(4)] == [200, 500, 200, 502]
    met = {"state": "triggered", "passed": 1, "call": {"method": "GET", "path": f"/v1/transfers/{transfer}"}}
    rows = control.faults()
    assert rows[1].items() >= met.items()
    defaults = {"code": None, "message": "A planned fault.", "body": None, "retry_after": None, "headers": {}}
    planned = {"kind": "error", "status": 500, "effect": "before", "method": "GET", "path": "/v1/transfers/*"}
    assert rows[0] == planned | defaults | {"skip": 1} | met


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "earthquake"}, {"status": 500}, {"kind": "reset", "colour": "blue"},
        {"kind": "reset", "effect": "during"}, {"kind": "reset", "skip": -1},
        {"kind": "error"}, {"kind": "error", "status": 200},
        {"kind": "error", "status": 429, "retry_after": "1\r\nX-Evil: 1"},
        {"kind": "delay", "seconds": -1}, {"kind": "feed_header", "name": "X-Other"},
        {"kind": "header", "name": "X Other"}, {"kind": "header", "name": "Date", "value": "a\r\nb"},
        {"kind": "field_value", "field": "subject"},
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_fault_is_refused_with_all_planned_beside_it(api: Any, control: Any, fault: dict[str, Any]) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        control.plan_faults({"kind": "reset"}, fault)
    assert control.faults() == []
    assert api.create().status_code == 201
