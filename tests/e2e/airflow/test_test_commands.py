"""`airflow dags test` and `airflow tasks test`, as typed in a terminal: they send for real, and say so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.e2e

DAG = """
from airflow.sdk import DAG
from outbound_transfer.operators.transfer import DeliverFilesOperator

with DAG("typed", schedule=None):
    DeliverFilesOperator(
        task_id="deliver", files={"name": "a.csv", "content": "a,b"}, subject="Report", recipients="ann@example.com"
    )
"""

COMMANDS = {"dags test": ("dags", "test", "typed"), "tasks test": ("tasks", "test", "typed", "deliver", "2026-01-01")}

AIRFLOW = (sys.executable, "-m", "airflow")

#: What stands in the log of a run that sends.
LOUD = "THIS TEST RUN SENDS FOR REAL"


@pytest.fixture(autouse=True)
def dag(airflow_database: None, connection: str) -> Iterator[None]:
    file = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "typed.py"
    file.write_text(DAG)
    subprocess.run([*AIRFLOW, "dags", "reserialize"], check=True, capture_output=True, timeout=TEST_TIMEOUT)
    yield
    file.unlink()


def start(arguments: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*AIRFLOW, *arguments], env=os.environ | variables, **output)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_test_run_says_that_it_sends(sandbox: Sandbox, command: str) -> None:
    with start(COMMANDS[command]) as run:
        log, _ = run.communicate(timeout=TEST_TIMEOUT)
    assert run.returncode == 0, log
    sandbox.assert_sent_once()
    assert LOUD in log


def test_a_rehearsal_sends_nothing(sandbox: Sandbox) -> None:
    with start(COMMANDS["tasks test"], AIRFLOW__OUTBOUND_TRANSFER__REHEARSE="True") as run:
        log, _ = run.communicate(timeout=TEST_TIMEOUT)
    sandbox.assert_nothing_sent()
    assert "Rehearsal: nothing is sent to anybody" in log
    assert LOUD not in log


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_the_send_is_in_the_air_says_that_it_may_be_sent(sandbox: Sandbox, command: str) -> None:
    """By words alone: Airflow catches the interrupt in the task, and decides the command's status."""
    sandbox.plan_faults({"kind": "hold", "path": "*/send", "effect": "after"})
    with start(COMMANDS[command]) as run:
        try:
            eventually(lambda: len(sandbox.sent()) == 1)
            run.send_signal(signal.SIGINT)
            log, _ = run.communicate(timeout=TEST_TIMEOUT)
        finally:
            sandbox.release_held_calls()
            run.kill()
    assert re.search(rf"{sandbox.assert_sent_once()}.*\bsent\b", log), log
