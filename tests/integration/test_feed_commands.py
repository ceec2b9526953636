"""`outbound-transfer feed …`, transfers as tables, and Dags that run when events were landed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.cli import cli_parser
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
from sqlalchemy import select

from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, table_asset
from outbound_transfer.cli.console import main
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support import transfers
from support.airflow_names import BaseHook
from support.keyed_tasks import sqlite_connection
from support.repository import REPOSITORY


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[Any, ...]]]:
    for conn_id in ("WAREHOUSE", "OUTBOUND_TRANSFER_WAREHOUSE"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", sqlite_connection(tmp_path / "warehouse.db"))
    return lambda query: [tuple(row) for row in BaseHook.get_hook("warehouse").get_records(query)]


def command(*words: str) -> None:
    arguments = ["outbound-transfer", "feed", *words, "--sql-conn-id", "warehouse"]
    parsed = cli_parser.get_parser().parse_args(arguments)
    parsed.func(parsed)


@pytest.fixture
def landed(connection, sandbox, warehouse) -> None:
    sandbox.add_events(3)
    EventFeedToSqlOperator(task_id="land", sql_conn_id="warehouse").execute({})


def list_transfers() -> Any:
    return TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse").execute({})


def test_views_are_printed_and_created(landed, warehouse, capsys) -> None:
    list_transfers()
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
        ("views", "Give --dialect"),
        ("views --dialect sqlite --apply", "Give --dialect"),
        ("views --dialect oracle", "no views for oracle, but for duckdb"),
        ("views --sql-conn-id warehouse --apply", "do not exist yet: .*outbound_transfer_transfers"),
        ("views --apply --sql-conn-id unknown", "--sql-conn-id unknown: AirflowNotFoundException: .*unknown"),
        ("feed status --sql-conn-id unknown", "--sql-conn-id unknown: AirflowNotFoundException: .*unknown"),
        ("feed reset --to 0 --sql-conn-id refused", "--sql-conn-id refused: OperationalError: .*onnection refused"),
        ("feed verify --sql-conn-id nowhere", "--sql-conn-id nowhere: OperationalError: unable to open database file"),
        ("feed status --iceberg-conn-id unknown --table a.b", "--iceberg-conn-id unknown: AirflowNotFoundException"),
    ],
)
def test_a_command_that_cannot_do_it_says_why_without_a_traceback(landed, monkeypatch, words: str, said: str) -> None:
    password = "hunter2-hunter2"
    refused = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "u", "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_REFUSED", json.dumps(refused))
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", sqlite_connection(Path("/nowhere/a.db")))
    with pytest.raises(SystemExit, match=said) as exited:
        main(words.split())
    assert password not in str(exited.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [("n", r"d\.$"), (EOFError(), r"d: there is no terminal to ask\. Give --yes"), (KeyboardInterrupt(), r"d\.$")],
    ids=repr,
)
def test_without_a_yes_nothing_is_changed(landed, warehouse, monkeypatch, answer: Any, said: str) -> None:
    def ask(_: str) -> str:
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    monkeypatch.setattr("builtins.input", ask)
    with pytest.raises(SystemExit, match=f"^Nothing was change{said}"):
        command("reset", "--to", "0")
    assert warehouse("SELECT DISTINCT action FROM outbound_transfer_feed_polls") == [("poll",)]


def test_every_command_prints_json(landed, capsys) -> None:
    list_transfers()
    capsys.readouterr()

    def printed(*words: str) -> Any:
        main([*words, "--output", "json"])
        return json.loads(capsys.readouterr().out)

    feed = ("--sql-conn-id", "warehouse")
    assert printed("feed", "reset", "--to", "1", "--yes", *feed) == [{"before": "3", "after": "1"}]
    assert printed("feed", "verify", *feed) == []
    assert printed("feed", "rebuild-cursor", "--yes", *feed) == [{"before": "1", "after": "0"}]
    (row,) = printed("views", "--dialect", "sqlite")
    assert "CREATE VIEW" in row["sql"]
    assert {"view": "outbound_transfer_feed_lag"} in printed("views", "--apply", *feed)
    BaseHook.get_hook("warehouse").run("UPDATE outbound_transfer_feed_cursor SET cursor = 2")
    with pytest.raises(SystemExit) as exited:
        command("verify", "--output", "json")
    assert exited.value.code == 1
    assert [*json.loads(capsys.readouterr().out)[0]] == ["problem"]


def test_a_reset_asks_first_is_logged_and_loses_to_another(landed, warehouse, monkeypatch, capsys) -> None:
    def answer(question: str) -> str:
        assert " from 3 to 2?" in question
        command("reset", "--to", "1", "--yes")
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    with pytest.raises(SystemExit, match="is no longer 3, it is 1"):
        command("reset", "--to", "2")
    assert "was 3 and is 1" in capsys.readouterr().out
    assert warehouse('SELECT "cursor" FROM outbound_transfer_feed_cursor') == [(1,)]
    command("rebuild-cursor", "--yes")
    actions = warehouse("SELECT action FROM outbound_transfer_feed_polls ORDER BY polled_at")
    assert actions == [("poll",), ("reset",), ("rebuild",)]


@pytest.mark.parametrize("words", [["status"], ["verify"], ["reset", "--to", "0", "-y"], ["rebuild-cursor", "-y"]])
def test_a_feed_that_was_never_read_is_an_error_and_not_a_new_feed(
    landed, warehouse, sandbox, words: list[str]
) -> None:
    known = sandbox.base_url.removeprefix("http://")
    with pytest.raises(SystemExit, match=rf"no feed nope; it has: {known}"):
        command(*words, "--account", "nope")
    assert warehouse("SELECT account FROM outbound_transfer_feed_cursor") == [(known,)]
    assert warehouse("SELECT count(*) FROM outbound_transfer_feed_polls") == [(1,)]
    command("status")  # without --account still


@pytest.mark.parametrize("word", ["status", "verify"])
def test_status_and_verify_create_no_tables(connection, warehouse, word: str) -> None:
    with pytest.raises(SystemExit, match="no feed has been read here"):
        command(word, "--account", "nope")
    assert warehouse("SELECT name FROM sqlite_master") == []


def test_transfers_are_tables_and_a_second_run_reads_one_page(connection, sandbox, warehouse) -> None:
    sent = []
    for _ in range(3):
        sent += transfers.send(sandbox, 1, transfers.ANN, transfers.BOB)
        sandbox.advance_clock(1)
    assert list_transfers() == {"pages": 1, "transfers": 3, "new_transfers": 3, "outstanding": 3}
    sandbox.pickup(sent[0], transfers.ANN)
    sandbox.cancel(sent[1])
    assert list_transfers() == {"pages": 1, "transfers": 3, "new_transfers": 0, "outstanding": 2}
    states = dict(warehouse("SELECT transfer_id, status FROM outbound_transfer_transfers"))
    assert states == {sent[0]: "partial", sent[1]: "canceled", sent[2]: "pending"}
    picked = warehouse("SELECT transfer_id, email FROM outbound_transfer_recipients WHERE picked_up_at IS NOT NULL")
    assert picked == [(sent[0], transfers.ANN)]


def test_an_empty_feed_wakes_nobody(connection, sandbox, warehouse) -> None:
    operator, outlets = EventFeedToSqlOperator(task_id="land", sql_conn_id="warehouse"), defaultdict(Mock)
    assert operator.outlets == [LOADED_ALIAS]
    operator.execute({"outlet_events": outlets})
    assert not outlets
    sandbox.patch_account(feed_interval_seconds=0)
    sandbox.add_events(2)
    operator.execute({"outlet_events": outlets})
    (told,) = outlets[LOADED_ALIAS].add.call_args_list
    assert told.args[0].uri == "x-outbound-transfer://warehouse/outbound_transfer_events"
    assert told.kwargs["extra"]["cursor_to"] == 2


def test_a_landing_wakes_the_dag_that_reads_just_those_rows(run_dag, connection, sandbox, warehouse) -> None:
    sandbox.add_events(4, "file_downloaded")
    run = run_dag((REPOSITORY / "dags/ingest_event_feed.py").read_text(), conf={})
    assert run.state == "success"
    with create_session() as session:
        extra = dict(session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc())).first().extra)
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
