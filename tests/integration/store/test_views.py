"""The analysts' views over tables that the ingestions filled, in real databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from outbound_transfer.client.events import Event, Page
from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import Tables
from outbound_transfer.store.transfers import TransferTables
from outbound_transfer.store.views import create_views
from support.warehouses import Hook

VIEWS = ["events_by_day", "expiring_transfers", "feed_lag", "funnel_by_day", "time_to_pickup"]
NOW = datetime.now(UTC).replace(microsecond=0)


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
    transfer("d", "canceled", -48, 100, -47, None),
    transfer("e", "pending", -80, 5, None),
]


#: Recipients of a canceled transfer do not count.
FUNNEL = [(1, 0, 0, 0, 0, 1, 1, 0), (3, 2, 1, 1, 1, 0, 2, 1), (1, 1, 0, 0, 0, 1, 2, 1)]


@pytest.fixture
def filled(hook: Hook) -> Hook:
    warehouse = Tables(hook)
    listing = TransferTables(warehouse, "acme", "key", clock=lambda: NOW)
    listing.sync_state()
    listing.save(SENT, NOW)
    feed = EventStore(warehouse, "acme", clock=lambda: NOW - timedelta(seconds=90))
    feed.get_or_create_cursor()
    feed.load_page(Page(0, 1, False, (Event("e", "t", at(-0.1), "{}", None, 1),), ()))
    EventStore(warehouse, "acme", clock=lambda: NOW).log_poll(PollRecord(cursor_from=1, status=429))
    assert create_views(warehouse) == create_views(warehouse), "they are replaced"
    return hook


def test_the_views_count_days_pickups_what_expires_and_the_feeds_lag(filled: Hook) -> None:
    def view(columns: str, name: str, order: str = "1, 2") -> list[Any]:
        return filled.fetch(f"SELECT {columns} FROM outbound_transfer_{name} ORDER BY {order}")

    columns = "sent, picked_up_by_any, complete, expired, canceled, outstanding, recipients, recipients_picked_up"
    assert view(columns, "funnel_by_day", "sent_on") == FUNNEL
    assert [str(day) for (day,) in view("sent_on", "funnel_by_day", "1")] == [
        at(hours)[:10] for hours in (-80, -48, -24)
    ]

    rows = view("transfer_id, email, seconds_to_pickup", "time_to_pickup")
    assert [(name, email[:2], None if took is None else round(float(took))) for name, email, took in rows] == [
        ("a", "r0", None), ("b", "r0", 3_600), ("c", "r0", 5_400), ("c", "r1", None),
        ("d", "r0", 3_600), ("d", "r1", None), ("e", "r0", None),
    ]  # fmt: skip

    expiring = view("transfer_id, overdue, recipients_outstanding, hours_left", "expiring_transfers")
    assert [tuple(row[:3]) for row in expiring] == [("c", 0, 1), ("e", 1, 1)]
    assert 10 - (datetime.now(UTC) - NOW) / timedelta(hours=1) <= float(expiring[0][3]) <= 10

    assert view("type, events", "events_by_day") == [("t", 1)]
    columns = '"cursor", caught_up, failed_polls_since, rejected_lines, seconds_since_last_page, seconds_to_load'
    ((*counts, since, took),) = view(columns, "feed_lag")
    assert counts == [1, 1, 1, 0]
    assert 89 < float(since) < 100 + (datetime.now(UTC) - NOW).total_seconds()
    assert round(float(took)) == 270


def test_a_view_is_replaced_beneath_another_one_and_keeps_its_grants(filled: Hook) -> None:
    filled.run("CREATE VIEW outbound_transfer_mine AS SELECT * FROM outbound_transfer_funnel_by_day")
    if filled.dialect_name == "postgresql":
        filled.run("GRANT SELECT ON outbound_transfer_funnel_by_day TO PUBLIC")
    create_views(Tables(filled))
    assert filled.fetch("SELECT count(*) FROM outbound_transfer_mine") == [(3,)]
    if filled.dialect_name == "postgresql":
        grants = "SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = 'PUBLIC'"
        assert filled.fetch(f"{grants} AND table_name = 'outbound_transfer_funnel_by_day'") == [(1,)]
    filled.run("DROP VIEW outbound_transfer_mine")


def test_views_have_the_prefix_and_the_schema_of_their_tables(hook: Hook) -> None:
    schema = {"postgresql": "public", "duckdb": "main", "sqlite": "main"}.get(hook.dialect_name)
    warehouse = Tables(hook, prefix="Acme's ", schema=schema)
    listing = TransferTables(warehouse, "acme", "key", clock=lambda: NOW)
    listing.sync_state()
    listing.save(SENT, NOW)
    EventStore(warehouse, "acme").get_or_create_cursor()
    assert create_views(warehouse) == [f"Acme's {name}" for name in VIEWS]
    quoted = "`Acme's funnel_by_day`" if hook.dialect_name == "mysql" else '"Acme\'s funnel_by_day"'
    assert hook.fetch(f"SELECT sum(sent) FROM {quoted}") == [(5,)]


@pytest.fixture
def tables(hook: Hook) -> TransferTables:
    tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW)
    assert tables.sync_state().outstanding == {}
    return tables


PICKED_UP = "SELECT email FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL ORDER BY position"


def test_a_transfer_is_kept_current_and_what_was_seen_later_stays(hook: Hook, tables: TransferTables) -> None:
    assert tables.save([transfer("x", "pending", -2, 10, None, None)], NOW) == 1
    assert list(tables.sync_state().outstanding) == ["x"]
    later = NOW + timedelta(minutes=1)
    assert tables.save([transfer("x", "partial", -2, 10, None, -1)], later) == 0
    tables.save([transfer("x", "pending", -2, 10, None, None)], NOW + timedelta(seconds=1))
    assert hook.fetch("SELECT status, picked_up_count FROM outbound_transfer_transfers") == [("partial", 1)]
    assert hook.fetch(PICKED_UP) == [("r1@example.com",)]
    tables.mark_deleted("x", later)
    assert tables.sync_state().outstanding == {}


def test_a_pickup_is_of_an_address_and_not_of_a_position(hook: Hook, tables: TransferTables) -> None:
    listed = transfer("x", "pending", -2, 10, None, None, None)
    tables.save([listed], NOW)
    zero, one, two = listed.recipients
    picked_up = (replace(two, picked_up_at=at(-1)), one, replace(zero, picked_up_at=at(-1)))
    for recipients in (picked_up[:2], picked_up):
        tables.save([replace(listed, status="partial", recipients=recipients)], NOW)
    assert hook.fetch(PICKED_UP) == [("r0@example.com",), ("r2@example.com",)]


@pytest.mark.parametrize("stores", [(True, False), (False, True), (False, False)])
def test_a_pickup_is_stored_whatever_the_option_was(hook: Hook, stores: tuple[bool, bool]) -> None:
    listed = transfer("x", "pending", -2, 10, None, None)
    zero, one = listed.recipients
    taken = replace(one, picked_up_at=at(-1))
    pages = [(zero, one), (taken, zero), (taken, replace(zero, picked_up_at=at(-0.5)))]
    for recipients, stores_recipients in zip(pages, (*stores, stores[1]), strict=True):
        tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW, stores_recipients=stores_recipients)
        tables.sync_state()
        tables.save([replace(listed, recipients=recipients)], NOW)
        tables.save([replace(listed, recipients=recipients)], NOW)
    rows = hook.fetch("SELECT email, picked_up_at FROM outbound_transfer_recipients ORDER BY position")
    assert {email for email, _ in rows} == ({"r0@example.com", "r1@example.com"} if stores[0] else {""})
    assert len({str(time) for _, time in rows} - {"None"}) == 2
    assert (str(rows[0][1]) > str(rows[1][1])) is stores[0]


def test_a_pickup_is_of_an_address_in_whatever_form_it_comes_back(hook: Hook, tables: TransferTables) -> None:
    listed = transfer("x", "pending", -2, 10, None)
    other = (Recipient("Ann@Bücher.example"), Recipient("bob@example.com"))
    tables.save([replace(listed, recipients=other)], NOW)
    back = (Recipient("bob@example.com"), Recipient("ann@xn--bcher-kva.example", None, at(-1)))
    tables.save([replace(listed, recipients=back)], NOW)
    assert hook.fetch(PICKED_UP) == [("Ann@Bücher.example",)]
    hook.run("UPDATE outbound_transfer_recipients SET picked_up_at = NULL")  # the count of the transfer stays
    tables.save([replace(listed, recipients=back)], NOW)
    assert hook.fetch(PICKED_UP) == [("Ann@Bücher.example",)]


def test_reading_stops_where_nothing_older_can_have_changed(tables: TransferTables) -> None:
    before = tables.sync_state()
    first, second = [transfer("n", "pending", -1, 9, None)], [transfer("o", "pending", -30, 9, None)]
    assert not before.covers(first, {"n"})  # an empty table: everything is new
    older = transfer("p", "complete", -20, 9, -1)
    tables.save([*second, older], NOW)
    before = tables.sync_state()
    assert not before.covers([transfer("r", "complete", -40, 9, -1)], {"r", "o"})  # what is there may have gaps
    tables.mark_listed(NOW + timedelta(hours=-20))
    tables.mark_listed(NOW + timedelta(hours=-30))  # of a run that began earlier
    before = tables.sync_state()
    assert not before.covers(first, {"n"})  # newer than all that is known: more such may follow
    assert not before.covers([transfer("q", "complete", -25, 9, -1)], {"q"})  # "o" may still have changed
    assert before.covers([transfer("q", "complete", -25, 9, -1)], {"q", "o"})
