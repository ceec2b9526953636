"""`outbound-transfer feed …`, transfers as tables, and DAGs that run when events were landed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand
from sqlalchemy import select

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, table_asset
from outbound_transfer.cli.console import get_commands, main
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support import transfers
from support.airflow_names import BaseHook
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, SimulatedClock


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[Any, ...]]]:
    value = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")})
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", value)
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE", value)
    return lambda query: [tuple(row) for row in BaseHook.get_hook("warehouse").get_records(query)]


@pytest.fixture
def command() -> Callable[..., None]:
    from airflow.cli import cli_parser

    def run(*words: str) -> None:
        parser = cli_parser.get_parser()
        arguments = parser.parse_args(["outbound-transfer", "feed", *words, "--sql-conn-id", "warehouse"])
        arguments.func(arguments)

    return run


@pytest.fixture
def landed(connection, sandbox, warehouse) -> None:
    sandbox.add_events(3)
    EventFeedToSqlOperator(task_id="land", sql_conn_id="warehouse").execute({})


def test_airflow_knows_the_commands() -> None:
    (group,) = get_commands()
    check, feed, views, deliveries, privacy, retention = group.subcommands
    names = {each.name: [command.name for command in each.subcommands] for each in (feed, deliveries, privacy)}
    assert names == {
        "feed": ["status", "verify", "rebuild-cursor", "reset"],
        "deliveries": ["forget", "clean"],
        "privacy": ["export", "erase"],
    }
    assert isinstance(retention, ActionCommand)
    assert isinstance(views, ActionCommand)
    assert isinstance(check, ActionCommand)


def test_views_are_printed_and_created(landed, warehouse, capsys) -> None:
    TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse").execute({})
    main(["views", "--sql-conn-id", "warehouse"])
    printed = capsys.readouterr().out
    main(["views", "--dialect", "sqlite"])
    assert printed.endswith(capsys.readouterr().out), "the same, after what the operators have logged"
    with pytest.raises(Exception, match="no such table"):
        warehouse("SELECT * FROM outbound_transfer_feed_lag")
    main(["views", "--sql-conn-id", "warehouse", "--apply"])
    assert "outbound_transfer_feed_lag created\n" in capsys.readouterr().out
    assert len(warehouse("SELECT * FROM outbound_transfer_feed_lag")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give --dialect"),
        (["--dialect", "sqlite", "--apply"], "Give --dialect"),
        (["--dialect", "oracle"], "no views for oracle, but for duckdb"),
        (["--sql-conn-id", "warehouse", "--apply"], "not there yet: .*outbound_transfer_transfers"),
    ],
)
def test_a_command_for_views_that_cannot_be_made_says_why(landed, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        main(["views", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("feed status --sql-conn-id unknown", "--sql-conn-id unknown: AirflowNotFoundException: .*unknown"),
        ("feed reset --to 0 --sql-conn-id refused", "--sql-conn-id refused: OperationalError: .*onnection refused"),
        ("feed verify --sql-conn-id nowhere", "--sql-conn-id nowhere: OperationalError: unable to open database file"),
        ("feed status --iceberg-conn-id unknown --table a.b", "--iceberg-conn-id unknown: AirflowNotFoundException"),
        ("views --apply --sql-conn-id unknown", "--sql-conn-id unknown: AirflowNotFoundException: .*unknown"),
    ],
)
def test_a_place_that_cannot_be_read_is_said_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    password = "hunter2-hunter2"
    refused = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "u", "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_REFUSED", json.dumps(refused))
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps({"conn_type": "sqlite", "host": "/nowhere/a.db"}))
    with pytest.raises(SystemExit, match=said) as exited:
        main(words.split())
    assert password not in str(exited.value)


def test_a_mistake_in_the_code_keeps_its_traceback(warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbound_transfer.cli.commands.open_tables", lambda *_, **__: None)
    with pytest.raises(AttributeError):
        main(["feed", "status", "--sql-conn-id", "warehouse"])


@pytest.mark.parametrize(
    ("interruption", "said"), [(EOFError, r"d: there is no terminal to ask\. Give --yes"), (KeyboardInterrupt, r"d\.$")]
)
def test_a_question_that_nobody_answers_changes_nothing(
    landed, command, warehouse, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException], said: str
) -> None:
    def ask(_: str) -> str:
        raise interruption

    monkeypatch.setattr("builtins.input", ask)
    with pytest.raises(SystemExit, match=f"^Nothing was change{said}"):
        command("reset", "--to", "0")
    assert warehouse("SELECT DISTINCT action FROM outbound_transfer_feed_polls") == [("poll",)]


def test_every_command_prints_json(landed, command, warehouse, capsys, monkeypatch) -> None:
    TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse").execute({})
    capsys.readouterr()

    def printed(*words: str) -> Any:
        run = main if words[0] == "views" else command
        run([*words, "--output", "json"]) if run is main else run(*words, "--output", "json")
        return json.loads(capsys.readouterr().out)

    assert printed("reset", "--to", "1", "--yes") == [{"before": "3", "after": "1"}]
    assert printed("verify") == []
    assert printed("rebuild-cursor", "--yes") == [{"before": "1", "after": "0"}]
    (row,) = printed("views", "--dialect", "sqlite")
    assert "CREATE VIEW" in row["sql"]
    assert {"view": "outbound_transfer_feed_lag"} in printed("views", "--sql-conn-id", "warehouse", "--apply")
    BaseHook.get_hook("warehouse").run("UPDATE outbound_transfer_feed_cursor SET cursor = 2")
    with pytest.raises(SystemExit) as exited:
        command("verify", "--output", "json")
    assert exited.value.code == 1
    assert [*json.loads(capsys.readouterr().out)[0]] == ["problem"]


def test_a_reset_is_refused_if_another_one_came_while_it_asked(landed, command, warehouse, monkeypatch) -> None:
    def answer(question: str) -> str:
        assert " from 3 to 2?" in question
        command("reset", "--to", "1", "--yes")
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    with pytest.raises(SystemExit, match="is no longer 3, it is 1"):
        command("reset", "--to", "2")
    assert warehouse('SELECT "cursor" FROM outbound_transfer_feed_cursor') == [(1,)]


def test_a_reset_asks_first_and_is_logged(landed, command, warehouse, monkeypatch, capsys) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with pytest.raises(SystemExit, match=r"Nothing was changed\."):
        command("reset", "--to", "1")
    command("reset", "--to", "1", "--yes")
    assert "was 3 and is 1" in capsys.readouterr().out
    command("rebuild-cursor", "--yes")
    actions = warehouse("SELECT action FROM outbound_transfer_feed_polls ORDER BY polled_at")
    assert actions == [("poll",), ("reset",), ("rebuild",)]


@pytest.mark.parametrize("words", [["status"], ["verify"], ["reset", "--to", "0", "-y"], ["rebuild-cursor", "-y"]])
def test_a_feed_that_was_never_read_is_an_error_and_not_a_new_feed(
    landed, command, warehouse, sandbox, words: list[str]
) -> None:
    known = sandbox.base_url.removeprefix("http://")
    with pytest.raises(SystemExit, match=rf"no feed nope; there is: {known}"):
        command(*words, "--account", "nope")
    assert warehouse("SELECT account FROM outbound_transfer_feed_cursor") == [(known,)]
    assert warehouse("SELECT count(*) FROM outbound_transfer_feed_polls") == [(1,)]
    command("status")  # without --account still


@pytest.mark.parametrize("word", ["status", "verify"])
def test_whoever_looks_makes_no_tables(connection, warehouse, command, word: str) -> None:
    with pytest.raises(SystemExit, match="no feed has been read here"):
        command(word, "--account", "nope")
    assert warehouse("SELECT name FROM sqlite_master") == []


@pytest.mark.slow
def test_the_command_finds_a_connection_that_airflows_database_keeps(
    landed, airflow_database, warehouse, tmp_path, monkeypatch
) -> None:
    airflow = Path(sys.executable).with_name("airflow")
    here = {name: text for name, text in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([airflow, *words], env=here, text=True, capture_output=True, check=False)

    of_feed = ("outbound-transfer", "feed", "status", "--sql-conn-id", "kept_in_the_database")
    assert "isn't defined" in run(*of_feed).stderr
    host = str(tmp_path / "warehouse.db")
    added = run("connections", "add", "kept_in_the_database", "--conn-type", "sqlite", "--conn-host", host)
    assert added.returncode == 0, added.stderr
    try:
        found = run(*of_feed)
        assert found.returncode == 0, found.stderr
        assert re.search(r"cursor +\| 3\b", found.stdout)
    finally:
        run("connections", "delete", "kept_in_the_database")


# ------------------------------------------------------------------------------------------------ transfers as tables


@pytest.fixture
def send(sandbox) -> Callable[..., list[str]]:
    """Sends so many transfers, a second apart; their ids, the newest first, as the listing has them."""

    def send(count: int, user: str = "") -> list[str]:
        sent = []
        for number in range(count):
            people = ("ann@example.com", "bob@example.com")
            sent += transfers.send(sandbox, 1, *people, subject=f"Report {number}", user=user)
            sandbox.advance_clock(1)
        return sent[::-1]

    return send


@pytest.fixture
def list_transfers(connection, sandbox, warehouse) -> Callable[..., Any]:
    time = SimulatedClock(sandbox)

    def run(**arguments: Any) -> Any:
        operator = TransfersToSqlOperator
        return FakeTaskInstance(lambda: operator(task_id="list", sql_conn_id="warehouse", **arguments), time).run()

    return run


def test_transfers_are_tables_and_a_second_run_reads_one_page(send, list_transfers, sandbox, warehouse) -> None:
    sent = send(3)[::-1]
    assert list_transfers() == {"pages": 1, "transfers": 3, "new_transfers": 3, "outstanding": 3}
    sandbox.pickup(sent[0], "ann@example.com")
    sandbox.cancel(sent[1])
    assert list_transfers() == {"pages": 1, "transfers": 3, "new_transfers": 0, "outstanding": 2}
    states = dict(warehouse("SELECT transfer_id, status FROM outbound_transfer_transfers"))
    assert states == {sent[0]: "partial", sent[1]: "canceled", sent[2]: "pending"}
    picked = warehouse("SELECT transfer_id, email FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL")
    assert picked == [(sent[0], "ann@example.com")]


def test_two_keys_of_one_account_list_their_own_transfers(
    send, list_transfers, sandbox, warehouse, monkeypatch
) -> None:
    other = {"conn_type": "outbound_transfer", "host": sandbox.base_url, "password": sandbox.new_key("bob@example.com")}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(other))
    (of_the_other,) = send(1, "bob@example.com")
    send(2)
    assert list_transfers() == {"pages": 1, "transfers": 2, "new_transfers": 2, "outstanding": 2}
    seen = {"pages": 1, "transfers": 1, "new_transfers": 1, "outstanding": 1}
    assert list_transfers(outbound_transfer_conn_id="other") == seen
    assert list_transfers() == {"pages": 1, "transfers": 2, "new_transfers": 0, "outstanding": 2}
    states = dict(warehouse("SELECT conn_id || ' ' || status, count(*) FROM outbound_transfer_transfers GROUP BY 1"))
    assert states == {"outbound_transfer_default pending": 2, "other pending": 1}
    assert warehouse("SELECT transfer_id FROM outbound_transfer_transfers WHERE conn_id = 'other'") == [(of_the_other,)]


# ----------------------------------------------------------------------------------------------------- a real Airflow


def test_a_landing_wakes_the_dag_that_reads_just_those_rows(run_dag, connection, sandbox, warehouse) -> None:
    sandbox.add_events(4, "file_downloaded")
    run = run_dag((REPOSITORY / "dags/ingest_event_feed.py").read_text(), conf={})
    assert run.state == "success"
    extra = _extra_of_last_asset_event()
    assert (extra["cursor_from"], extra["cursor_to"], extra["types"]) == (0, 4, {"file_downloaded": 4})

    from support.airflow_names import DagBag

    dag = DagBag(str(REPOSITORY / "dags/process_new_events.py")).dags["process_new_events"]
    function = dag.get_task("downloads").python_callable
    asset = table_asset("events", sql_conn_id="outbound_transfer_warehouse")
    woken = {asset: [type("AssetEvent", (), {"extra": extra})()]}
    assert function(triggering_asset_events=woken) == {"file_downloaded": 4}


def test_ingest_transfers_lists_what_was_sent(run_dag, connection, sandbox, warehouse) -> None:
    (sent,) = transfers.send(sandbox)
    run = run_dag((REPOSITORY / "dags/ingest_transfers.py").read_text(), conf={})
    assert run.state == "success"
    assert warehouse("SELECT transfer_id, status FROM outbound_transfer_transfers") == [(sent, "pending")]


def test_delete_old_rows_keeps_the_newest_page(run_dag, connection, sandbox, warehouse) -> None:
    sandbox.patch_account(feed_interval_seconds=0)
    for count in (3, 2):
        sandbox.add_events(count, "file_downloaded")
        run_dag((REPOSITORY / "dags/ingest_event_feed.py").read_text(), conf={})
    BaseHook.get_hook("warehouse").run(
        "UPDATE outbound_transfer_events SET loaded_at = '2026-01-0' || (1 + cursor_from) || 'T00:00:00.000000Z'"
    )
    run = run_dag((REPOSITORY / "dags/delete_old_rows.py").read_text(), conf={"days": 30})
    assert run.state == "success"
    assert warehouse("SELECT cursor_from, count(*) FROM outbound_transfer_events GROUP BY 1") == [(3, 2)]


def _extra_of_last_asset_event() -> dict[str, Any]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        return dict(session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc())).first().extra)


def test_an_empty_feed_wakes_nobody(connection, sandbox, warehouse) -> None:
    told: list[Any] = []

    class Outlets(dict):
        def __missing__(self, key: Any) -> Any:
            return type("Alias", (), {"add": lambda _, asset, extra: told.append((asset.uri, extra["cursor_to"]))})()

    operator = EventFeedToSqlOperator(task_id="land", sql_conn_id="warehouse")
    assert operator.outlets == [LOADED_ALIAS]
    operator.execute({"outlet_events": Outlets()})
    assert told == []
    sandbox.patch_account(feed_interval_seconds=0)
    sandbox.add_events(2)
    operator.execute({"outlet_events": Outlets()})
    assert told == [("x-outbound-transfer://warehouse/outbound_transfer_events", 2)]
