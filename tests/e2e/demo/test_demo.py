"""What `make demo` leaves behind: nothing of what it started."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.airflow_stack import processes

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
