"""The parts of `make demo` that can be tested without playing it: what it claims, and that it stops what it started."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from demo.report import Facts, Outcome, checks

from support.airflow_stack import processes
from support.airflow_stack.console import tail
from support.repository import REPOSITORY

EMAILS = ["ann@example.com", "bob@example.com"]
NAMES = ["a.csv", "b.csv"]


def good_facts() -> Facts:
    """One delivery of two files to two recipients, as it should be."""
    contents = dict.fromkeys(NAMES, (3, "0" * 64))
    transfer = {
        "status": "complete",
        "recipients": [{"email": email, "picked_up_at": "2026-01-31"} for email in EMAILS],
    }
    outcome = Outcome(
        "Report", EMAILS, "t1", contents, dict(contents), transfer, ["partial", "complete"], deferred=True
    )
    downloads = [{"transfer_id": "t1", "recipient": email, "file_name": name} for email in EMAILS for name in NAMES]
    data = [("transfer_sent", {"transfer_id": "t1"}), *(("file_downloaded", download) for download in downloads)]
    return Facts(
        outcomes=[outcome],
        ledger=[
            {"kind": "billed", "transfer_id": "t1", "recipient": None},
            *({"kind": "emailed", "transfer_id": "t1", "recipient": email} for email in EMAILS),
        ],
        calls=[],
        events=[{"event_id": str(id_), "type": type_, "data": row} for id_, (type_, row) in enumerate(data, start=1)],
        cursor=5,
        rejected=0,
        import_errors=[],
    )


def test_the_demo_is_content_with_what_is_right() -> None:
    assert all(is_so for _, is_so in checks(good_facts()))


def outcome_with(**changes: Any) -> Callable[[Facts], Facts]:
    return lambda facts: dataclasses.replace(facts, outcomes=[dataclasses.replace(facts.outcomes[0], **changes)])


def facts_with(**changes: Callable[[Any], Any]) -> Callable[[Facts], Facts]:
    return lambda facts: dataclasses.replace(facts, **{key: f(getattr(facts, key)) for key, f in changes.items()})


@pytest.mark.parametrize(
    ("damage", "claim"),
    [
        (outcome_with(stored={}, on_disk={}), "the very bytes"),
        (outcome_with(stored={"a.csv": (3, "0" * 64)}), "the very bytes"),
        (outcome_with(stored={"a.csv": (3, "0" * 64), "b.csv": (3, "1" * 64)}), "the very bytes"),
        (outcome_with(deferred=False), "waited deferred"),
        (outcome_with(statuses=["complete"]), "partial until the last"),
        (outcome_with(transfer={"status": "partial", "recipients": []}), "saw every recipient"),
        (facts_with(ledger=lambda rows: [rows[0], *rows]), "billed exactly once"),
        (facts_with(ledger=lambda rows: rows[1:]), "billed exactly once"),
        (facts_with(ledger=lambda rows: [*rows, rows[-1]]), "emailed once"),
        (facts_with(ledger=lambda rows: [*rows, {**rows[0], "transfer_id": "t2"}]), "nothing else was billed"),
        (facts_with(events=lambda rows: rows[1:]), "one transfer_sent"),
        (facts_with(events=lambda rows: [*rows[:1], *rows[2:]]), "one file_downloaded"),
        (facts_with(events=lambda rows: [*rows, rows[-1]]), "landed once"),
        (facts_with(events=lambda rows: [*rows, {"event_id": "6", "type": "x", "data": {}}]), "no other"),
        (facts_with(rejected=lambda _: 1), "no other"),
        (facts_with(cursor=lambda _: 4), "cursor"),
        (facts_with(cursor=lambda _: None), "cursor"),
        (facts_with(import_errors=lambda _: ["x.py: SyntaxError"]), "imported"),
    ],
)
def test_the_demo_notices_what_is_wrong(damage: Callable[[Facts], Facts], claim: str) -> None:
    wrong = [text for text, is_so in checks(damage(good_facts())) if not is_so]
    assert any(claim in text for text in wrong), wrong


#: Starts a child in a process group of its own that takes no SIGTERM, says its id, and sleeps.
PARENT = """
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], process_group=0) if sys.version_info >= (3, 11) else (
    subprocess.Popen([sys.executable, "-c", code], preexec_fn=os.setpgrp))
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("parent_is_killed", [False, True])
def test_everything_that_was_started_is_stopped(tmp_path: Path, monkeypatch: Any, parent_is_killed: bool) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout
    told = {parent.stdout.readline(), parent.stdout.readline()}  # the child's id, and its word that it is ready
    (child_pid,) = (int(line) for line in told if line != b"1\n")
    leader = processes.Leader("parent", parent.pid, psutil.Process(parent.pid).create_time())
    record = tmp_path / "processes.json"
    record.write_text(json.dumps([dataclasses.asdict(leader)]))
    if parent_is_killed:
        parent.kill()
        parent.wait()
    assert child_pid in {process.pid for process in processes.members([leader])}

    assert processes.stop(processes.recorded(tmp_path), record) == []

    assert processes.members([leader]) == []
    assert not record.exists()
    parent.wait()
    parent.stdout.close()


def test_another_process_with_a_recorded_id_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            assert processes.members([processes.Leader("old", other.pid, time.time() - 3600)]) == []
        finally:
            other.send_signal(signal.SIGKILL)


def test_the_end_of_a_tasks_log_is_plain_text(tmp_path: Path) -> None:
    error = {"exc_type": "SourceUnreadable", "exc_value": "it is missing"}
    record = {"timestamp": "2026-01-31T12:00:00Z", "level": "error", "event": "Failed", "error_detail": [error]}
    log = tmp_path / "attempt=1.log"
    log.write_text(f"not JSON\n{json.dumps(record)}\n")
    lines = ["not JSON", "2026-01-31T12:00:00Z  error  Failed  SourceUnreadable: it is missing"]
    assert tail(tmp_path) == (log, lines)


SCAN = """
import collections, pathlib, sys
from airflow import plugins_manager
plugins_manager.ensure_plugins_loaded()
import outbound_transfer.operators.transfer, outbound_transfer.sensors.transfer
folder = sys.argv[1]
files = collections.defaultdict(list)
for name, module in list(sys.modules.items()):
    if str(getattr(module, "__file__", None) or "").startswith(folder):
        files[module.__file__].append(name)
assert len(files) > 3, files
packages = {file: [name.partition(".")[0] for name in names] for file, names in files.items()}
wrong = {file: names for file, names in files.items() if packages[file] != ["outbound_transfer"]}
errors = plugins_manager.get_import_errors()
assert not wrong and not errors, (wrong, errors)
"""


@pytest.mark.slow
def test_airflows_scan_of_the_plugins_folder_imports_no_module_of_the_package() -> None:
    folder = REPOSITORY / "plugins"
    env = os.environ | {"AIRFLOW__CORE__PLUGINS_FOLDER": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", SCAN, str(folder)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
