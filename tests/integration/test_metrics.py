"""Every metric reaches StatsD from tasks of a real Airflow, as its documentation says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from airflow.sdk.observability import stats

from outbound_transfer.observability import metrics
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.warehouse import deliveries
from outbound_transfer.warehouse.connection import open_warehouse
from support.keyed_tasks import sqlite_connection
from support.repository import REPOSITORY
from support.statsd import stats_to
from support.tasks import FakeTaskInstance, ProcessCrashed, SimulatedClock, dying_after

RUN = """
    from airflow.sdk import DAG, BaseNotifier
    from datetime import timedelta
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.sensors.transfer import TransferSensor
    from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
    from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

    class Silent(BaseNotifier):
        def notify(self, context): ...

    with DAG("measured", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver", subject="S", recipients="ann@example.com", files={file!r}, wait=True, poke_interval=1,
            notify_after=[timedelta(microseconds=1), timedelta(microseconds=2)], notifiers=Silent(),
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


Packet = tuple[str, dict[str, str], float, str]
KINDS = {"c": metrics.MetricType.COUNTER, "g": metrics.MetricType.GAUGE, "ms": metrics.MetricType.TIMER}


def received(server: socket.socket) -> list[Packet]:
    """What has come of ours: name, tags, value, type."""
    server.setblocking(False)
    packets = []
    while True:
        try:
            text = server.recv(65_535).decode()
        except BlockingIOError:
            return [packet for packet in packets if packet[0].startswith(metrics.PREFIX)]
        name, value, kind = re.fullmatch(r"airflow\.([^:]+):([^|]+)\|(\w+)", text).groups()
        name, *tags = name.split(",")
        packets.append((name, dict(tag.split("=") for tag in tags), float(value), kind))


def total(packets: list[Packet], metric: metrics.Metric, **tags: str) -> float:
    return sum(value for name, has, value, _ in packets if name == metric.full_name and tags.items() <= has.items())


def test_every_metric_is_emitted_by_tasks_with_the_tags_that_the_table_names(
    statsd, run_dag, connection, sandbox, recipients_pick_up, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "warehouse")
    file = tmp_path / "a.csv"
    file.write_bytes(b"x" * 300_000)
    sandbox.plan_faults(
        {"path": "/v1/transfers", "kind": "error", "status": 429, "retry_after": "1"},
        {"path": "/v1/events", "kind": "malformed_line"},
    )

    run = run_dag(RUN.format(file=str(file)))

    assert run.state == "success", run.states()
    packets = received(statsd)
    for metric in set(metrics.METRICS) - {metrics.DATABASE_FAILURES}:
        found = [packet for packet in packets if packet[0] == metric.full_name]
        assert found, f"{metric.full_name} was not emitted"
        assert {KINDS[kind] for *_, kind in found} == {metric.type}
        assert {tuple(tags) for _, tags, *_ in found} == {metric.tags}
    assert total(packets, metrics.REQUESTS, operation="create", status="429", conn_id=connection) == 1
    assert total(packets, metrics.REQUESTS, operation="create", status="201") == 1
    assert total(packets, metrics.REQUESTS, operation="send", status="200") == 1
    assert total(packets, metrics.REQUESTS) == len(sandbox.requests()) + 1  # the fault's, which the service never saw
    assert total(packets, metrics.BYTES_UPLOADED) == 300_000
    for outcome, count in (("sent", 1), ("picked_up", 2)):  # both tasks wait
        assert total(packets, metrics.DELIVERIES, outcome=outcome, conn_id=connection) == count
    assert total(packets, metrics.DELIVERIES) == 3
    assert total(packets, metrics.LATE_TRANSFERS, conn_id=connection) == 1
    assert total(packets, metrics.RETRIES) == 1
    assert 1 <= total(packets, metrics.RATE_LIMIT_WAIT) <= 2
    assert total(packets, metrics.REJECTED_LINES) == 1
    assert total(packets, metrics.ROWS_LOADED, table="transfers") == 1
    assert total(packets, metrics.ROWS_LOADED, table="events") >= 1
    waiters = [value for name, _, value, _ in packets if name == metrics.DEFERRED_WAITERS.full_name]
    assert (waiters[0], waiters[-1], set(waiters)) == (1, 0, {0, 1})
    assert len(waiters) > 2, "it is not renewed with each poll"


def test_a_database_that_cannot_be_reached_is_counted(statsd, monkeypatch) -> None:
    server = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "schema": "none"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(server))
    with pytest.raises(Exception, match="refused"), open_warehouse("warehouse", prefix="", schema=None).read():
        pass
    assert received(statsd) == [(metrics.DATABASE_FAILURES.full_name, {"sql_conn_id": "warehouse"}, 1, "c")]


