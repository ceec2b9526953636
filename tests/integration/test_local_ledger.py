"""The ledger that needs no configuration: only where all of Airflow runs on one machine, and never in the way."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.ledger.config import load_config, open_tables
from outbound_transfer.ledger.recorder import DeliveryRecorder
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.warehouse.deliveries import TaskRef
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from support.tasks import FakeTaskInstance, SimulatedClock

HIDDEN = "airflow-db-not-allowed:///"


@pytest.fixture
def home(single_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__DEFAULT_LEDGER", "True")
    return single_machine


@pytest.fixture
def deliver(sandbox, connection, tmp_path: Path) -> Callable[[], Any]:
    file = tmp_path / "a.csv"
    file.write_bytes(b"a,b\n")

    def make() -> Any:
        return DeliverFilesOperator(task_id="deliver", subject="S", recipients="ann@example.com", files=str(file))

    return lambda: FakeTaskInstance(make, SimulatedClock(sandbox), task_id="deliver").run()


def rows(home: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home / LOCAL_FILE)) as connection:
        return connection.execute("SELECT transfer_id, status FROM outbound_transfer_deliveries").fetchall()


@pytest.mark.parametrize("database", [HIDDEN, "{home}/airflow.db"])
def test_the_first_delivery_is_recorded_without_any_setting(home, deliver, monkeypatch, database) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", database.replace("{home}", f"sqlite:///{home}"))
    sent = deliver()
    assert rows(home) == [(sent["id"], "pending")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor"),
        ("AIRFLOW__CORE__EXECUTOR", "LocalExecutor,EdgeExecutor"),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://db.example.com/airflow"),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////elsewhere/airflow.db"),
        ("AIRFLOW_HOME", "/nowhere/of/a/worker"),
    ],
)
def test_on_a_cluster_nothing_is_recorded(home, deliver, monkeypatch, name, value) -> None:
    monkeypatch.setenv(name, value)
    assert load_config() is None
    assert deliver()["status"] == "pending"
    assert not (home / LOCAL_FILE).exists()


def test_it_can_be_switched_off(home, deliver, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__DEFAULT_LEDGER", "False")
    assert deliver()["status"] == "pending"
    assert not (home / LOCAL_FILE).exists()


def test_a_configured_ledger_comes_first(home, deliver, monkeypatch, tmp_path) -> None:
    file = tmp_path / "other.db"
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "other")
    deliver()
    assert file.exists()
    assert not (home / LOCAL_FILE).exists()


@pytest.mark.parametrize("fault", ["a folder is in its place", "it is no database", "the switch is nonsense"])
def test_a_file_that_cannot_be_written_is_not_the_deliverys_fault(
    home, deliver, monkeypatch, capfd, caplog, fault
) -> None:
    if fault == "a folder is in its place":
        (home / LOCAL_FILE).mkdir()
    elif fault == "it is no database":
        (home / LOCAL_FILE).write_bytes(b"something else" * 1_000)
    else:
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__DEFAULT_LEDGER", "perhaps")
    assert deliver()["status"] == "pending"
    assert "elivery ledger" in "".join(capfd.readouterr()) + caplog.text


WRITERS, DELIVERIES = 8, 25


def write(number: int) -> None:
    config = load_config()
    assert config is not None
    tables = open_tables(config, None)
    for each in range(DELIVERIES):
        task = TaskRef("conn", "dag", f"deliver{number}", "run", each, 1)
        recorder = DeliveryRecorder(lambda: "acme", task, tables.save, subject="S")
        recorder.record_error(ValueError("no file"))
        now = datetime.now(UTC).isoformat()
        people = (Recipient("ann@example.com"),)
        recorder.record_transfer(Transfer(f"t{number}-{each}", "pending", "S", now, None, people, None, now))


@pytest.mark.slow
def test_many_processes_write_at_once_and_no_row_is_lost(home, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{home}/airflow.db")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write, args=(number,)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * WRITERS
    found = rows(home)
    assert len(found) == WRITERS * DELIVERIES
    assert {status for _, status in found} == {"pending"}
    with closing(sqlite3.connect(home / LOCAL_FILE)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
