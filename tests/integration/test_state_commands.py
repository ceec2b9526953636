"""`outbound-transfer state clean`, as Airflow's command and as the script that older versions need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.models.variable import Variable
from airflow.sdk import BaseHook
from airflow.utils.session import create_session

from outbound_transfer.airflow_compat.task_attempt import TaskAttempt
from outbound_transfer.airflow_compat.variables import KEY_PREFIX
from outbound_transfer.cli import console
from outbound_transfer.warehouse.config import open_states
from outbound_transfer.warehouse.task_state import TaskState
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


@pytest.fixture
def variables(airflow_database: None) -> Iterator[Callable[[str, int | None], None]]:
    """Stores a Variable whose content was written so many days ago, or does not say when."""
    keys = ["unrelated"]

    def store(key: str, days: int | None) -> None:
        keys.append(key)
        written = {} if days is None else {"written_at": (utc_now() - timedelta(days=days)).isoformat()}
        set_variable(key, json.dumps({"run_started_at": "", "values": {}} | written))

    set_variable("unrelated", "{}")
    yield store
    with create_session() as session:
        session.query(Variable).filter(Variable.key.in_(keys)).delete()


def set_variable(key: str, content: str) -> None:
    with create_session() as session:
        session.add(Variable(key, content))


def stored() -> set[str]:
    with create_session() as session:
        return {key.removeprefix(KEY_PREFIX) for (key,) in session.query(Variable.key)}


def add_state(run_id: str, days: int) -> None:
    a_try = TaskAttempt("d", run_id, "t", -1, 1, "", True)
    TaskState(open_states("states"), a_try, clock=lambda: utc_now() - timedelta(days=days)).set("a", 1)


def test_old_rows_are_deleted(airflow_database, states, command, capsys) -> None:
    add_state("old", 91)
    add_state("new", 89)
    command("state", "clean", "--older-than", "90d", "--yes")
    assert "1 row of connection 'states' deleted." in capsys.readouterr().out
    assert states("SELECT run_id FROM outbound_transfer_task_state") == [("new",)]


def test_the_ledgers_connection_has_the_rows_if_no_other_is_named(
    airflow_database, states, command, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "states")
    monkeypatch.delenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID")
    command("state", "clean", "--older-than", "90d", "--yes")
    assert "0 rows of connection 'states' deleted." in capsys.readouterr().out
    assert states("SELECT name FROM sqlite_master") == []  # nothing is created


def test_variables_of_a_task_are_deleted_together_once_all_are_old(variables, command, capsys) -> None:
    for key, days in {"old__1": 95, "old__2": 91, "retried__1": 95, "retried__2": 1, "unknown__1": None}.items():
        variables(KEY_PREFIX + key, days)
    before = stored()
    command("state", "clean", "--older-than", "90d", "--yes")
    assert capsys.readouterr().out == "1 state of deliveries deleted from Airflow Variables.\n"
    assert before - stored() == {"old__1", "old__2"}


def test_nothing_is_deleted_without_a_yes(variables, command, monkeypatch) -> None:
    variables(f"{KEY_PREFIX}old__1", 95)
    monkeypatch.setattr("builtins.input", lambda _: "")
    with pytest.raises(SystemExit, match=r"Nothing was changed\."):
        command("state", "clean", "--older-than", "90d")
    assert "old__1" in stored()


@pytest.mark.parametrize("age", ["90", "0d", "-1d", "1.5d", "d", "", "999999d"])
def test_an_age_that_is_not_a_number_of_days_is_refused(command, capsys, age: str) -> None:
    with pytest.raises(SystemExit):
        command("state", "clean", f"--older-than={age}")
    assert f"'{age}' is not a number of days, such as 90d" in capsys.readouterr().err


def test_the_script_has_the_commands_of_the_feed(capsys) -> None:
    with pytest.raises(SystemExit):
        console.main(["feed", "--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in ("status", "verify", "rebuild-cursor", "reset", "replay-rejected"))
