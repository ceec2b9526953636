"""`outbound-transfer deliveries`: old rows are deleted; what is forgotten is sent again when its task is cleared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser

from outbound_transfer.cli.console import main
from outbound_transfer.exceptions import DraftInUse, WrongTransfer
from outbound_transfer.operators.draft import SendTransferOperator
from support import memory
from support.keyed_tasks import sqlite_connection
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, again
from support.warehouses import sqlite_hook


def of_airflow(words: tuple[str, ...]) -> None:
    arguments = cli_parser.get_parser().parse_args(["outbound-transfer", *words])
    arguments.func(arguments)


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    return tmp_path / "states.db"


@pytest.fixture
def old(deliver, airflow_database) -> Callable[..., None]:
    """Deliver in a run, so many days ago."""

    def deliver_in(file: Path, run_id: str, days: int = 91, **arguments: Any) -> None:
        task = memory.kept_in_a_database(deliver(task_id="task", **arguments))
        task.run_id = run_id
        task.run()
        memory.age(file, run_id, days)

    return deliver_in


CLEAN = ("deliveries", "clean", "--older-than", "90d")
NO_TABLE = "There is no deliveries table, so there is nothing to delete.\n"


@pytest.mark.parametrize("command", [of_airflow, main], ids=["airflow", "script"])
def test_old_rows_are_deleted_but_those_of_keys(command, states, old, monkeypatch, capsys) -> None:
    old(states, "old")
    old(states, "new", 89)
    monkeypatch.setattr("builtins.input", lambda _: "")
    with pytest.raises(SystemExit, match=r"Nothing was changed\."):
        command(CLEAN)
    assert {*memory.remembered_runs(states)} == {"old", "new"}
    command((*CLEAN, "--yes"))
    assert "1 row of connection 'states' deleted." in capsys.readouterr().out
    assert memory.remembered_runs(states) == ["new"]
    old(states, "old")
    capsys.readouterr()
    command((*CLEAN, "--yes", "-o", "json"))
    assert json.loads(capsys.readouterr().out) == [{"deleted": "1"}]
    old(states, "key", delivery_key="k")
    command((*CLEAN, "--yes"))
    assert "key" in memory.remembered_runs(states)


def test_the_local_files_rows_are_deleted_and_no_file_is_made(old, capsys, single_machine) -> None:
    main((*CLEAN, "--yes"))
    assert capsys.readouterr().out == NO_TABLE
    file = single_machine / "outbound_transfer.db"
    assert not file.exists()
    old(file, "old")
    capsys.readouterr()
    main((*CLEAN, "--yes"))
    assert capsys.readouterr().out == f"1 row of the file '{file}' deleted.\n"


@pytest.mark.usefixtures("several_machines", "airflow_database")
def test_without_a_table_nothing_is_asked(capsys) -> None:
    main(CLEAN)
    assert capsys.readouterr().out == NO_TABLE


def test_a_database_that_is_down_is_named(airflow_database, monkeypatch) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(Path("/nowhere/states.db")))
    with pytest.raises(SystemExit, match="Nothing more is done: .* connection 'states' fails with OperationalError"):
        main((*CLEAN, "--yes"))


@pytest.mark.parametrize("age", ["90", "0d", "-1d", "1.5d", "d", "", "999999d"])
def test_an_age_that_is_not_a_number_of_days_is_refused(capsys, age: str) -> None:
    with pytest.raises(SystemExit):
        main(["deliveries", "clean", f"--older-than={age}"])
    assert f"'{age}' is not a number of days, such as 90d" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["running", "queued", "scheduled", "deferred", "up_for_retry", "up_for_reschedule"])
def test_a_delivery_that_is_at_work_is_not_forgotten(deliver, sandbox, state: str) -> None:
    task = deliver()
    sent = task.run()["id"]
    with pytest.raises(DraftInUse, match="is working on transfer"):
        memory.forget(task, sent, state)
    assert again(task)["id"] == sandbox.assert_sent_once()


def test_a_draft_needs_not_be_forgotten_and_the_task_to_clear_is_the_one_that_made_it(task, make_draft) -> None:
    send = task(SendTransferOperator, "send", transfer_id=make_draft())
    with pytest.raises(WrongTransfer, match="Nothing is changed"):
        memory.forget(send, send.make().transfer_id)
    assert memory.forget(send, send.run()["id"]) == "task task of run run of dag"


@pytest.fixture
def delivered(deliver, airflow_database, states) -> FakeTaskInstance:
    task = memory.kept_in_a_database(deliver(delivery_key="k"))
    task.run()
    return task


def test_a_forgotten_delivery_is_sent_once_more_and_the_page_says_who_forgot_it(
    delivered, sandbox, states, monkeypatch, capsys
) -> None:
    first = delivered.result["id"]
    forget = ("deliveries", "forget", "--transfer-id", first)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with pytest.raises(SystemExit, match="Nothing was changed"):
        main(forget)
    assert again(delivered)["id"] == first
    capsys.readouterr()
    main((*forget, "--yes"))
    assert capsys.readouterr().out == (
        f"Transfer {first} is forgotten. Clear the task task of run run of dag to send it again.\n"
    )
    second = again(delivered)["id"]
    assert again(delivered)["id"] == second
    assert sandbox.sent() == [first, second]
    with pytest.raises(SystemExit, match="or it was already forgotten"):
        main((*forget, "--yes"))
    query = "SELECT transfer_id, status || ' ' || error FROM outbound_transfer_deliveries WHERE dag_id <> ''"
    shown = dict(sqlite_hook(states).fetch(query))
    assert shown.keys() == {first, second}
    assert shown[first].startswith("pending Forgotten by ")
    assert shown[second] == "pending "
    main(["privacy", "erase", "--email", "ann@example.com", "--yes"])
    with pytest.raises(SystemExit, match="WrongTransfer|No delivery of this Airflow"):
        main(["deliveries", "forget", "--transfer-id", "tr_unknown", "--yes"])


def test_the_dag_forgets(run_dag, delivered, sandbox) -> None:
    first = delivered.result["id"]
    run = run_dag((REPOSITORY / "dags/forget_delivery.py").read_text(), conf={"transfer_id": first})
    assert run.state == "success"
    second = again(delivered)["id"]
    assert sandbox.sent() == [first, second]
