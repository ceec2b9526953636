"""GET /v1/events: pages, cursors, what they carry."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

pytestmark = [pytest.mark.rule("R41, R42"), pytest.mark.usefixtures("unlimited")]

ANN = {"email": "ann@example.com"}
BOB = {"email": "bob@example.com"}
NUMBERS = ("", "-1", "x", "1.0", "9" * 400)


def lines(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.content.split(b"\n") if line]


@pytest.mark.rule("R46")
def test_sends_and_downloads_become_events_and_drafts_do_not(api: Any, control: Any) -> None:
    draft = api.draft()["id"]
    api.attached(draft)
    api.send(api.draft()["id"])
    api.http.delete(f"/v1/transfers/{draft}")
    response = api.events()
    headers = [response.headers[name] for name in ("content-type", "x-next-cursor", "x-has-more")]
    assert (response.content, headers) == (b"", ["application/x-ndjson", "0", "false"])

    transfer = api.sent(files=2, recipients=[ANN, BOB])
    control.pickup(transfer["id"], "bob@example.com")
    response = api.events()
    events = lines(response)
    assert response.content.endswith(b"\n")
    assert [event["type"] for event in events] == ["transfer_sent", "file_downloaded", "file_downloaded"]
    assert all(set(event) == {"event_id", "type", "timestamp", "data"} for event in events)
    assert events[0]["timestamp"] == transfer["sent_at"]
    assert all(event["data"]["transfer_id"] == transfer["id"] for event in events)
    assert {event["data"]["file_id"] for event in events[1:]} == {file["id"] for file in transfer["files"]}
    assert [event["data"]["recipient"] for event in events[1:]] == ["bob@example.com"] * 2
    assert datetime.fromisoformat(events[1]["timestamp"])


@pytest.mark.rule("R44")
@pytest.mark.parametrize("limit", [1, 3, 7, 10, 11, 1000])
def test_paging_has_no_duplicates_and_no_gaps(api: Any, control: Any, limit: int) -> None:
    control.add_events(10)
    seen, cursor, more = [], 0, "true"
    while more == "true":
        response = api.events(cursor=cursor, limit=limit)
        page = lines(response)
        assert 0 < len(page) <= limit
        seen += [event["event_id"] for event in page]
        cursor, more = int(response.headers["x-next-cursor"]), response.headers["x-has-more"]
        assert cursor == seen[-1]
    assert more == "false"
    assert len(seen) == 10
    assert seen == sorted(set(seen))
    for beyond in (cursor, 2**63 - 1):
        response = api.events(cursor=beyond, limit=limit)
        assert (response.content, response.headers["x-next-cursor"]) == (b"", str(beyond))


@pytest.mark.rule("R41: limit; R43")
def test_a_page_has_a_thousand_events_and_cursors_belong_to_the_client(api: Any, control: Any) -> None:
    assert control.add_events(100_000) == 100_000
    for params in ({}, {"limit": 1000}):
        response = api.events(**params)
        assert len(lines(response)) == 1000
        assert response.headers["x-has-more"] == "true"
    last = api.events(cursor=99_998)
    assert [event["event_id"] for event in lines(last)] == [99_999, 100_000]
    assert last.headers["x-has-more"] == "false"
    control.advance_clock(3650 * 86_400)
    assert api.events(cursor=0).content == response.content
    assert lines(api.events(cursor=3, limit=997)) == lines(response)[3:]


@pytest.mark.parametrize(
    ("name", "value"),
    [("cursor", each) for each in (*NUMBERS, "1e3", "+1", "0x1", " 1", "٣", str(2**63))]
    + [("limit", each) for each in (*NUMBERS, "0", "1001")],
)
def test_an_invalid_cursor_or_limit_is_refused_by_name(api: Any, refused: Any, name: str, value: str) -> None:
    assert name in refused(api.events(**{name: value}), 400, "invalid_request")


def test_types_and_data_are_open(api: Any, control: Any) -> None:
    data = {"text": "line\nbreak\u2028 é", "deep": [1, {"x": None}]}
    control.add_events(2, "policy_changed", data)
    events = lines(api.events())
    assert [(event["type"], event["data"]) for event in events] == [("policy_changed", data)] * 2


@pytest.mark.rule("R16")
def test_the_usage_log_has_every_call(api: Any, control: Any) -> None:
    control.add_events(3)
    api.events(limit=2)
    api.events(limit=0)
    api.http.get("/v1/events")
    control.patch_account(feed_interval_seconds=60)
    api.events()
    assert [(row["status"], row["events"]) for row in control.feed_calls()] == [(200, 2), (400, 0), (401, 0), (429, 0)]
