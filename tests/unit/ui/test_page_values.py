"""What the page makes of parameters, rows and numbers: pure, and nothing of it trusts what it is given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

import pytest

from outbound_transfer.ui import view_models
from outbound_transfer.ui.filters import Filter, parse_filter
from outbound_transfer.ui.queries import Row

KEY = "0f" * 32
NOW = datetime(2026, 3, 10, 12, 30, 15, tzinfo=UTC)


# --------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    "params",
    [{}, {"days": "31"}, {"days": "-7"}, {"days": "٧"}, {"status": "nope"}, {"page": "x"}, {"page": "0"},
     {"page": "-1"}, {"sort": "nope"}, {"sort": "--age"}],
)  # fmt: skip
def test_invalid_parameters_are_ignored(params: dict[str, str]) -> None:
    assert parse_filter(params) == Filter()


def test_filter_survives_its_query_string() -> None:
    for wanted in (
        Filter(),
        Filter(days=7, status="in-flight", search="50% off & more", sort="-expires", page=3, refresh=True),
    ):
        query = wanted.query(page=wanted.page)
        assert parse_filter(dict(parse_qsl(query.removeprefix("?")))) == wanted


def test_a_page_number_has_a_bound() -> None:
    assert parse_filter({"page": "999999999"}).page == 9_999


# --------------------------------------------------------------------------------------------------------------- rows


def row(**values: Any) -> Row:
    return {
        "account": "account.example.com", "transfer_id": "t1", "conn_id": "c", "dag_id": "d", "task_id": "t",
        "run_id": "r", "map_index": -1, "try_number": 1, "subject": "Report", "shown_status": "pending", "error": "",
        "memory": "{}", "recipients": "[]", "recipient_count": 2, "picked_up_count": 1, "delivery": KEY,
        "created_at": NOW - timedelta(minutes=90), "sent_at": NOW - timedelta(hours=1),
        "expires_at": NOW + timedelta(hours=23),
    } | values  # fmt: skip


def shown(**values: Any) -> view_models.Shown:
    return view_models.show_delivery(row(**values), NOW, lambda _: "", shows_recipients=True)


def test_a_delivery() -> None:
    found = shown()
    assert found["web_url"] == ""
    linked = view_models.show_delivery(row(), NOW, "https://{}.example.com".format, shows_recipients=True)
    assert linked["web_url"] == "https://c.example.com/transfers/t1"
    assert (found["age"], found["time_left"], found["is_urgent"]) == ("1 h 30 min", "23 h", True)
    assert (found["run_path"], found["task_path"]) == ("dags/d/runs/r", "dags/d/runs/r/tasks/t")
    assert shown(map_index=3)["task_path"] == "dags/d/runs/r/tasks/t/mapped/3"


@pytest.mark.parametrize(
    ("values", "time_left", "is_urgent"),
    [({"shown_status": "complete"}, "–", False), ({"shown_status": "draft"}, "–", False),
     ({"expires_at": None}, "–", False),
     ({"expires_at": NOW - timedelta(minutes=30)}, "past", True),
     ({"shown_status": "a new one", "expires_at": NOW + timedelta(days=10)}, "10 d", False),
     ({"expires_at": NOW + timedelta(days=14, seconds=-10)}, "14 d", False),
     ({"expires_at": NOW + timedelta(days=7, seconds=-10)}, "7 d", False),
     ({"expires_at": NOW + timedelta(days=6, hours=22, minutes=1)}, "6 d 23 h", False),
     ({"expires_at": NOW + timedelta(hours=22, seconds=1)}, "23 h", True),
     ({"expires_at": NOW + timedelta(minutes=59, seconds=1)}, "1 h", True),
     ({"expires_at": NOW + timedelta(seconds=1)}, "1 min", True)],
)  # fmt: skip
def test_how_long_recipients_have(values: dict[str, Any], time_left: str, is_urgent: bool) -> None:
    found = shown(**values)
    assert (found["time_left"], found["is_urgent"]) == (time_left, is_urgent)


@pytest.mark.parametrize("status", ["unknown", "a new one"])
def test_an_unknown_status_says_so(status: str) -> None:
    assert (shown(shown_status=status)["outcome"], shown(shown_status=status)["status"]) == (
        "unknown",
        f"unknown status: {status}",
    )


def test_pickups_of_what_was_not_sent_are_not_counted() -> None:
    assert shown()["picked_up"] == "1 of 2"
    for status in ("draft", "deleted", "rehearsed"):
        assert shown(shown_status=status, sent_at=None)["picked_up"] == "–"


def test_links_cannot_leave_their_place() -> None:
    found = shown(dag_id="../..", run_id="a/b?c#d&e+00:00", task_id="%2e")
    assert found["task_path"] == "dags/..%2F../runs/a%2Fb%3Fc%23d%26e%2B00%3A00/tasks/%252e"


HELD = '{"entries": {"": {"files": {"a\\u0000": ["f1", 1000, "%s", ""], "begun": null}}}}'


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("", []), ("[", []), ("5", []),
     (HELD % ("A" * 43), [{"name": "a\ufffd", "size": "1 kB", "sha256": "00" * 32, "bytes": 1_000}])],
)  # fmt: skip
def test_files_of_any_memory(memory: str, expected: list[view_models.Shown]) -> None:
    assert view_models.files_of(memory) == expected


CURSOR: Row = {
    "account": "account.example.com", "cursor": 42, "updated_at": NOW - timedelta(seconds=1_815), "rejected": 3
}  # fmt: skip
POLL: Row = {"polled_at": NOW - timedelta(minutes=1), "status": 200, "note": None, "has_more": False}
FEED: Row = CURSOR | {"poll": POLL, "page": POLL}


def test_a_feed_that_was_never_polled_since_there_is_a_log() -> None:
    found = view_models.show_feed(CURSOR | {"poll": {}, "page": {}}, NOW)
    assert (found["lag"], found["polled_at"], found["status"]) == (1_815, None, "no response")
    assert found["is_late"]


def test_totals_by_outcome_lose_nothing() -> None:
    statuses = (
        "draft", "pending", "partial", "complete", "expired", "canceled", "no draft", "deleted", "unknown",
        "failed", "in doubt",
    )  # fmt: skip
    rows = [{"day": NOW.date(), "status": status, "count": 10**at} for at, status in enumerate(statuses)]
    rows.append({"day": NOW.date() - timedelta(days=7), "status": "draft", "count": 2})
    assert view_models.totals(rows, NOW - timedelta(days=6)) == {
        "complete": 1_000, "in-flight": 110, "expired": 10_000, "canceled-or-unmade": 11_100_000, "draft": 1,
        "failed": 10**9, "in-doubt": 10**10, "unknown": 10**8,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the picture
