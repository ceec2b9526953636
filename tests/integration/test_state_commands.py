"""`outbound-transfer state clean`, as Airflow's command and as the script that older versions need."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.sdk import BaseHook

from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.cli import console
from outbound_transfer.warehouse.config import find_memory_place
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from outbound_transfer.warehouse.timestamps import utc_now


def of_airflow(*words: str) -> None:
    arguments = cli_parser.get_parser().parse_args(["outbound-transfer", *words])
    arguments.func(arguments)


@pytest.fixture(params=[of_airflow, console.main], ids=["airflow", "script"])
def command(request: pytest.FixtureRequest) -> Callable[..., None]:
    if request.param is of_airflow:
        return of_airflow
    return lambda *words: console.main(words)


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[Any, ...]]]:
    monkeypatch.setenv("AIRFLOW_CONN_STATES", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "states.db")}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID", "states")
    return lambda query: [tuple(row) for row in BaseHook.get_hook("states").get_records(query)]


def add_memory(run_id: str, days: int, delivery_key: str | None = None) -> None:
    place = find_memory_place()
    assert place is not None
    table, task_try = place.open(), TaskTry("d", run_id, "t", -1, 1, "", is_fresh=True)
    table._clock = lambda: utc_now() - timedelta(days=days)
    row = table.of_delivery_key("account", delivery_key, task_try) if delivery_key else table.of_task(task_try)
    row.claim()
    row.set("a", 1)


def test_old_rows_are_deleted(airflow_database, states, command, capsys) -> None:
    add_memory("old", 91)
    add_memory("new", 89)
    command("state", "clean", "--older-than", "90d", "--yes")
    assert "1 row of connection 'states' deleted." in capsys.readouterr().out
    assert states("SELECT run_id FROM outbound_transfer_memory") == [("new",)]


def test_the_ledgers_connection_has_the_rows_if_no_other_is_named(
    airflow_database, states, command, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "states")
    monkeypatch.delenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID")
    command("state", "clean", "--older-than", "90d", "--yes")
    assert "0 rows of connection 'states' deleted." in capsys.readouterr().out
    assert states("SELECT name FROM sqlite_master") == []  # nothing is created


def test_the_local_files_rows_are_deleted_and_no_file_is_made(
    airflow_database, states, command, monkeypatch, capsys, single_machine
) -> None:
    monkeypatch.delenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID")
    command("state", "clean", "--older-than", "90d", "--yes")
    assert capsys.readouterr().out == "There is no table of memory: nothing to delete.\n"
    file = single_machine / LOCAL_FILE
    assert not file.exists()
    add_memory("old", 91)
    command("state", "clean", "--older-than", "90d", "--yes")
    assert capsys.readouterr().out == f"1 row of the file '{file}' deleted.\n"


def test_delivery_keys_are_not_deleted(airflow_database, states, command, capsys) -> None:
    add_memory("old", 91, delivery_key="k")
    command("state", "clean", "--older-than", "90d", "--yes")
    assert "0 rows of connection 'states' deleted." in capsys.readouterr().out
    assert states("SELECT delivery_key FROM outbound_transfer_memory") == [("k",)]


@pytest.mark.usefixtures("several_machines")
def test_without_a_table_nothing_is_asked(airflow_database, command, capsys) -> None:
    command("state", "clean", "--older-than", "90d")
    assert capsys.readouterr().out == "There is no table of memory: nothing to delete.\n"


def test_the_number_is_printed_as_json(airflow_database, states, command, capsys) -> None:
    add_memory("old", 91)
    capsys.readouterr()
    command("state", "clean", "--older-than", "90d", "--yes", "-o", "json")
    assert json.loads(capsys.readouterr().out) == [{"deleted": "1"}]


def test_nothing_is_deleted_without_a_yes(airflow_database, states, command, monkeypatch) -> None:
    add_memory("old", 95)
    monkeypatch.setattr("builtins.input", lambda _: "")
    with pytest.raises(SystemExit, match=r"Nothing was changed\."):
        command("state", "clean", "--older-than", "90d")
    assert states("SELECT run_id FROM outbound_transfer_memory") == [("old",)]


def test_a_database_that_is_down_is_named(airflow_database, command, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STATES", json.dumps({"conn_type": "sqlite", "host": "/nowhere/states.db"}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID", "states")
    with pytest.raises(SystemExit, match="Nothing was deleted: connection 'states' fails with OperationalError"):
        command("state", "clean", "--older-than", "90d", "--yes")


@pytest.mark.parametrize("age", ["90", "0d", "-1d", "1.5d", "d", "", "999999d"])
def test_an_age_that_is_not_a_number_of_days_is_refused(command, capsys, age: str) -> None:
    with pytest.raises(SystemExit):
        command("state", "clean", f"--older-than={age}")
    assert f"'{age}' is not a number of days, such as 90d" in capsys.readouterr().err


def test_the_script_has_the_commands_of_the_feed(capsys) -> None:
    with pytest.raises(SystemExit):
        console.main(["feed", "--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in ("status", "verify", "rebuild-cursor", "reset"))
