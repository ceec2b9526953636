"""Every metric reaches StatsD from tasks of a real Airflow, as its documentation says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.observability import stats

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support import deliveries_table
from support.calls import SEND, ProcessCrashed, after, dying_after
from support.deliveries_table import DeliveriesTable
from support.repository import REPOSITORY
from support.statsd import stats_to
from support.tasks import SimulatedClock, task_instance
from support.warehouses import sqlite_hook

PREFIX = "outbound_transfer."


def documented() -> dict[str, tuple[str, set[str]]]:
    """Type and tags of each metric by its name, as the documentation has them."""
    text = (REPOSITORY / "docs/observability.md").read_text()
    rows = re.findall(rf"^\| `{re.escape(PREFIX)}(\w+)` \| (\w+), [^|]+ \| ([^|]+) \|", text, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", tags))) for name, kind, tags in rows}


RUN = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.sensors.transfer import TransferSensor
    from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
    from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

    with DAG("measured", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver", subject="S", recipients="ann@example.com", files={file!r}, wait=True, poke_interval=1,
        )
        wait = TransferSensor(
            task_id="wait", transfer_id="{{{{ ti.xcom_pull('deliver')['id'] }}}}", deferrable=True, poke_interval=1
        )
        events = EventFeedToSqlOperator(task_id="events", sql_conn_id="warehouse")
        transfers = TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse")
        deliver >> wait >> events >> transfers
"""


@pytest.fixture
def statsd() -> Iterator[socket.socket]:
    """A StatsD server to which Airflow's own client sends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        server.bind(("127.0.0.1", 0))
        with stats_to(server.getsockname()[1]):
            yield server


#: Name, tags, value, type.
Packet = tuple[str, dict[str, str], float, str]
KINDS = {"c": "counter", "g": "gauge", "ms": "timer"}


def received(server: socket.socket) -> list[Packet]:
    server.setblocking(False)
    packets = []
    with suppress(BlockingIOError):
        while True:
            text = server.recv(65_535).decode()
            name, value, kind = re.fullmatch(r"airflow\.([^:]+):([^|]+)\|(\w+)", text).groups()
            name, *tags = name.split(",")
            if name.startswith(PREFIX):
                packets.append((name.removeprefix(PREFIX), dict(tag.split("=") for tag in tags), float(value), kind))
    return packets


def total(packets: list[Packet], metric: str, **tags: str) -> float:
    return sum(value for name, has, value, _ in packets if name == metric and tags.items() <= has.items())


def test_every_metric_is_emitted_by_tasks_with_the_tags_that_the_table_names(
    statsd, run_dag, connection, sandbox, recipients_pick_up, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    deliveries_table.use(monkeypatch, "warehouse")
    file = tmp_path / "a.csv"
    file.write_bytes(b"x" * 300_000)
    sandbox.plan_faults(
        {"path": "/v1/transfers", "kind": "error", "status": 429, "retry_after": "1"},
        {"path": "/v1/events", "kind": "malformed_line"},
    )

    run = run_dag(RUN.format(file=str(file)))

    assert run.state == "success", run.states()
    packets = received(statsd)
    names = documented()
    assert len(names) > 10
    of_losses = {"database_failures", "missing_rows"}
    assert {name for name, *_ in packets} == names.keys() - of_losses
    for name, (kind, tags) in names.items():
        found = [packet for packet in packets if packet[0] == name]
        assert {KINDS[each] for *_, each in found} <= {kind}
        assert all(has.keys() == tags for _, has, *_ in found)
    for expected, name, tags in (
        (1, "requests", {"operation": "create", "status": "429", "conn_id": connection}),
        (1, "requests", {"operation": "create", "status": "201"}),
        (1, "requests", {"operation": "send", "status": "200"}),
        (len(sandbox.requests()) + 1, "requests", {}),  # with the fault's, which the service never saw
        (300_000, "bytes_uploaded", {}),
        (1, "deliveries", {"outcome": "sent", "conn_id": connection}),
        (2, "deliveries", {"outcome": "picked_up", "conn_id": connection}),  # both tasks wait
        (3, "deliveries", {}),
        (1, "retries", {}),
        (1, "rejected_lines", {}),
        (1, "rows_loaded", {"table": "transfers"}),
    ):
        assert total(packets, name, **tags) == expected, (name, tags)
    assert 1 <= total(packets, "rate_limit_wait_seconds") <= 2
    assert total(packets, "rows_loaded", table="events") >= 1
    waiters = [value for name, _, value, _ in packets if name == "deferred_waiters"]
    assert (waiters[0], waiters[-1], set(waiters)) == (1, 0, {0, 1})
    assert len(waiters) > 2, "it is not renewed with each poll"


def test_a_database_that_cannot_be_reached_is_counted(statsd, connection, monkeypatch) -> None:
    server = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "schema": "none"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(server))
    with pytest.raises(Exception, match="refused"):
        TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse").execute({})
    failures = [packet for packet in received(statsd) if packet[0] == "database_failures"]
    assert {(tags["sql_conn_id"], kind) for _, tags, _, kind in failures} == {("warehouse", "c")}


DELIVER = {"subject": "S", "recipients": "ann@example.com", "files": {"name": "a.csv", "content": "a,b"}}


def test_each_outcome_of_a_delivery_is_counted_once(statsd, sandbox, connection) -> None:
    def run(**changes: Any) -> dict[str, float]:
        task = task_instance(DeliverFilesOperator, SimulatedClock(sandbox), **{**DELIVER, **changes})
        with suppress(Exception, ProcessCrashed):  # some are to fail
            task.run()
        counted = [packet for packet in received(statsd) if packet[0] == "deliveries"]
        return {tags["outcome"]: value for _, tags, value, _ in counted}

    assert run() == {"sent": 1}
    assert run(files="/nowhere/a.csv") == {"failed": 1}
    assert run(subject="", _airflow_from_mapped=True) == {"failed": 1}  # checked when it runs
    assert run(outbound_transfer_conn_id="missing") == {"failed": 1}
    with after(SEND, lambda: sandbox.cancel(sandbox.sent()[-1])):
        assert run(wait=True, poke_interval=0.1) == {"sent": 1, "canceled": 1}
    sandbox.plan_faults({"path": "/v1/transfers", "kind": "error", "status": 401})
    assert run() == {"failed": 1}
    with dying_after(SEND):
        assert run() == {"in_doubt": 1}


def test_a_task_reports_how_many_deliveries_stay_in_doubt(statsd, sandbox, connection, tmp_path, monkeypatch) -> None:
    file = tmp_path / "deliveries.db"
    monkeypatch.setenv("AIRFLOW_CONN_DELIVERIES", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    deliveries_table.use(monkeypatch, "deliveries")

    def in_doubt() -> list[float]:
        task_instance(DeliverFilesOperator, SimulatedClock(sandbox), **DELIVER).run()
        return [packet[2] for packet in received(statsd) if packet[0] == "deliveries_in_doubt"]

    assert in_doubt() == [0]
    old = datetime.now(UTC) - timedelta(hours=1)
    DeliveriesTable(sqlite_hook(file)).add("t1", status="in doubt", conn_id=connection, updated_at=old)
    assert in_doubt() == [1]


def test_no_metric_breaks_a_delivery(monkeypatch, hook) -> None:
    for name in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, name, lambda *_, **__: 1 / 0)
    assert hook.list_transfers().data == ()
