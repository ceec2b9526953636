"""The analysts' views (include/sql) over tables that the ingestions filled, in real databases."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from outbound_transfer.protocol.feed import Event, Page
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.feed import FeedTables, Poll
from outbound_transfer.warehouse.rows import instant
from outbound_transfer.warehouse.tables import RECIPIENTS, SCHEMA, TRANSFERS
from outbound_transfer.warehouse.transfers import Open, TransferTables, sent_at
from support.postgres import postgres, postgres_server  # noqa: F401
from support.warehouses import Hook, hook, hook_of, memory  # noqa: F401

SQL = Path(__file__).resolve().parents[2] / "include/sql"
NOW = datetime.now(timezone.utc).replace(microsecond=0)


def at(hours: float) -> str:
    return (NOW + timedelta(hours=hours)).isoformat()


def transfer(name: str, status: str, sent: float, expires: float, *collected: float | None) -> Transfer:
    recipients = tuple(
        Recipient(f"r{n}@example.com", f"r{n}", None if hours is None else at(hours))
        for n, hours in enumerate(collected)
    )
    return Transfer(name, status, f"Report {name}", at(expires), None, recipients, None, at(sent))


SENT = [
    transfer("c", "partial", -24, 10, -22.5, None),
    transfer("b", "complete", -48, 100, -47),
    transfer("a", "expired", -48, -1, None),
]


@pytest.fixture
def filled(hook: Hook) -> Hook:
    warehouse = Warehouse(hook)
    listing = TransferTables(warehouse, "acme", "key", clock=lambda: NOW)
    listing.open()
    listing.save(SENT, NOW)
    feed = FeedTables(warehouse, "acme", clock=lambda: NOW - timedelta(seconds=90))
    feed.cursor()
    feed.land(Page(0, 1, False, (Event("e", "t", at(-0.1), "{}", None, 1),), ()))
    FeedTables(warehouse, "acme", clock=lambda: NOW).log(Poll(cursor_from=1, status=429))
    for statement in (SQL / f"{hook.dialect_name}.sql").read_text().split(";\n"):
        if statement.strip():
            hook.run(statement)
    return hook


def test_the_funnel_counts_what_became_of_each_day(filled: Hook) -> None:
    rows = filled.fetch(
        "SELECT sent, collected_by_some, complete, expired, canceled, waiting, recipients, recipients_collected"
        " FROM outbound_transfer_funnel_by_day ORDER BY sent_on"
    )
    assert rows == [(2, 1, 1, 1, 0, 0, 2, 1), (1, 1, 0, 0, 0, 1, 2, 1)]
    days = filled.fetch("SELECT sent_on FROM outbound_transfer_funnel_by_day ORDER BY sent_on")
    assert [str(day) for (day,) in days] == [at(hours)[:10] for hours in (-48, -24)]


def test_time_to_pickup_is_in_seconds_per_recipient(filled: Hook) -> None:
    query = "SELECT transfer_id, email, seconds_to_pickup FROM outbound_transfer_time_to_pickup ORDER BY 1, 2"
    rows = [(name, email, None if took is None else round(float(took))) for name, email, took in filled.fetch(query)]
    assert rows == [
        ("a", "r0@example.com", None),
        ("b", "r0@example.com", 3_600),
        ("c", "r0@example.com", 5_400),
        ("c", "r1@example.com", None),
    ]


def test_what_is_about_to_expire_waits_for_somebody(filled: Hook) -> None:
    ((name, left, missing),) = filled.fetch(
        "SELECT transfer_id, hours_left, missing FROM outbound_transfer_about_to_expire"
    )
    assert (name, missing) == ("c", 1)
    assert 9.5 < float(left) <= 10


def test_the_feeds_lag_is_in_seconds(filled: Hook) -> None:
    ((cursor, since, caught_up, refused, rejected, took),) = filled.fetch(
        "SELECT cursor, seconds_since_answer, caught_up, refused_since, rejected_lines, seconds_to_land"
        " FROM outbound_transfer_feed_lag"
    )
    assert (cursor, caught_up, refused, rejected) == (1, 1, 1, 0)
    assert 89 < float(since) < 100 + (datetime.now(timezone.utc) - NOW).total_seconds()
    assert round(float(took)) == 270


def test_every_column_is_documented(filled: Hook) -> None:
    text = (SQL / "README.md").read_text()
    for view in re.findall(r"CREATE VIEW (\w+)", (SQL / f"{filled.dialect_name}.sql").read_text()):
        section = text.partition(f"### `{view}`")[2].partition("###")[0]
        for name in _columns(filled, view):
            assert f"`{name}`" in section, f"{view}.{name} is not documented"


def _columns(hook: Hook, view: str) -> list[str]:
    with hook.get_conn() as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT * FROM {view} WHERE 1 = 0")
        names = [column[0] for column in cursor.description]
    connection.close()
    return names


# ------------------------------------------------------------------------------------------------ transfers as tables


def test_a_transfer_is_kept_current_and_what_was_seen_later_stays(hook: Hook) -> None:
    tables = TransferTables(Warehouse(hook), "acme", "key", clock=lambda: NOW)
    assert tables.open().sent == {}
    assert tables.save([transfer("x", "pending", -2, 10, None, None)], NOW) == 1
    assert list(tables.open().sent) == ["x"]
    later = NOW + timedelta(minutes=1)
    assert tables.save([transfer("x", "partial", -2, 10, None, -1)], later) == 0
    tables.save([transfer("x", "pending", -2, 10, None, None)], NOW + timedelta(seconds=1))
    assert hook.fetch("SELECT status, collected FROM outbound_transfer_transfers") == [("partial", 1)]
    taken = "SELECT position FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL"
    assert hook.fetch(taken) == [(2,)]
    tables.remove("x", later)
    assert tables.open().sent == {}


def test_reading_stops_where_nothing_older_can_have_changed(hook: Hook) -> None:
    tables = TransferTables(Warehouse(hook), "acme", "key", clock=lambda: NOW)
    before = tables.open()
    first, second = [transfer("n", "pending", -1, 9, None)], [transfer("o", "pending", -30, 9, None)]
    assert not before.is_enough(first, {"n"})  # an empty table: everything is new
    older = transfer("p", "complete", -20, 9, -1)
    tables.save([*second, older], NOW)
    before = tables.open()
    assert not before.is_enough([transfer("r", "complete", -40, 9, -1)], {"r", "o"})  # what is there may have gaps
    tables.listed(sent_at(older))
    tables.listed(sent_at(second[0]))  # of a run that began earlier
    before = tables.open()
    assert not before.is_enough(first, {"n"})  # newer than all that is known: more such may follow
    assert not before.is_enough([transfer("q", "complete", -25, 9, -1)], {"q"})  # "o" may still have changed
    assert before.is_enough([transfer("q", "complete", -25, 9, -1)], {"q", "o"})


def test_transfers_of_the_first_version_are_listed_anew(hook: Hook) -> None:
    warehouse = Warehouse(hook)
    older = replace(TRANSFERS, columns=tuple(column for column in TRANSFERS.columns if column.name != "conn_id"))
    warehouse.create((SCHEMA, older, RECIPIENTS))
    with warehouse.writing() as cursor:
        warehouse.insert(cursor, SCHEMA, [("transfers", 1, instant(NOW))])
        warehouse.insert(cursor, older, [("acme", "x", "pending", "s", *[instant(NOW)] * 2, 1, 0, *[instant(NOW)] * 2)])
    tables = TransferTables(warehouse, "acme", "key", clock=lambda: NOW)
    assert tables.open() == Open(None, {})
    tables.save([transfer("x", "complete", -2, 10, -1)], NOW + timedelta(minutes=1))
    assert hook.fetch("SELECT conn_id, status FROM outbound_transfer_transfers") == [("key", "complete")]


def test_the_picture_is_of_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SQL.parents[1] / "scripts"))
    import draw_views

    assert draw_views.PICTURE.read_text() == draw_views.picture(), "draw it again: make views"
