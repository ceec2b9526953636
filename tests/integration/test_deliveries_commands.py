"""`outbound-transfer deliveries`, as Airflow's command and as the script that older versions need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser

from outbound_transfer.cli import console
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.keyed_tasks import keyed_task, sqlite_connection
from support.tasks import SimulatedClock


def of_airflow(*words: str) -> None:
    arguments = cli_parser.get_parser().parse_args(["outbound-transfer", *words])
    arguments.func(arguments)


@pytest.fixture(params=[of_airflow, console.main], ids=["airflow", "script"])
def command(request: pytest.FixtureRequest) -> Callable[..., None]:
    if request.param is of_airflow:
        return of_airflow
    return lambda *words: console.main(words)


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database of what deliveries remember."""
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    return tmp_path / "states.db"


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox, tmp_path: Path) -> Callable[..., None]:
    """Deliver in a run, so many days ago."""
    (tmp_path / "a.csv").write_text("a")

    def deliver(file: Path, run_id: str, days: int, **arguments: Any) -> None:
        task = keyed_task(run_id, SimulatedClock(sandbox), files=str(tmp_path / "a.csv"), **arguments)
        memory.kept_in_a_database(task).run()
        memory.age(file, run_id, days)

    return deliver


CLEAN = ("deliveries", "clean", "--older-than", "90d")


def test_old_rows_are_deleted_but_those_of_keys(
    airflow_database, states, command, deliver, monkeypatch, capsys
) -> None:
    for run_id, days in (("old", 91), ("new", 89)):
        deliver(states, run_id, days, delivery_key=None)
    monkeypatch.setattr("builtins.input", lambda _: "")
    with pytest.raises(SystemExit, match=r"Nothing was changed\."):
        command(*CLEAN)
    assert {*memory.remembered_runs(states)} == {"old", "new"}
    command(*CLEAN, "--yes")
    assert "1 row of connection 'states' deleted." in capsys.readouterr().out
    assert memory.remembered_runs(states) == ["new"]
    deliver(states, "old", 91, delivery_key=None)
    capsys.readouterr()
    command(*CLEAN, "--yes", "-o", "json")
    assert json.loads(capsys.readouterr().out) == [{"deleted": "1"}]
    deliver(states, "key", 91, delivery_key="k")
    command(*CLEAN, "--yes")
    assert "key" in memory.remembered_runs(states)


def test_the_local_files_rows_are_deleted_and_no_file_is_made(
    airflow_database, command, deliver, capsys, single_machine
) -> None:
    command(*CLEAN, "--yes")
    assert capsys.readouterr().out == "There is no table of deliveries: nothing to delete.\n"
    file = single_machine / "outbound_transfer.db"
    assert not file.exists()
    deliver(file, "old", 91, delivery_key=None)
    capsys.readouterr()
    command(*CLEAN, "--yes")
    assert capsys.readouterr().out == f"1 row of the file '{file}' deleted.\n"


@pytest.mark.usefixtures("several_machines")
def test_without_a_table_nothing_is_asked(airflow_database, command, capsys) -> None:
    command(*CLEAN)
    assert capsys.readouterr().out == "There is no table of deliveries: nothing to delete.\n"


def test_a_database_that_is_down_is_named(airflow_database, command, monkeypatch) -> None:
    memory.keep_keys_in(monkeypatch, json.dumps({"conn_type": "sqlite", "host": "/nowhere/states.db"}))
    with pytest.raises(SystemExit, match="Nothing more is done: .* connection 'states' fails with OperationalError"):
        command(*CLEAN, "--yes")


@pytest.mark.parametrize("age", ["90", "0d", "-1d", "1.5d", "d", "", "999999d"])
def test_an_age_that_is_not_a_number_of_days_is_refused(command, capsys, age: str) -> None:
    with pytest.raises(SystemExit):
        command("deliveries", "clean", f"--older-than={age}")
    assert f"'{age}' is not a number of days, such as 90d" in capsys.readouterr().err


def test_the_script_has_the_commands_of_the_feed(capsys) -> None:
    with pytest.raises(SystemExit):
        console.main(["feed", "--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in ("status", "verify", "rebuild-cursor", "reset"))