def test_each_outcome_of_a_delivery_is_counted_once(statsd, sandbox, connection, tmp_path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"a,b\n")

    def run(**changes: Any) -> dict[str, float]:
        arguments = {"subject": "S", "recipients": "ann@example.com", "files": str(file), **changes}
        task = FakeTaskInstance(
            lambda: DeliverFilesOperator(task_id="deliver", **arguments), SimulatedClock(sandbox), task_id="deliver"
        )
        with suppress(Exception, ProcessCrashed):  # some are to fail
            task.run()
        counted = [packet for packet in received(statsd) if packet[0] == metrics.DELIVERIES.full_name]
        return {tags["outcome"]: value for _, tags, value, _ in counted}

    assert run() == {"sent": 1}
    assert run(files="/nowhere/a.csv") == {"failed": 1}
    assert run(subject="", _airflow_from_mapped=True) == {"failed": 1}  # checked when it runs
    assert run(outbound_transfer_conn_id="missing") == {"failed": 1}
    with mock.patch.object(DeliverFilesOperator, "_wait_until_finished", wait_after(sandbox.cancel)):
        assert run(wait=True) == {"sent": 1, "canceled": 1}
    sandbox.plan_faults({"path": "/v1/transfers", "kind": "error", "status": 401})
    assert run() == {"failed": 1}
    with dying_after(Operation.SEND):
        assert run() == {"in_doubt": 1}


def test_what_a_process_left_in_doubt_is_counted_by_the_next_tasks_until_a_clear(
    statsd, sandbox, connection, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", sqlite_connection(tmp_path / "ledger.db"))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")
    monkeypatch.setattr(deliveries, "_STAYS", timedelta(0))
    (tmp_path / "a.csv").write_bytes(b"a,b\n")

    def task(task_id: str) -> FakeTaskInstance:
        given = {"subject": "S", "recipients": "ann@example.com", "files": str(tmp_path / "a.csv")}
        return FakeTaskInstance(
            lambda: DeliverFilesOperator(task_id=task_id, **given), SimulatedClock(sandbox), task_id=task_id
        )

    def in_doubt() -> list[float]:
        return [packet[2] for packet in received(statsd) if packet[0] == metrics.DELIVERIES_IN_DOUBT.full_name]

    killed = task("killed")
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        killed.run()
    received(statsd)
    task("other").run()
    assert in_doubt() == [1]
    killed.clear()
    killed.run()
    assert in_doubt() == [0]


def wait_after(change: Callable[[str], Any]) -> Callable[..., Any]:
    """The wait of the operator, with the transfer as it is after a change."""
    wait = DeliverFilesOperator._wait_until_finished

    def changed(operator: Any, hook: Any, transfer: Any, context: Any) -> Any:
        change(transfer.id)
        return wait(operator, hook, hook.get_transfer(transfer.id), context)

    return changed


def test_no_metric_breaks_a_delivery(monkeypatch, hook) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no StatsD")

    for name in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, name, broken)
    assert hook.list_transfers().data == ()


def test_tags_hold_nothing_that_would_be_read_as_another(statsd) -> None:
    metrics.REQUESTS.emit(operation="list files", status="none", conn_id="a,b=c:1|c\n/é")
    ((name, tags, value, _),) = received(statsd)
    assert (name, tags["operation"], tags["conn_id"], value) == (
        metrics.REQUESTS.full_name,
        "list_files",
        "a_b_c_1_c___",
        1,
    )


def test_a_metric_with_the_longest_names_is_not_dropped(statsd) -> None:
    for metric in metrics.METRICS:  # a connection's id may have 250 characters, a host's name 253
        metric.emit(1, **(dict.fromkeys(metric.tags, "x" * 253) | {"operation": "list_files", "status": "none"}))
    assert {name for name, *_ in received(statsd)} == {metric.full_name for metric in metrics.METRICS}


def test_the_documentation_has_the_table() -> None:
    assert metrics.markdown_table() in (REPOSITORY / "docs/observability.md").read_text()


def test_names_are_legal_everywhere() -> None:
    names = [metric.full_name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"outbound_transfer\.[a-z_]{1,60}", name)] == []
    assert {value for value in vars(metrics).values() if isinstance(value, metrics.Metric)} == set(metrics.METRICS)
