"""Each alert of include/observability fires in the series of a fault, and ends with it: a table for promtool.

That these series come, with these names and labels, is what test_metrics.py and test_operations_pack.py say.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.repository import REPOSITORY

pytestmark = pytest.mark.nightly

PACK = REPOSITORY / "include/observability"
PREFIX = "airflow_outbound_transfer_"


SENT = 'deliveries_total{conn_id="c", outcome="sent"}'
EXPIRED = 'deliveries_total{conn_id="c", outcome="expired"}'
READ = 'requests_total{conn_id="c", operation="events", status="200"}'
REFUSED = 'requests_total{conn_id="c", operation="send", status="401"}'
WAITED = 'rate_limit_wait_seconds_total{conn_id="c", operation="%s"}'
POLLS, WAITERS = 'poll_duration_seconds_count{conn_id="c"}', 'deferred_waiters{conn_id="c", triggerer="t"}'

#: The alert, series with a value a minute, the minutes at which it fires, and those at which it does not.
FAULTS: dict[str, tuple[str, dict[str, str], tuple[int, ...], tuple[int, ...]]] = {
    "a send in doubt, then found out": ("SendInDoubt", {'deliveries_in_doubt{conn_id="c"}': "0 1x5 0x5"}, (3,), (0, 8)),
    "a feed with more": ("FeedBehind", {'feed_lag_seconds{account="a"}': "7200x30 0x30"}, (20,), (10, 40)),
    "a feed that nobody reads": ("FeedBehind", {READ: "1x300 2x30"}, (210, 295), (150, 310)),
    "a rare read, and a new exporter": ("FeedBehind", {READ: "100x149 _x150 1x149 2x149"}, (), (390,)),
    "a revoked key": ("KeyRefused", {REFUSED: "_x30 1x60"}, (32,), (20, 55)),
    "a key that was refused before": ("KeyRefused", {REFUSED.replace("401", "403"): "1x30 2x60"}, (32,), (20, 55)),
    "refused calls": ("CallsUsedUp", {WAITED % "create": "_x10 400x80"}, (25,), (5, 15, 60)),
    "refused reads of the feed": ("CallsUsedUp", {WAITED % "events": "_x10 400x80"}, (), (25,)),  # one a minute
    "an expired transfer": ("TransfersOverdue", {SENT: "_x10 9x120", EXPIRED: "_x10 1x120"}, (12,), (5, 75)),
    "a sent transfer": ("TransfersOverdue", {SENT: "_x10 1x120"}, (), (12,)),
    "a triggerer that is gone": ("NothingPolls", {WAITERS: "2x120", POLLS: "0+1x30 30x40 31+1x40"}, (60,), (25, 75)),
    "a first poll, alone": ("NothingPolls", {WAITERS: "_x10 1x50", POLLS: "_x10 1x9 2x9"}, (), (22,)),
    "nobody who waits": ("NothingPolls", {WAITERS: "0x120", POLLS: "1x120"}, (), (60,)),
    "a database that is down": (
        *("DatabaseUnreachable", {'database_failures_total{sql_conn_id="ledger"}': "_x30 1x60"}, (32,), (20, 55)),
    ),
    "rejected lines": ("LinesRejected", {'rejected_lines_total{account="a"}': "_x30 3x120"}, (32,), (20, 100)),
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


@pytest.mark.parametrize(("alert", "series", "fires", "quiet"), FAULTS.values(), ids=FAULTS)
def test_an_alert_fires_during_a_fault_and_not_before_or_after(alert, series, fires, quiet, tmp_path: Path) -> None:
    count = f'count(ALERTS{{alertname="OutboundTransfer{alert}", alertstate="firing"}}) or vector(0)'
    test = {
        "interval": "1m",
        "input_series": [{"series": PREFIX + name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": count, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": int(at in fires)}]}
            for at in fires + quiet
        ],
    }
    file = tmp_path / "tests.json"
    rules = {"rule_files": [str(PACK / "alerts.yml")], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(json.dumps(rules))
    promtool("test", "rules", file)


def test_each_alert_is_in_the_table() -> None:
    names = re.findall(r"- alert: OutboundTransfer(\w+)", (PACK / "alerts.yml").read_text())
    assert {alert for alert, _, fires, _ in FAULTS.values() if fires} == {*names}
