"""Each alert of include/observability fires in the series of a fault, and ends with it: a table for promtool.

That these series come, with these names and labels, is what test_metrics.py and test_operations_pack.py say.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.repository import REPOSITORY

pytestmark = pytest.mark.nightly

PACK = REPOSITORY / "include/observability"
PREFIX = "airflow_outbound_transfer_"


class Fault(NamedTuple):
    """Series, a value a minute, and the minutes at which the alert fires and at which it does not."""

    alert: str
    series: dict[str, str]
    fires: tuple[int, ...] = ()
    quiet: tuple[int, ...] = ()


SENT = 'deliveries_total{conn_id="c", outcome="sent"}'
READ = 'requests_total{conn_id="c", operation="events", status="200"}'
POLLS, WAITERS = 'poll_duration_seconds_count{conn_id="c"}', 'deferred_waiters{conn_id="c", triggerer="t"}'

FAULTS = {
    "a send in doubt until it is found out": Fault(
        "SendInDoubt", {'deliveries_in_doubt{conn_id="c"}': "0 1x5 0x5"}, (3,), (0, 8)
    ),
    "a feed with more": Fault("FeedBehind", {'feed_lag_seconds{account="a"}': "7200x30 0x30"}, (20,), (10, 40)),
    "a feed that nobody reads": Fault("FeedBehind", {READ: "1x300 2x30"}, (210, 295), (150, 310)),
    "a read every two and a half hours, and an exporter that has been started again": Fault(
        "FeedBehind", {READ: "100x149 _x150 1x149 2x149"}, quiet=(390,)
    ),
    "a revoked key": Fault(
        "KeyRefused", {'requests_total{conn_id="c", operation="send", status="401"}': "_x30 1x60"}, (32,), (20, 55)
    ),
    "a key that has been refused before": Fault(
        "KeyRefused", {'requests_total{conn_id="c", operation="send", status="403"}': "1x30 2x60"}, (32,), (20, 55)
    ),
    "refused calls": Fault(
        "CallsUsedUp",
        {'rate_limit_wait_seconds_total{conn_id="c", operation="create"}': "_x10 400x80"},
        (25,),
        (5, 15, 60),
    ),
    "refused reads of the feed, whose limit is one a minute": Fault(
        "CallsUsedUp", {'rate_limit_wait_seconds_total{conn_id="c", operation="events"}': "_x10 400x80"}, quiet=(25,)
    ),
    "an expired transfer": Fault(
        "TransfersOverdue",
        {SENT: "_x10 9x120", 'deliveries_total{conn_id="c", outcome="expired"}': "_x10 1x120"},
        (12,),
        (5, 75),
    ),
    "a sent transfer": Fault("TransfersOverdue", {SENT: "_x10 1x120"}, quiet=(12,)),
    "a triggerer that is gone, until another polls": Fault(
        "NothingPolls", {WAITERS: "2x120", POLLS: "0+1x30 30x40 31+1x40"}, (60,), (25, 75)
    ),
    "the first poll of a triggerer that polls alone, every ten minutes": Fault(
        "NothingPolls", {WAITERS: "_x10 1x50", POLLS: "_x10 1x9 2x9"}, quiet=(22,)
    ),
    "nobody who waits": Fault("NothingPolls", {WAITERS: "0x120", POLLS: "1x120"}, quiet=(60,)),
    "a database that is down": Fault(
        "DatabaseUnreachable", {'database_failures_total{sql_conn_id="ledger"}': "_x30 1x60"}, (32,), (20, 55)
    ),
    "rejected lines": Fault("LinesRejected", {'rejected_lines_total{account="a"}': "_x30 3x120"}, (32,), (20, 100)),
}


def promtool(*words: Any) -> None:
    unpacked = REPOSITORY / ".venv/prometheus/usr/bin/promtool"
    found = str(unpacked) if unpacked.exists() else shutil.which("promtool")
    assert found, "These tests need promtool: run `make .prometheus`."
    done = subprocess.run([found, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_error_in_configuration_rules_and_panels(tmp_path: Path) -> None:
    promtool("check", "config", PACK / "prometheus.yml")
    panels = json.loads((PACK / "dashboard.json").read_text())["panels"]
    expressions = [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]
    rules = [{"record": f"panel_{number}", "expr": each} for number, each in enumerate(expressions)]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "rules.json")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_alert_fires_during_a_fault_and_not_before_or_after(fault: Fault, tmp_path: Path) -> None:
    count = f'count(ALERTS{{alertname="OutboundTransfer{fault.alert}", alertstate="firing"}}) or vector(0)'
    minutes = [(at, 1) for at in fault.fires] + [(at, 0) for at in fault.quiet]
    test = {
        "interval": "1m",
        "input_series": [{"series": PREFIX + name, "values": values} for name, values in fault.series.items()],
        "promql_expr_test": [
            {"expr": count, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": value}]}
            for at, value in minutes
        ],
    }
    file = tmp_path / "tests.json"
    file.write_text(
        json.dumps({"rule_files": [str(PACK / "alerts.yml")], "evaluation_interval": "1m", "tests": [test]})
    )
    promtool("test", "rules", file)


def test_each_alert_is_in_the_table() -> None:
    text = (PACK / "alerts.yml").read_text()
    assert {f"alert: OutboundTransfer{fault.alert}" for fault in FAULTS.values() if fault.fires} == {
        line.strip("- ") for line in text.splitlines() if "- alert:" in line
    }
