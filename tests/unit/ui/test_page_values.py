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


WRONG = {"days": ("31", "-7", "٧"), "status": ("nope",), "page": ("x", "0", "-1"), "sort": ("nope", "--age")}


def test_a_filter_survives_its_query_string_and_invalid_parameters_are_ignored() -> None:
    full = Filter(days=7, status="in-flight", search="50% off & more", sort="-expires", page=3, refresh=True)
    for wanted in (Filter(), full):
        assert parse_filter(dict(parse_qsl(wanted.query(page=wanted.page).removeprefix("?")))) == wanted
    assert all(parse_filter({name: value}) == Filter() for name, values in WRONG.items() for value in values)
    assert parse_filter({"page": "999999999"}).page == 9_999


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


def test_how_long_recipients_have() -> None:
    day = 86_400
    left = {-1_800: "past", 1: "1 min", 3_541: "1 h", 79_201: "23 h", 6 * day + 79_260: "6 d 23 h", 7 * day - 10: "7 d"}
    for seconds, text in left.items():
        found = shown(expires_at=NOW + timedelta(seconds=seconds))
        assert (found["time_left"], found["is_urgent"]) == (text, seconds < day)
    for values in ({"shown_status": "complete"}, {"shown_status": "draft"}, {"expires_at": None}):
        assert shown(**values)["time_left"] == "–"
        assert not shown(**values)["is_urgent"]


def test_an_unknown_status_says_so() -> None:
    for status in ("unknown", "a new one"):
        found = shown(shown_status=status)
        assert (found["outcome"], found["status"]) == ("unknown", f"unknown status: {status}")


def test_pickups_of_what_was_not_sent_are_not_counted() -> None:
    assert shown()["picked_up"] == "1 of 2"
    for status in ("draft", "deleted", "rehearsed"):
        assert shown(shown_status=status, sent_at=None)["picked_up"] == "–"


def test_links_cannot_leave_their_place() -> None:
    assert shown(map_index=3)["task_path"] == "dags/d/runs/r/tasks/t/mapped/3"
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
