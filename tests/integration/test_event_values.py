"""What is read of the events that land in a database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.warehouse import event_values
from outbound_transfer.warehouse.event_values import MAX_EVENT_LENGTH, MAX_EVENTS, MAX_LENGTH, MAX_VALUES, EventValues
from outbound_transfer.warehouse.events import EventStore
from support.feed_pages import event, page, tables
from support.warehouses import Hook


@pytest.fixture(params=["sqlite", "psycopg", "psycopg2", "mysqlclient"])
def feed(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> EventStore:
    feed = tables(hook_of(request.param))
    feed.get_or_create_cursor()
    return feed


def land(feed: EventStore, *payloads: Any, kind: str = "file_downloaded") -> None:
    cursor = feed.read_cursor()
    lines = [event(cursor + number, type=kind, data=data) for number, data in enumerate(payloads, 1)]
    feed.load_page(page(cursor, *lines))


def started(feed: EventStore) -> EventValues:
    values = EventValues(feed.account)
    assert values.read_new(feed.warehouse) == set()
    return values


def test_any_value_in_the_data_of_a_new_event_is_read_once(feed: EventStore) -> None:
    land(feed, "before")
    values = started(feed)
    land(feed, "text", {"a": [{"b": "nested"}, 12, None, True]}, 10**30, "", "x" * 201)
    land(feed, "sent", kind="transfer_sent")
    assert values.read_new(feed.warehouse) == {"text", "nested", "12", "1" + "0" * 30}
    assert values.read_new(feed.warehouse) == set()


def test_an_event_that_is_stored_raw_is_read_too(feed: EventStore) -> None:
    values = started(feed)
    cursor = feed.read_cursor()
    line = b'{"event_id": "e", "type": "t", "data": {"id": "t1", "id": "t2", "n": 1e999, "name": "\\ud800"}}'
    feed.load_page(page(cursor, line))
    assert {"t2"} <= (values.read_new(feed.warehouse) or set())


@pytest.mark.parametrize(
    "payloads",
    [
        ["x"] * (MAX_EVENTS + 1),
        [["x" * 100] * 90] * (MAX_LENGTH // 9_000),
        [[f"{event:x}.{number:x}" for number in range(900)] for event in range(MAX_VALUES // 900 + 1)],
    ],
    ids=["events", "characters", "values"],
)
def test_too_much_to_read_says_nothing(feed: EventStore, payloads: list[Any]) -> None:
    values = started(feed)
    for start in range(0, len(payloads), 500):
        land(feed, *payloads[start : start + 500])
    assert values.read_new(feed.warehouse) is None
    land(feed, "t1")
    assert values.read_new(feed.warehouse) == {"t1"}


def test_a_long_event_is_not_read(feed: EventStore) -> None:
    values = started(feed)
    land(feed, ["t1", "x" * MAX_EVENT_LENGTH], "t2")
    assert values.read_new(feed.warehouse) == {"t2"}


def test_a_read_that_fails_is_repeated(feed: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    values = started(feed)
    land(feed, "t1")
    with monkeypatch.context() as patch:
        patch.setattr(event_values, "_NEW_EVENTS", "none")
        with pytest.raises(Exception):  # noqa: B017, PT011  # each driver has its own
            values.read_new(feed.warehouse)
    assert values.read_new(feed.warehouse) == {"t1"}


def test_a_cursor_that_is_set_back_names_nothing(feed: EventStore) -> None:
    land(feed, "t1")
    values = started(feed)
    with feed.warehouse.transaction() as tx:
        feed.warehouse.run(tx, "UPDATE {feed_cursor} SET [cursor] = ?", (0,))
    assert values.read_new(feed.warehouse) == set()


def test_a_database_without_events_says_nothing(hook_of: Callable[[str], Hook]) -> None:
    for name in ("sqlite", "duckdb"):
        assert EventValues("acme").read_new(tables(hook_of(name)).warehouse) is None
