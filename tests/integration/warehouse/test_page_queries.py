"""What the page reads, from a real database of each kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outbound_transfer.ui import queries
from outbound_transfer.ui.filters import Filter
from outbound_transfer.ui.queries import PAGE_SIZE, Overview, TaskKey, row_position
from outbound_transfer.ui.view_models import show_feed, show_recipients
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.errors import WarehouseBusy
from outbound_transfer.warehouse.schema import FEED, LEDGER, ensure_schema
from outbound_transfer.warehouse.tables import DELIVERIES, DELIVERY_RECIPIENTS, FEED_POLLS, RECIPIENTS, TRANSFERS
from outbound_transfer.warehouse.timestamps import parse_timestamp
from support import sample_rows as ledger
from support.warehouses import Hook, held_by_another_process

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)
DAG = {"deliver_files"}
TASK = TaskKey("deliver_files", "manual__1+00:00", "deliver", -1)


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "psycopg2-dictionaries", "mysqlclient"])
def a_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    return hook_of(request.param)


@pytest.fixture
def warehouse(a_hook: Hook) -> Warehouse:
    found = Warehouse(a_hook)
    ledger.make_tables(found, NOW)
    return found


def read(warehouse: Warehouse, wanted: Filter = Filter(), readable: Iterable[str] = DAG) -> Overview:  # noqa: B008
    return queries.overview(warehouse, wanted, set(readable), NOW)


def ids(found: Overview) -> list[str]:
    return [row["transfer_id"] for row in found.deliveries]


def hours(count: float) -> datetime:
    return NOW - timedelta(hours=count)


#: The ledger's status and when it was written; the listing's and when it was seen; what holds.
NEWER = {
    "only the ledger knows it": ("pending", 2, None, 0, "pending"),
    "the listing is newer": ("pending", 2, "partial", 1, "partial"),
    "the ledger is newer": ("partial", 1, "pending", 2, "partial"),
    "nothing follows what is final in the ledger": ("complete", 2, "partial", 1, "complete"),
    "nothing follows what is final in the listing": ("pending", 1, "expired", 2, "expired"),
    "a discarded draft stays so": ("discarded", 2, "pending", 1, "discarded"),
    "what was deleted stays so": ("pending", 1, "deleted", 2, "deleted"),
    "a status of later versions": ("pending", 2, "on hold", 1, "on hold"),
}


def test_the_newer_of_ledger_and_listing_holds(warehouse: Warehouse) -> None:
    for name, (of_ledger, written, of_listing, seen, _) in NEWER.items():
        written_row = ledger.delivery(name, NOW, status=of_ledger, updated_at=hours(written), picked_up_count=1)
        ledger.insert(warehouse, DELIVERIES, [written_row])
        if of_listing:
            ledger.insert(warehouse, TRANSFERS, [ledger.transfer(name, of_listing, hours(seen), collected=2)])
    # The same id in another account is another transfer.
    ledger.insert(
        warehouse, TRANSFERS, [("other.example.com", *ledger.transfer("only the ledger knows it", "x", NOW)[1:])]
    )

    found = read(warehouse)
    assert {row["transfer_id"]: row["status"] for row in found.deliveries} == {
        name: each[-1] for name, each in NEWER.items()
    }
    picked_up = {row["transfer_id"]: row["picked_up_count"] for row in found.deliveries}
    assert (picked_up["only the ledger knows it"], picked_up["the listing is newer"]) == (1, 2)
    assert {row["status"]: row["delivery_count"] for row in found.outcomes} == {
        "pending": 1,
        "partial": 2,
        "complete": 1,
        "expired": 1,
        "discarded": 1,
        "deleted": 1,
        "on hold": 1,
    }
    assert ids(read(warehouse, Filter(status="expired"))) == ["nothing follows what is final in the listing"]
    in_flight = {name for name, each in NEWER.items() if each[-1] in ("pending", "partial", "on hold")}
    assert set(ids(read(warehouse, Filter(status="in-flight")))) == in_flight


def test_without_the_listing_the_ledger_holds(a_hook: Hook) -> None:
    warehouse = Warehouse(a_hook)
    ensure_schema(warehouse, LEDGER, NOW)
    ledger.insert(warehouse, DELIVERIES, [ledger.delivery("t", NOW)])
    found = read(warehouse)
    assert (found.deliveries[0]["status"], found.outcomes, found.feeds) == (
        "pending",
        [{"status": "pending", "delivery_count": 1}],
        [],
    )
    assert (DELIVERIES in found.tables, TRANSFERS in found.tables) == (True, False)


def test_no_tables_at_all(a_hook: Hook) -> None:
    assert read(Warehouse(a_hook)) == Overview(frozenset())
    assert queries.task_deliveries(Warehouse(a_hook), TASK) == queries.TaskDeliveries(frozenset())


def test_any_prefix_is_quoted(a_hook: Hook) -> None:
    warehouse = Warehouse(a_hook, prefix='100% "of" {x} ? %s [y]')
    ledger.fill(warehouse, 3, NOW)
    found = read(warehouse)
    assert len(found.deliveries) == 3
    assert len(found.feeds) == 1


def test_a_feed_alone(a_hook: Hook) -> None:
    warehouse = Warehouse(a_hook)
    ensure_schema(warehouse, FEED, NOW)
    assert read(warehouse).deliveries == []


def test_only_readable_dags_are_seen_and_counted(warehouse: Warehouse) -> None:
    rows = [ledger.delivery(dag_id, NOW, dag_id=dag_id) for dag_id in ("a", "b", "c")]
    ledger.insert(warehouse, DELIVERIES, rows)
    for readable, seen in (("ab", 2), ("c", 1), ("", 0), ("abcd", 3)):
        found = read(warehouse, readable=readable)
        assert sorted(ids(found)) == sorted(set(readable) - {"d"})
        assert sum(row["delivery_count"] for row in found.outcomes) == seen


NEEDLES = ("100%", "a_b", "!", "[c]", "{x}", "?", "%s", "t'1", "Deliver_F")


def test_search_is_literal(warehouse: Warehouse) -> None:
    rows = [
        ledger.delivery(f"t{at}", NOW, subject=f"xx {needle.upper()} yy", dag_id="d")
        for at, needle in enumerate(NEEDLES)
    ]
    ledger.insert(warehouse, DELIVERIES, [*rows, ledger.delivery("T-ID", NOW, subject="100 aXb", dag_id="d")])
    for at, needle in enumerate(NEEDLES):
        assert ids(read(warehouse, Filter(search=needle), readable="d")) == [f"t{at}"], needle
    assert ids(read(warehouse, Filter(search="t-id"), readable="d")) == ["T-ID"]


def test_pages_lead_over_every_row(warehouse: Warehouse) -> None:
    # Half of them were made in the same moment: the ids decide then.
    rows = [ledger.delivery(f"t{at:03}", NOW, created_at=hours(1 + max(0, at - 40))) for at in range(3 * PAGE_SIZE + 5)]
    ledger.insert(warehouse, DELIVERIES, rows)
    pages, wanted = [], Filter()
    while True:
        found = read(warehouse, wanted)
        pages.append(ids(found))
        if not found.has_older:
            break
        wanted = Filter(older=row_position(found.deliveries[-1]))
    assert [len(page) for page in pages] == [PAGE_SIZE, PAGE_SIZE, PAGE_SIZE, 5]
    assert sorted(each for page in pages for each in page) == sorted(row[1] for row in rows)


def test_the_window_begins_at_midnight_utc(warehouse: Warehouse) -> None:
    midnight = NOW.replace(hour=0, minute=0) - timedelta(days=6)
    moments = {"now": NOW, "its first": midnight, "before": midnight - timedelta(microseconds=1)}
    rows = [ledger.delivery(name, NOW, created_at=at) for name, at in moments.items()]
    ledger.insert(warehouse, DELIVERIES, rows)
    found = read(warehouse, Filter(days=7))
    assert [row["delivery_count"] for row in found.outcomes] == [2]
    assert ids(found) == ["now", "its first"]


def test_a_task_instance_has_its_own(warehouse: Warehouse) -> None:
    of_run = {"run_id": "manual__1+00:00", "task_id": "deliver"}
    rows = [
        ledger.delivery("unmapped", NOW, **of_run),
        ledger.delivery("mapped", NOW, **of_run, map_index=2),
        ledger.delivery("other dag", NOW, **of_run, dag_id="d"),
        ledger.delivery("other task", NOW, **of_run | {"task_id": "t"}),
        ledger.delivery("other run", NOW, **of_run | {"run_id": "r"}),
    ]
    ledger.insert(warehouse, DELIVERIES, rows)
    people = [(ledger.ACCOUNT, "mapped", at, f"{at}@example.com", "", None) for at in (2, 1)]
    ledger.insert(warehouse, RECIPIENTS, people)
    for index, name in ((-1, "unmapped"), (2, "mapped")):
        found = queries.task_deliveries(warehouse, TASK._replace(map_index=index))
        assert [row["transfer_id"] for row in found.deliveries] == [name]
    assert [row["email"] for row in found.recipients.listed] == ["1@example.com", "2@example.com"]
    assert queries.task_deliveries(warehouse, TASK._replace(map_index=5)).deliveries == []


def test_recipients_are_those_of_the_ledger_with_the_pickups_of_the_listing(warehouse: Warehouse) -> None:
    now, count = ledger.format_timestamp(NOW), 27
    people = json.dumps([{"email": f"{each}@example.com", "name": "N", "picked_up_at": None} for each in "ab"])
    rows = [ledger.delivery(f"t{number:03}", NOW, run_id="r") for number in range(count)]
    ledger.insert(warehouse, DELIVERIES, rows)
    ledger.insert(warehouse, DELIVERY_RECIPIENTS, [(*row[:2], people, now) for row in rows])
    ledger.insert(warehouse, DELIVERY_RECIPIENTS, [("other.example.com", "t000", people.replace("a@", "x@"), now)])
    listed = [
        (*rows[at][:2], number, f"{each}@example.com", "", now if at else None)
        for at in (0, 1) for number, each in enumerate("ab", 1)
    ]  # fmt: skip
    ledger.insert(warehouse, RECIPIENTS, listed)

    found = queries.task_deliveries(warehouse, TASK._replace(run_id="r"))

    shown = {row["transfer_id"]: show_recipients(row, found.recipients) for row in found.deliveries}
    assert len(shown) == count
    assert [each["email"] for each in shown["t000"]] == ["a@example.com", "b@example.com"]
    assert [each["picked_up_at"] for each in shown["t000"]] == [None, None]
    assert [each["picked_up_at"] for each in shown["t001"]] == [NOW, NOW]
    assert [len(each) for each in shown.values()] == [2] * count
    nothing = queries.Recipients()
    assert queries.task_deliveries(warehouse, TASK._replace(run_id="r"), shows_recipients=False).recipients == nothing


def test_the_feed_and_its_polls(warehouse: Warehouse) -> None:
    ledger.fill(warehouse, 0, NOW)
    failed = (
        "x" * 32,
        ledger.ACCOUNT,
        ledger.format_timestamp(NOW),
        "poll",
        503,
        0,
        0,
        0,
        48_213,
        None,
        None,
        "it was down",
    )
    ledger.insert(warehouse, FEED_POLLS, [failed])
    (row,) = read(warehouse).feeds
    found = show_feed(row, NOW)
    assert found == {
        "name": ledger.ACCOUNT, "cursor": 48_213, "status": "503", "note": "it was down", "lag": 40, "polled_at": NOW,
        "rejected": 1, "has_more": False, "is_late": False,
    }  # fmt: skip


def test_indexes_are_made_where_the_database_gains_by_them(warehouse: Warehouse) -> None:
    asked = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND 1 = ?",
        "postgresql": "SELECT indexname FROM pg_indexes WHERE schemaname = 'public'"
        " AND indexname NOT LIKE '%%_pkey' AND 1 = ?",
        "mysql": "SELECT index_name FROM information_schema.statistics WHERE table_schema = database()"
        " AND index_name <> 'PRIMARY' AND 1 = ?",
    }.get(warehouse.dialect.name)
    if asked is None:
        assert (warehouse.dialect.name, list(warehouse.dialect.indexes(DELIVERIES))) == ("duckdb", [])
        return
    with warehouse.read() as cursor:
        found = {row[0] for row in fetch_all(warehouse.run(cursor, asked, (1,)))}
    suffixes = ("deliveries_1", "deliveries_2", "events_1", "feed_polls_1")
    assert found == {f"outbound_transfer_{suffix}" for suffix in suffixes}


def test_page_does_not_wait_for_duckdbs_file(hook_of: Callable[[str], Hook], memory: Path) -> None:
    with held_by_another_process(memory / "warehouse.duckdb"), pytest.raises(WarehouseBusy, match=r"in use for 0 s"):
        read(Warehouse(hook_of("duckdb"), timeout=0.05))


def test_timestamps_are_the_same_from_every_driver(warehouse: Warehouse) -> None:
    ledger.insert(warehouse, DELIVERIES, [ledger.delivery("t", NOW, created_at=hours(1.5))])
    (row,) = read(warehouse).deliveries
    assert parse_timestamp(row["created_at"]) == hours(1.5)
