"""What the page makes of parameters, rows and numbers: pure, and nothing of it trusts what it is given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

import pytest

from outbound_transfer.ui import view_models
from outbound_transfer.ui.filters import Filter, Position, parse_filter
from outbound_transfer.ui.queries import Row, row_position

KEY = "0f" * 32
NOW = datetime(2026, 3, 10, 12, 30, 15, tzinfo=UTC)


# --------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    "params",
    [{}, {"days": "31"}, {"days": "-7"}, {"days": "٧"}, {"status": "nope"}, {"older": "x"},
     {"older": "2026-99-99T00:00:00.000000Z~t"},
     {"older": f"2026-99-99T00:00:00.000000Z~{KEY}"}, {"older": f"2026-01-01T00:00:00.000000Z~{KEY}0"}],
)  # fmt: skip
def test_invalid_parameters_are_ignored(params: dict[str, str]) -> None:
    assert parse_filter(params) == Filter()


def test_filter_survives_its_query_string() -> None:
    position = Position(datetime(2026, 1, 1, 12, 30, 15, 7, tzinfo=UTC), KEY)
    for wanted in (
        Filter(),
        Filter(days=7, status="in-flight", search="50% off & more", older=position, refresh=True),
    ):
        query = wanted.query(older=wanted.older)
        assert parse_filter(dict(parse_qsl(query.removeprefix("?")))) == wanted


def test_changed_filter_starts_at_its_first_page() -> None:
    wanted = Filter(status="expired", older=Position(NOW, KEY))
    assert wanted.query(days=90) == "?days=90&status=expired"
    assert wanted.query(status="") == "?"


# --------------------------------------------------------------------------------------------------------------- rows


def row(**values: Any) -> Row:
    return {
        "account": "account.example.com", "transfer_id": "t1", "conn_id": "c", "dag_id": "d", "task_id": "t",
        "run_id": "r", "map_index": -1, "try_number": 1, "subject": "Report", "status": "pending", "error": "",
        "memory": "{}", "recipients": "[]", "recipient_count": 2, "picked_up_count": 1, "delivery": KEY,
        "created_at": NOW - timedelta(minutes=90), "sent_at": NOW - timedelta(hours=1),
        "expires_at": NOW + timedelta(hours=23),
    } | values  # fmt: skip


def shown(**values: Any) -> view_models.Shown:
    return view_models.show_delivery(row(**values), NOW, {}, shows_recipients=True)


def test_a_delivery() -> None:
    found = shown()
    assert found["web_url"] is None
    linked = view_models.show_delivery(row(), NOW, {"c": "https://account.example.com"}, shows_recipients=True)
    assert linked["web_url"] == "https://account.example.com/transfers/t1"
    assert (found["age"], found["time_left"], found["is_urgent"]) == ("1 h", "23 h", True)
    assert (found["run_path"], found["task_path"]) == ("dags/d/runs/r", "dags/d/runs/r/tasks/t")
    assert shown(map_index=3)["task_path"] == "dags/d/runs/r/tasks/t/mapped/3"


@pytest.mark.parametrize(
    ("values", "time_left", "is_urgent"),
    [({"status": "complete"}, "–", False), ({"status": "draft"}, "–", False), ({"expires_at": None}, "–", False),
     ({"expires_at": NOW - timedelta(minutes=30)}, "past", True),
     ({"status": "a new one", "expires_at": NOW + timedelta(days=10)}, "10 d", False)],
)  # fmt: skip
def test_how_long_recipients_have(values: dict[str, Any], time_left: str, is_urgent: bool) -> None:
    found = shown(**values)
    assert (found["time_left"], found["is_urgent"]) == (time_left, is_urgent)


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


CURSOR: Row = {"account": "account.example.com", "cursor": 42, "updated_at": "2026-03-10T12:00:00.000000Z"}
FEED: Row = CURSOR | {
    "polled_at": "2026-03-10T12:29:15.000000Z", "status": 200, "note": None,
    "loaded_at": "2026-03-10T12:29:15.000000Z", "has_more": False, "rejected_count": 3,
}  # fmt: skip


def test_a_feed() -> None:
    found = view_models.show_feed(FEED, NOW)
    assert (found["lag"], found["is_late"], found["status"]) == (60, False, "200")
    assert (found["rejected"], found["cursor"]) == (3, 42)


def test_a_feed_with_more_to_read_is_late() -> None:
    assert view_models.show_feed(FEED | {"has_more": 1, "rejected_count": 0}, NOW)["is_late"]


def test_a_feed_that_was_never_polled_since_there_is_a_log() -> None:
    found = view_models.show_feed(CURSOR, NOW)
    assert (found["lag"], found["polled_at"], found["status"]) == (1_815, None, "no response")
    assert found["is_late"]


def test_totals_by_outcome_lose_nothing() -> None:
    statuses = (
        "draft",
        "pending",
        "partial",
        "complete",
        "expired",
        "canceled",
        "no draft",
        "deleted",
        "unknown",
        "failed",
        "in doubt",
    )
    rows = [{"status": status, "delivery_count": 10**at} for at, status in enumerate(statuses)]
    assert view_models.totals(rows) == {
        "complete": 1_000, "in-flight": 100_000_110, "expired": 10_000, "canceled": 11_100_000, "draft": 1,
        "failed": 10**9, "in-doubt": 10**10,
    }  # fmt: skip


def test_where_a_row_stands() -> None:
    assert row_position(row()) == Position(NOW - timedelta(minutes=90), KEY)
