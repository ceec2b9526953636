"""Draining the event feed into real databases, from a feed that is well and one that misbehaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException, TaskDeferred
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from support.calls import ApiCall, before
from support.tasks import FakeTaskInstance, SimulatedClock
from support.warehouses import Hook, hook_at, refuse_rows


#: The second driver differs below the hook, where tests/integration/warehouse has it.
@pytest.fixture(params=["sqlite", "postgres", "duckdb", "mysqlclient"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hook:
    if request.param in ("sqlite", "duckdb"):
        database, driver = tmp_path / "warehouse", request.param
        value = json.dumps({"conn_type": driver, "host": str(database)})
    elif request.param == "mysqlclient":
        database, driver = request.getfixturevalue("mariadb"), "mysqlclient"
        value = database.airflow_connection(driver)
    else:
        database, driver = request.getfixturevalue("postgres"), "psycopg"
        value = database.airflow_connection
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", value)
    return hook_at(driver, database)


def ids(warehouse: Hook) -> list[str]:
    return [row[0] for row in warehouse.fetch("SELECT event_id FROM outbound_transfer_events")]


def cursor(warehouse: Hook) -> int:
    ((cursor,),) = warehouse.fetch('SELECT "cursor" FROM outbound_transfer_feed_cursor')
    return int(cursor)


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def task(connection, warehouse: Hook, time: SimulatedClock) -> Callable[..., FakeTaskInstance]:
    def make(**arguments: Any) -> FakeTaskInstance:
        options = {"task_id": "land", "sql_conn_id": "warehouse", "deferrable": True, **arguments}
        return FakeTaskInstance(lambda: EventFeedToSqlOperator(**options), time)

    return make


def statuses(sandbox) -> list[int]:
    return [call["status"] for call in sandbox.feed_calls()]


def assert_waited(time: SimulatedClock, count: int) -> None:
    """Each wait is what is left of a minute: a busy machine may have used up some of it."""
    assert len(time.waits) == count
    assert 0 < min(time.waits) <= max(time.waits) <= 61


def test_a_feed_of_three_pages_is_drained_without_a_refusal_or_a_worker_slot(task, sandbox, warehouse, time) -> None:
    sandbox.add_events(2_400, "transfer_sent")
    last = sandbox.add_events(100, "file_downloaded")
    ti = task()
    result = ti.run()
    counted = {"pages": 3, "events": 2_500, "new_events": 2_500, "rejected": 0}
    types = {"transfer_sent": 2_400, "file_downloaded": 100}
    assert result == counted | {"cursor_from": 0, "cursor_to": last, "has_more": False, "types": types}
    assert cursor(warehouse) == last
    assert len(set(ids(warehouse))) == 2_500
    assert warehouse.fetch("SELECT count(*) FROM outbound_transfer_events WHERE occurred_at IS NULL") == [(0,)]
    assert statuses(sandbox) == [200, 200, 200]
    assert ti.deferrals == 2
    assert_waited(time, 2)


@pytest.mark.any_dialect
def test_a_task_that_may_not_defer_sleeps_as_long(task, sandbox, time) -> None:
    sandbox.add_events(1_500)
    ti = task(deferrable=False)
    assert ti.run()["events"] == 1_500
    assert (ti.deferrals, statuses(sandbox)) == (0, [200, 200])
    assert_waited(time, 1)
    sandbox.add_events(1)
    assert ti.run()["events"] == 1  # within the minute: refused, waited, repeated
    assert statuses(sandbox) == [200, 200, 429, 200]


@pytest.mark.any_dialect
def test_max_pages_holds_across_deferrals_and_the_next_run_reads_the_rest(task, sandbox) -> None:
    sandbox.add_events(3_500)
    with pytest.raises(InvalidDelivery, match="max_pages"):
        task(max_pages="many").run()
    ti = task(max_pages="2")
    result = ti.run()
    assert (result["pages"], result["has_more"], result["cursor_to"], ti.deferrals) == (2, True, 2_000, 1)
    assert task(max_pages="None").run()["events"] == 1_500
    assert statuses(sandbox).count(200) == 4


@pytest.mark.any_dialect
def test_the_cursor_is_read_from_the_warehouse_again_after_a_wait(task, sandbox, warehouse, time) -> None:
    sandbox.add_events(1_500)
    operator = task().make()
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({})
    assert "cursor" not in json.dumps(deferred.value.trigger.serialize()[1], default=str)
    warehouse.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = 1400')
    time.sleep(61)
    result = operator.resume({}, event="anything", **deferred.value.kwargs)
    assert (result["pages"], result["events"], result["cursor_to"]) == (2, 1_100, 1_500)
    assert len(ids(warehouse)) == 1_100


@pytest.mark.any_dialect
def test_rejected_lines_are_counted_and_too_many_of_them_load_nothing(task, warehouse, sandbox) -> None:
    """Some cannot be read, and the database refuses some."""
    sandbox.patch_account(feed_interval_seconds=0)
    task().run()
    refuse_rows(warehouse.connect, warehouse.dialect_name, "bad%")
    for kind in ("sent", "bad", "sent", "sent"):
        sandbox.add_events(1, kind)
    with pytest.raises(AirflowFailException, match=r"1 line of the page .* line 2: the database refused it"):
        task(max_rejected=0).run()
    unreadable = {"kind": "malformed_line", "line": 0, "text": "{}"}
    sandbox.plan_faults(unreadable)
    with pytest.raises(AirflowFailException, match=r"2 lines of the page after cursor 0 .* line 1: the event has no"):
        task(max_rejected=1).run()
    assert (cursor(warehouse), ids(warehouse)) == (0, [])
    sandbox.plan_faults(unreadable)
    result = task(max_rejected=2).run()
    assert (result["events"], result["new_events"], result["rejected"]) == (2, 2, 2)
    assert len(ids(warehouse)) == 2
    raw = sorted(bytes(row[0]) for row in warehouse.fetch("SELECT raw FROM outbound_transfer_rejected_lines"))
    assert (b'"bad"' in raw[0], raw[1]) == (True, b"{}")


#: Each gives 0 where nobody else holds a transaction (SQLite, PostgreSQL, MariaDB), or even a connection (DuckDB).
HELD = {
    "duckdb": "SELECT count(*) - 1 FROM duckdb_connection_count()",
    "sqlite": "PRAGMA wal_checkpoint(TRUNCATE)",
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND xact_start IS NOT NULL",
    "mysqlclient": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id()",
}


def test_nothing_is_held_in_the_warehouse_during_a_call(task, request, warehouse, sandbox) -> None:
    query = HELD[request.node.callspec.params["warehouse"]]
    seen: list[int] = []

    def look() -> None:
        seen.append(warehouse.fetch(query)[0][0])

    sandbox.add_events(1_500)
    with before(ApiCall("GET", "/v1/events"), look, look):
        task(deferrable=False).run()
    assert seen == [0, 0]
