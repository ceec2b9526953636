"""Draining the event feed into real databases, from the sandbox and from a feed that misbehaves."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pendulum
import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException, BaseHook, TaskDeferred
from outbound_transfer.client.errors import InvalidDelivery, MalformedResponse, RateLimited, ServerFault
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from support.raw_server import answer, serving
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, SimulatedClock
from support.warehouses import refuse_rows


@dataclass
class Warehouse:
    """A connection of Airflow, and what its database holds."""

    conn_id: str = "warehouse"

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        hook = BaseHook.get_hook(self.conn_id)
        return [tuple(row) for row in hook.get_records(_spelled(query, hook))]

    def run(self, statement: str) -> None:
        hook = BaseHook.get_hook(self.conn_id)
        hook.run(_spelled(statement, hook), autocommit=True)

    def ids(self) -> list[str]:
        return [
            row[0]
            for row in self.fetch("SELECT event_id FROM outbound_transfer_events ORDER BY cursor_from, line_number")
        ]

    def cursor(self) -> int:
        ((cursor,),) = self.fetch('SELECT "cursor" FROM outbound_transfer_feed_cursor')
        return int(cursor)


def _spelled(statement: str, hook: Any) -> str:
    return statement.replace('"', "`") if hook.dialect_name == "mysql" else statement


#: The second driver differs below the hook, where tests/integration/warehouse has it.
@pytest.fixture(params=["sqlite", "postgres", "duckdb", "mysqlclient"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    if request.param == "sqlite":
        value = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")})
    elif request.param == "duckdb":
        value = json.dumps({"conn_type": "duckdb", "host": str(tmp_path / "warehouse.duckdb")})
    elif request.param == "mysqlclient":
        value = request.getfixturevalue("mariadb").airflow_connection(request.param)
    else:
        value = request.getfixturevalue("postgres").airflow_connection
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", value)
    return Warehouse()


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def task(connection, warehouse: Warehouse, time: SimulatedClock) -> Callable[..., FakeTaskInstance]:
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


# ----------------------------------------------------------------------------------------------------- the real feed


def test_a_feed_of_three_pages_is_drained_without_a_refusal_or_a_worker_slot(task, sandbox, warehouse, time) -> None:
    sandbox.add_events(2_400, "transfer_sent")
    last = sandbox.add_events(100, "file_downloaded")
    ti = task()
    result = ti.run()
    counted = {"pages": 3, "events": 2_500, "new_events": 2_500, "rejected": 0}
    types = {"transfer_sent": 2_400, "file_downloaded": 100}
    assert result == counted | {"cursor_from": 0, "cursor_to": last, "has_more": False, "types": types}
    assert warehouse.cursor() == last
    assert len(set(warehouse.ids())) == 2_500
    assert warehouse.fetch("SELECT count(*) FROM outbound_transfer_events WHERE occurred_at IS NULL") == [(0,)]
    assert statuses(sandbox) == [200, 200, 200]
    assert ti.deferrals == 2
    assert_waited(time, 2)


@pytest.mark.any_dialect
def test_a_task_that_may_not_defer_sleeps_as_long(task, sandbox, warehouse, time) -> None:
    sandbox.add_events(1_500)
    ti = task(deferrable=False)
    assert ti.run()["events"] == 1_500
    assert (ti.deferrals, statuses(sandbox)) == (0, [200, 200])
    assert_waited(time, 1)
    sandbox.add_events(1)
    assert ti.run()["events"] == 1  # within the minute: refused, waited, repeated
    assert statuses(sandbox) == [200, 200, 429, 200]


@pytest.mark.any_dialect
@pytest.mark.parametrize("max_pages", [1, "1"])
def test_pages_are_limited_and_the_next_run_goes_on(task, sandbox, warehouse, max_pages) -> None:
    sandbox.add_events(1_500)
    result = task(max_pages=max_pages).run()
    assert (result["pages"], result["has_more"], result["cursor_to"]) == (1, True, 1_000)
    assert task(max_pages="None").run()["events"] == 500


@pytest.mark.any_dialect
def test_the_limit_of_pages_counts_across_deferrals(task, sandbox, warehouse) -> None:
    sandbox.add_events(3_500)
    ti = task(max_pages=3)
    result = ti.run()
    assert (result["pages"], result["cursor_to"], ti.deferrals) == (3, 3_000, 2)


@pytest.mark.any_dialect
@pytest.mark.parametrize(("name", "value"), [("max_pages", 0), ("max_pages", "many"), ("max_rejected", -1)])
def test_invalid_limit_fails_before_the_feed_is_read(task, sandbox, name, value) -> None:
    with pytest.raises(InvalidDelivery, match=name):
        task(**{name: value}).run()
    assert statuses(sandbox) == []


@pytest.mark.any_dialect
def test_a_refused_key_fails_at_once_and_is_not_shown(task, sandbox, warehouse, connection) -> None:
    old = sandbox.event_api_key
    sandbox.new_event_key()
    with pytest.raises(AirflowFailException, match="Check the API key") as error:
        task().run()
    assert old not in str(error.value)
    assert statuses(sandbox) == [401]
    assert warehouse.ids() == []


@pytest.mark.any_dialect
def test_where_to_go_on_is_asked_of_the_warehouse_after_a_wait(task, sandbox, warehouse, time) -> None:
    sandbox.add_events(1_500)
    operator = task().make()
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({})
    assert "cursor" not in json.dumps(deferred.value.trigger.serialize()[1], default=str)
    warehouse.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = 1400')
    time.sleep(61)
    result = operator.resume({}, event="anything", **deferred.value.kwargs)
    assert (result["pages"], result["events"], result["cursor_to"]) == (2, 1_100, 1_500)
    assert len(warehouse.ids()) == 1_100


# ----------------------------------------------------------------------------------------------- a feed that misbehaves


@dataclass
class Reply:
    body: bytes = b""
    cursor: int = 0
    more: bool = False
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    short: int = 0
    before: Callable[[], Any] = lambda: None

    def __bytes__(self) -> bytes:
        page = {"Content-Type": "application/x-ndjson", "X-Next-Cursor": str(self.cursor)}
        headers = page | {"X-Has-More": str(self.more).lower()} | self.headers
        whole = answer(self.body, f"{self.status} S", *(f"{name}: {value}" for name, value in headers.items()))
        return whole[: len(whole) - self.short]


@dataclass
class Script:
    """A feed over a real socket that answers as it is told, the last reply again and again."""

    replies: list[Reply] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, stream: socket.socket, request: bytes) -> None:
        self.asked.append(request.split(b" ")[1].decode())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        reply.before()
        stream.sendall(bytes(reply))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, connection) -> Iterator[Script]:
    script = Script()
    with serving(script.answer) as server:
        value = {"conn_type": "outbound_transfer", "host": server.url(), "extra": {"event_api_key": "obs_secret"}}
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(value))
        yield script


def lines(*ids: int) -> bytes:
    return b"".join(b'{"event_id":%d,"type":"t","data":{}}\n' % number for number in ids)


@pytest.mark.any_dialect
def test_too_many_rejected_lines_fail_at_once_and_land_nothing(task, warehouse, script) -> None:
    script.replies = [Reply(lines(1) + b"{}\nnull\n" + lines(2), cursor=4)]
    with pytest.raises(AirflowFailException, match=r"2 lines of the page after cursor 0 .* line 2: the event has no"):
        task(max_rejected=1).run()
    assert (warehouse.cursor(), warehouse.ids()) == (0, [])
    assert task(max_rejected=2).run()["rejected"] == 2
    assert warehouse.ids() == ["1", "2"]
    assert len(warehouse.fetch("SELECT * FROM outbound_transfer_rejected_lines")) == 2


BAD = {
    "cut off": Reply(lines(1) + b'{"event_id":', cursor=2),
    "html": Reply(b"<html>", headers={"Content-Type": "text/html"}),
    "backward": Reply(lines(1), cursor=-1),
    "no cursor": Reply(lines(1), headers={"X-Next-Cursor": ""}),
    "no has_more": Reply(lines(1), cursor=2, headers={"X-Has-More": "perhaps"}),
    "stands still": Reply(b"", cursor=0, more=True),
}


@pytest.mark.any_dialect
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_malformed_page_loads_nothing_and_is_left_to_the_tasks_retries(task, warehouse, script, bad, time) -> None:
    script.replies = [bad, Reply(lines(1, 2), cursor=2)]
    ti = task()
    with pytest.raises(MalformedResponse):
        ti.run()
    assert (warehouse.cursor(), warehouse.ids(), len(script.asked), time.waits) == (0, [], 1, [])
    ti.max_tries = ti.try_number + 1
    assert ti.run()["events"] == 2


@pytest.mark.any_dialect
def test_a_connection_that_breaks_and_faults_of_the_server_are_repeated(task, warehouse, script, time) -> None:
    page = Reply(lines(1, 2), cursor=2)
    script.replies = [Reply(lines(1, 2), cursor=2, short=10), Reply(status=503), Reply(status=500), page]
    assert task().run()["events"] == 2
    assert script.asked == ["/v1/events?cursor=0&limit=1000"] * 4
    assert len(time.waits) == 3


@pytest.mark.any_dialect
@pytest.mark.parametrize(("status", "seconds", "attempts"), [(429, 120, 30), (503, 120, 8), (429, 9_999, 1)])
def test_a_service_that_says_wait_forever_is_given_up(task, warehouse, script, time, status, seconds, attempts) -> None:
    script.replies = [Reply(status=status, headers={"Retry-After": str(seconds)})]
    ti = task()
    with pytest.raises(RateLimited if status == 429 else ServerFault):
        ti.run()
    assert (len(script.asked), ti.deferrals) == (attempts, 0)
    assert sum(time.waits) <= 3_600


_TRANSACTIONS = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id()"

#: Each gives 0 where nobody else holds a transaction (SQLite, PostgreSQL, MariaDB), or even a connection (DuckDB).
HELD = {
    "duckdb": "SELECT count(*) - 1 FROM duckdb_connection_count()",
    "sqlite": "PRAGMA wal_checkpoint(TRUNCATE)",
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND xact_start IS NOT NULL",
    "mysqlclient": _TRANSACTIONS,
}


@pytest.mark.any_dialect
def test_events_that_the_database_refuses_stop_no_others_but_count_as_rejected(
    task, warehouse, script, request
) -> None:
    hook = BaseHook.get_hook("warehouse")
    script.replies = [Reply()]
    task().run()
    refuse_rows(hook.get_conn, hook.dialect_name, "bad%")
    bad = b'{"event_id":2,"type":"bad","data":{}}\n'
    script.replies = [Reply(lines(1) + bad + lines(3), cursor=3)]
    with pytest.raises(AirflowFailException, match=r"1 line of the page .* line 2: the database refused it"):
        task(max_rejected=0).run()
    assert warehouse.ids() == []
    result = task().run()
    assert (result["events"], result["new_events"], result["rejected"]) == (2, 2, 1)
    assert warehouse.ids() == ["1", "3"]
    ((raw,),) = warehouse.fetch("SELECT raw FROM outbound_transfer_rejected_lines")
    assert bytes(raw) == bad[:-1]


def test_nothing_is_held_in_the_warehouse_during_a_call(task, request, warehouse, script) -> None:
    query = HELD[request.node.callspec.params["warehouse"]]
    seen: list[int] = []

    def look() -> None:
        seen.append(warehouse.fetch(query)[0][0])

    script.replies = [Reply(lines(1), cursor=1, more=True, before=look), Reply(lines(2), cursor=2, before=look)]
    task(deferrable=False).run()
    assert seen == [0, 0]


# ------------------------------------------------------------------------------------------------------ a real Airflow


@pytest.mark.any_dialect
def test_the_dag_of_the_repository_lands_the_feed(run_dag, connection, sandbox, warehouse) -> None:
    sandbox.add_events(5)
    source = (REPOSITORY / "dags/ingest_event_feed.py").read_text()
    run = run_dag(source, conf={"sql_conn_id": "warehouse"})
    assert run.state == "success"
    assert len(warehouse.ids()) == 5


def test_the_dag_starts_at_once_and_never_piles_up(airflow_database) -> None:
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.timetables.base import DataInterval, TimeRestriction

    from support.airflow_names import DagBag

    bag = DagBag(str(REPOSITORY / "dags/ingest_event_feed.py"))
    assert not bag.import_errors
    dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags["ingest_event_feed"]))
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    restriction = TimeRestriction(pendulum.datetime(2026, 1, 1), None, catchup=False)
    began = pendulum.now("UTC")
    lasts = (None, 0), (began.subtract(hours=5), 0), (began.subtract(seconds=30), 60)
    for last, seconds in lasts:
        info = dag.timetable.next_dagrun_info(
            last_automated_data_interval=last and DataInterval.exact(last), restriction=restriction
        )
        # Counted from now, which is not before `began`; the interval counts whole units of its own.
        assert began.add(seconds=seconds - 10) <= info.run_after <= pendulum.now("UTC").add(seconds=seconds + 10)
