"""The analysts' views over tables that the ingestions filled, in real databases."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from outbound_transfer.client.events import Event, Page
from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.errors import MissingTables, UnsupportedDatabase
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import Tables
from outbound_transfer.store.transfers import TransferTables
from outbound_transfer.store.views import create_views, render_views
from support import known_transfers
from support.repository import REPOSITORY
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
]


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


def test_the_funnel_counts_what_became_of_each_day(filled: Hook) -> None:
    rows = filled.fetch(
        "SELECT sent, picked_up_by_any, complete, expired, canceled, outstanding, recipients, recipients_picked_up"
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
    ((name, left, outstanding),) = filled.fetch(
        "SELECT transfer_id, hours_left, recipients_outstanding FROM outbound_transfer_expiring_transfers"
    )
    assert (name, outstanding) == ("c", 1)
    assert 9.5 < float(left) <= 10


def test_the_views_have_the_figures_of_known_transfers(hook: Hook) -> None:
    known_transfers.fill(Tables(hook), NOW)
    create_views(Tables(hook))

    def counts(query: str) -> list[int]:
        return [int(value) for value in hook.fetch(query)[0]]

    funnel = "SELECT sum(sent), sum(expired), sum(recipients), sum(recipients_picked_up) FROM outbound_transfer_funnel"
    assert counts(f"{funnel}_by_day") == [8, 1, 12, 5]
    assert counts("SELECT sum(overdue), count(*) FROM outbound_transfer_expiring_transfers") == [2, 3]
    # MySQL has no FILTER.
    failed = f"sum(CASE WHEN type = '{known_transfers.FAILED_AUTHENTICATION}' THEN events ELSE 0 END)"
    query = f"SELECT {failed}, sum(events), count(failed_authentications) FROM outbound_transfer_events_by_day"
    assert counts(query) == [4, 5, 0]
    days = {f"{day}" for (day,) in hook.fetch("SELECT DISTINCT sent_on FROM outbound_transfer_time_to_pickup")}
    assert days == {f"{NOW - timedelta(days=ago):%Y-%m-%d}" for ago in known_transfers.SENT}


def test_the_feeds_lag_is_in_seconds(filled: Hook) -> None:
    ((cursor, since, caught_up, refused, rejected, took),) = filled.fetch(
        'SELECT "cursor", seconds_since_last_page, caught_up, failed_polls_since, rejected_lines, seconds_to_load'
        " FROM outbound_transfer_feed_lag"
    )
    assert (cursor, caught_up, refused, rejected) == (1, 1, 1, 0)
    assert 89 < float(since) < 100 + (datetime.now(UTC) - NOW).total_seconds()
    assert round(float(took)) == 270


def test_a_view_is_replaced_beneath_another_one_and_keeps_its_grants(filled: Hook) -> None:
    filled.run("CREATE VIEW outbound_transfer_mine AS SELECT * FROM outbound_transfer_funnel_by_day")
    if filled.dialect_name == "postgresql":
        filled.run("GRANT SELECT ON outbound_transfer_funnel_by_day TO PUBLIC")
    create_views(Tables(filled))
    assert filled.fetch("SELECT count(*) FROM outbound_transfer_mine") == [(2,)]
    if filled.dialect_name == "postgresql":
        grants = "SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = 'PUBLIC'"
        assert filled.fetch(f"{grants} AND table_name = 'outbound_transfer_funnel_by_day'") == [(1,)]
    filled.run("DROP VIEW outbound_transfer_mine")


def test_every_column_is_documented(filled: Hook) -> None:
    text = (REPOSITORY / "include/sql/README.md").read_text()
    for view in [f"outbound_transfer_{name}" for name in VIEWS]:
        section = text.partition(f"### `{view}`")[2].partition("###")[0]
        for name in _columns(filled, view):
            assert f"`{name}`" in section, f"{view}.{name} is not documented"


def test_views_have_the_prefix_and_the_schema_of_their_tables(hook: Hook) -> None:
    schema = {"postgresql": "public", "duckdb": "main", "sqlite": "main"}.get(hook.dialect_name)
    warehouse = Tables(hook, prefix="Acme's ", schema=schema)
    listing = TransferTables(warehouse, "acme", "key", clock=lambda: NOW)
    listing.sync_state()
    listing.save(SENT, NOW)
    EventStore(warehouse, "acme").get_or_create_cursor()
    assert create_views(warehouse) == [f"Acme's {name}" for name in VIEWS]
    quoted = "`Acme's funnel_by_day`" if hook.dialect_name == "mysql" else '"Acme\'s funnel_by_day"'
    assert hook.fetch(f"SELECT sum(sent) FROM {quoted}") == [(3,)]


def test_tables_that_are_missing_are_named(hook: Hook) -> None:
    warehouse = Tables(hook)
    EventStore(warehouse, "acme").get_or_create_cursor()
    with pytest.raises(MissingTables, match=r"outbound_transfer_transfers, outbound_transfer_recipients\."):
        create_views(warehouse)


def test_a_database_without_views_is_refused() -> None:
    with pytest.raises(UnsupportedDatabase, match="no views for snowflake, but for duckdb, mysql, postgresql, sqlite"):
        render_views("snowflake")


def _columns(hook: Hook, view: str) -> list[str]:
    with closing(hook.get_conn()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT * FROM {view} WHERE 1 = 0")
        cursor.fetchall()  # some drivers do nothing else before
        return [column[0] for column in cursor.description]


# ------------------------------------------------------------------------------------------------ transfers as tables


def test_a_transfer_is_kept_current_and_what_was_seen_later_stays(hook: Hook) -> None:
    tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW)
    assert tables.sync_state().outstanding == {}
    assert tables.save([transfer("x", "pending", -2, 10, None, None)], NOW) == 1
    assert list(tables.sync_state().outstanding) == ["x"]
    later = NOW + timedelta(minutes=1)
    assert tables.save([transfer("x", "partial", -2, 10, None, -1)], later) == 0
    tables.save([transfer("x", "pending", -2, 10, None, None)], NOW + timedelta(seconds=1))
    assert hook.fetch("SELECT status, picked_up_count FROM outbound_transfer_transfers") == [("partial", 1)]
    taken = "SELECT position FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL"
    assert hook.fetch(taken) == [(2,)]
    tables.mark_deleted("x", later)
    assert tables.sync_state().outstanding == {}


def test_a_pickup_is_of_an_address_and_not_of_a_position(hook: Hook) -> None:
    tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW)
    tables.sync_state()
    listed = transfer("x", "pending", -2, 10, None, None, None)
    tables.save([listed], NOW)
    zero, one, two = listed.recipients
    picked_up = (replace(two, picked_up_at=at(-1)), one, replace(zero, picked_up_at=at(-1)))
    for recipients in (picked_up[:2], picked_up):
        tables.save([replace(listed, status="partial", recipients=recipients)], NOW)
    query = "SELECT email FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL ORDER BY position"
    assert hook.fetch(query) == [("r0@example.com",), ("r2@example.com",)]


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


def test_a_pickup_is_of_an_address_in_whatever_form_it_comes_back(hook: Hook) -> None:
    tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW)
    tables.sync_state()
    listed = transfer("x", "pending", -2, 10, None)
    other = (Recipient("Ann@Bücher.example"), Recipient("bob@example.com"))
    tables.save([replace(listed, recipients=other)], NOW)
    back = (Recipient("bob@example.com"), Recipient("ann@xn--bcher-kva.example", None, at(-1)))
    tables.save([replace(listed, recipients=back)], NOW)
    query = "SELECT email FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL"
    assert hook.fetch(query) == [("Ann@Bücher.example",)]
    hook.run("UPDATE outbound_transfer_recipients SET picked_up_at = NULL")  # the count of the transfer stays
    tables.save([replace(listed, recipients=back)], NOW)
    assert hook.fetch(query) == [("Ann@Bücher.example",)]


def test_a_listing_of_a_hundred_costs_a_few_statements(hook: Hook) -> None:
    tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW)
    tables.sync_state()
    page = [transfer(f"t{n}", "pending", -2, 10, *[None] * 20) for n in range(100)]
    later = [transfer(f"t{n}", "complete", -2, 10, *[-1.0] * 20) for n in range(100)]
    for listed in (page, page, later):
        statements: list[str] = []

        def note(*arguments: Any, into: list[str] = statements) -> None:
            into.append(arguments[2])

        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        try:
            tables.save(listed, NOW)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", note)
        assert len(statements) <= 10
    taken = "SELECT count(*) FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL"
    assert hook.fetch(taken) == [(2_000,)]


def test_reading_stops_where_nothing_older_can_have_changed(hook: Hook) -> None:
    tables = TransferTables(Tables(hook), "acme", "key", clock=lambda: NOW)
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
