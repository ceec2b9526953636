"""Each alert of include/observability fires in a played fault, and ends when its runbook has been followed.

Tasks send their metrics by Airflow's client; a real Prometheus has the rules, in which time passes 360 times faster.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from airflow.sdk import BaseNotifier

from outbound_transfer.airflow_compat.names import AirflowFailException, AirflowSkipException
from outbound_transfer.observability import metrics
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.transfers import event_feed
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.warehouse import deliveries
from support.airflow_stack.waiters import send
from support.keyed_tasks import sqlite_connection
from support.prometheus import Prometheus, faster, find_program, running_prometheus
from support.repository import REPOSITORY
from support.statsd import running_exporter, stats_environment, stats_to
from support.tasks import FakeTaskInstance, ProcessCrashed, dying_after
from support.timeouts import eventually

pytestmark = pytest.mark.nightly

PACK = REPOSITORY / "include/observability"
RULES = (PACK / "alerts.yml").read_text()


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    mapping = tmp_path_factory.mktemp("exporter") / "mapping.yml"
    times = {"5m": "12s", "6h": "600s"}
    text = (PACK / "statsd-mapping.yml").read_text()
    mapping.write_text(re.sub(r"ttl: (\w+)", lambda match: f"ttl: {times[match[1]]}", text))
    with running_exporter(mapping) as ports:
        yield ports


@pytest.fixture(scope="module")
def prometheus(ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), faster(RULES), ports[1]) as server:
        yield server


@pytest.fixture(autouse=True)
def stats(ports: tuple[int, int]) -> Iterator[None]:
    with stats_to(ports[0]):
        yield


@pytest.fixture
def fires(prometheus: Prometheus) -> Callable[[str, bool], None]:
    """Wait until an alert fires, or fires no more."""

    def wait(name: str, does: bool = True) -> None:
        eventually(lambda: (f"OutboundTransfer{name}" in prometheus.firing()) is does, 0.1)

    return wait


@pytest.fixture
def deliver(task: Callable[..., FakeTaskInstance], tmp_path: Path) -> Callable[..., FakeTaskInstance]:
    (tmp_path / "a.csv").write_bytes(b"a,b\n")
    given = {"subject": "S", "recipients": "ann@example.com", "files": str(tmp_path / "a.csv")}
    return lambda task_id="deliver", **changes: task(DeliverFilesOperator, task_id, **(given | changes))


@pytest.fixture
def ingest(task: Callable[..., FakeTaskInstance], connect: Callable[..., None]) -> Callable[..., FakeTaskInstance]:
    connect("warehouse")
    return lambda **changes: task(EventFeedToSqlOperator, "ingest", sql_conn_id="warehouse", **changes)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Let a connection lead to a database: a file, or a server where none is."""

    def set_connection(name: str, *, is_down: bool = False) -> None:
        server = json.dumps({"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "schema": "none"})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", server if is_down else sqlite_connection(tmp_path / name))
        if name == "ledger":
            monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", name)

    return set_connection


def test_promtool_finds_no_fault() -> None:
    subprocess.run([find_program("promtool"), "check", "config", PACK / "prometheus.yml"], check=True)  # and the rules


@pytest.mark.parametrize(
    ("alert", "at", "series"),
    [
        pytest.param(
            "NothingPolls",
            "22m",
            {
                'deferred_waiters{conn_id="c", triggerer="t"}': "_x40 1x200",
                'poll_duration_seconds_count{conn_id="c"}': "_x40 1x39 2x39",
            },
            id="the first poll of a triggerer that polls alone, every ten minutes",
        ),
        pytest.param(
            "FeedBehind",
            "6h30m",
            {'requests_total{conn_id="c", operation="events", status="200"}': "100x599 _x600 1x599 2x599"},
            id="a read every two and a half hours, and an exporter that has been started again",
        ),
    ],
)
def test_what_is_no_fault_fires_nothing(alert: str, at: str, series: dict[str, str], tmp_path: Path) -> None:
    given = [{"series": f"airflow_outbound_transfer_{name}", "values": values} for name, values in series.items()]
    expected = [{"eval_time": at, "alertname": f"OutboundTransfer{alert}", "exp_alerts": []}]
    tests = [{"interval": "15s", "input_series": given, "alert_rule_test": expected}]
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(PACK / "alerts.yml")], "tests": tests}))
    subprocess.run([find_program("promtool"), "test", "rules", file], check=True)


def test_nothing_fires_where_all_is_well(prometheus, sandbox, deliver, ingest, connect, recipients_pick_up) -> None:
    connect("ledger")
    for number in range(3):
        deliver(f"deliver_{number}", wait=True, poke_interval=1).run()
        ingest().run()
        until = time.monotonic() + 3  # longer than each `for`
        while time.monotonic() < until:
            assert prometheus.firing() == set()
            time.sleep(0.2)
    assert prometheus.query('airflow_outbound_transfer_deliveries_total{outcome="picked_up"} == 3')


def test_a_send_in_doubt(fires, sandbox, deliver, connect, monkeypatch) -> None:
    connect("ledger")
    monkeypatch.setattr(deliveries, "_STAYS", timedelta(0))
    killed = deliver("killed")
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        killed.run()
    deliver("other").run()
    fires("SendInDoubt")
    killed.clear()
    killed.run()
    fires("SendInDoubt", False)
    assert len(sandbox.sent()) == 2


def test_a_feed_behind_and_one_that_nobody_reads(fires, sandbox, ingest) -> None:
    sandbox.add_events(1_500)
    later = SimpleNamespace(time=lambda: time.time() + 7_200)
    with mock.patch.object(event_feed, "time", later):
        ingest(max_pages=1).run()
    fires("FeedBehind")
    ingest().run()
    fires("FeedBehind", False)
    fires("FeedBehind")  # three hours later
    ingest().run()
    fires("FeedBehind", False)


def test_a_revoked_key(fires, sandbox, deliver, monkeypatch) -> None:
    name = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
    connection = json.loads(os.environ[name])
    sandbox.revoke_key(connection["password"])
    refused = deliver()
    with pytest.raises(AirflowFailException, match="401"):
        refused.run()
    fires("KeyRefused")
    monkeypatch.setenv(name, json.dumps(connection | {"password": sandbox.new_key("ann@example.com")}))
    refused.clear()
    refused.run()
    fires("KeyRefused", False)
    sandbox.assert_sent_once()


def test_refused_calls(fires, sandbox, deliver) -> None:
    sandbox.plan_faults({"path": "/v1/transfers", "kind": "error", "status": 429, "retry_after": "400"})
    deliver().run()
    fires("CallsUsedUp")
    fires("CallsUsedUp", False)


def test_more_calls_than_a_key_has(fires, sandbox, deliver, connect, monkeypatch) -> None:
    connect("ledger")
    few = sandbox.airflow_connection(calls_per_minute="1")
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", few)
    deliver().run()
    fires("CallsUsedUp")
    fires("CallsUsedUp", False)


class Silent(BaseNotifier):
    def notify(self, context: Any) -> None: ...


def test_late_and_expired_transfers(fires, prometheus, sandbox, deliver) -> None:
    wait = DeliverFilesOperator._wait_until_finished

    def wait_for_expiry(operator: Any, hook: Any, transfer: Any, context: Any) -> Any:
        sandbox.set_expiry(transfer.id, 3)
        return wait(operator, hook, transfer, context)

    late = {"notify_after": [timedelta(microseconds=1)], "notifiers": Silent()}
    with (
        mock.patch.object(DeliverFilesOperator, "_wait_until_finished", wait_for_expiry),
        pytest.raises(AirflowSkipException),
    ):
        deliver(wait=True, poke_interval=1, on_expired="skip", **late).run()
    fires("TransfersOverdue")
    prefix = "airflow_outbound_transfer_"
    both = f'{prefix}late_transfers_total == 1 or {prefix}deliveries_total{{outcome="expired"}} == 1'
    eventually(lambda: len(prometheus.query(both)) == 2, 0.1)
    fires("TransfersOverdue", False)


def test_a_triggerer_that_is_gone(fires, prometheus, sandbox, connect, ports, tmp_path) -> None:
    connect("ledger")
    (tmp_path / "ids").write_text("\n".join(send(sandbox, 3)))
    start = (
        "import runpy; from airflow.sdk.observability import stats; from airflow.sdk.observability.metrics import "
        "stats_utils; stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False); "
        "runpy.run_module('benchmarks.cluster_waiter', run_name='__main__')"
    )
    command = [sys.executable, "-c", start, tmp_path / "ids", tmp_path / "noticed", "1"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")} | stats_environment(ports[0])

    def triggerer() -> subprocess.Popen[bytes]:
        return subprocess.Popen(list(map(str, command)), env=environment)

    first = triggerer()
    try:
        eventually(lambda: prometheus.query("airflow_outbound_transfer_poll_duration_seconds_count"), 0.1)
        fires("NothingPolls", False)  # it may, as `for` is so short, before the first poll
        until = time.monotonic() + 10
        while time.monotonic() < until:
            assert "OutboundTransferNothingPolls" not in prometheus.firing()
            time.sleep(0.2)
    finally:
        first.kill()
        first.wait()
    fires("NothingPolls")
    second = triggerer()
    try:
        fires("NothingPolls", False)
    finally:
        second.kill()
        second.wait()


def test_a_ledger_and_a_warehouse_that_are_down(fires, prometheus, sandbox, deliver, ingest, connect) -> None:
    waiting = ingest()
    connect("ledger", is_down=True)
    connect("warehouse", is_down=True)
    deliver().run()
    with suppress(Exception):
        waiting.run()
    fires("DatabaseUnreachable")
    failed = {
        each["metric"]["sql_conn_id"] for each in prometheus.query("airflow_outbound_transfer_database_failures_total")
    }
    assert failed == {"ledger", "warehouse"}
    connect("ledger")
    connect("warehouse")
    waiting.clear()
    waiting.run()
    fires("DatabaseUnreachable", False)
    sandbox.assert_sent_once()


def test_rejected_lines(fires, sandbox, ingest) -> None:
    sandbox.add_events(3)
    sandbox.plan_faults({"path": "/v1/events", "kind": "malformed_line"})
    ingest().run()
    fires("LinesRejected")
    fires("LinesRejected", False)


def test_each_panel_of_the_dashboard_shows_something(prometheus) -> None:
    for number in range(2):
        for metric in metrics.METRICS:
            metric.emit(1, **{tag: "expired" if tag == "outcome" else "x" for tag in metric.tags})
        if not number:
            eventually(lambda: prometheus.query('airflow_outbound_transfer_rows_loaded_total{table="x"}'), 0.1)
    time.sleep(1)
    for panel in json.loads((PACK / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "30s").replace("$conn_id", ".*")
            assert prometheus.query(f"({expression}) > 0"), (panel["title"], expression)
