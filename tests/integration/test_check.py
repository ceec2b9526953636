"""`outbound-transfer check` against a real service and real databases: a set-up that works, and ways to break it."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.jobs.job import Job
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from sqlalchemy import delete

from outbound_transfer.cli import check
from outbound_transfer.cli.console import main
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import deliveries_table
from support.deliveries_table import LOCAL_FILE, DeliveriesTable
from support.warehouses import sqlite_hook

last_start = check.last_start
CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
#: Some of what is checked.
CHECKS = {
    *("connection", "service", "transfer_key", "event_key", "clock"),
    *("deliveries", "tasks", "in_doubt", "polls", "warehouse", "feed"),
}
WAREHOUSE = ("--sql-conn-id", "warehouse")
PASSWORD = "hunter2-hunter2"


@dataclass
class SetUp:
    """A service, and the databases of Airflow's connections ``deliveries`` and ``warehouse``."""

    sandbox: Sandbox
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def connect(self, conn_id: str, **fields: Any) -> None:
        self.monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    def lead_to(self, host: str, **fields: Any) -> None:
        """Let the connection lead to a service, with the key of the sandbox's."""
        key = self.sandbox.transfer_api_key
        self.connect("outbound_transfer_default", conn_type="outbound_transfer", host=host, password=key, **fields)

    @property
    def deliveries(self) -> DeliveriesTable:
        return DeliveriesTable(sqlite_hook(self.folder / "deliveries.db"))

    def run(self, conn_id: str, statement: str, *parameters: Any) -> None:
        with closing(sqlite3.connect(self.folder / f"{conn_id}.db")) as connection, connection:
            connection.execute(statement, parameters)

    def check(self, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
        """Run the command; return its exit status, and its rows by the name of the check."""
        status, out = self.print("--output", "json", *words)
        rows = json.loads(out)
        assert {row["check"] for row in rows} >= CHECKS
        assert {tuple(row) for row in rows} == {("check", "status", "found", "to_do")}
        return status, {row["check"]: row for row in rows}

    def print(self, *words: str) -> tuple[int, str]:
        self.capsys.readouterr()
        try:
            main(["check", *words])
            status: Any = 0
        except SystemExit as exited:
            status = exited.code
        captured = self.capsys.readouterr()
        for secret in (self.sandbox.transfer_api_key, self.sandbox.event_api_key, PASSWORD):
            assert secret not in captured.out + captured.err
        return status, captured.out

    def files(self) -> dict[str, list[str]]:
        found = {}
        for file in sorted(self.folder.iterdir()):
            with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as connection:
                found[file.name] = list(connection.iterdump())
        return found


@pytest.fixture
def set_up(connection, airflow_database, sandbox, tmp_path, monkeypatch, capsys) -> Iterator[SetUp]:
    made = SetUp(sandbox, tmp_path / "databases", monkeypatch, capsys)
    made.folder.mkdir()
    for conn_id in ("deliveries", "warehouse"):
        made.connect(conn_id, conn_type="sqlite", host=str(made.folder / f"{conn_id}.db"))
    made.deliveries.make()
    sandbox.add_events(3)
    EventFeedToSqlOperator(task_id="load", sql_conn_id="warehouse").execute({})
    sandbox.advance_clock(61)
    deliveries_table.use(monkeypatch, "deliveries")
    monkeypatch.setattr(check, "last_start", lambda _: None)  # tests before this one may have run tasks
    yield made
    with create_session() as session:
        session.execute(delete(Trigger))


def test_a_set_up_that_works_is_ok_and_stays_as_it_is(set_up: SetUp) -> None:
    before, calls = set_up.files(), len(set_up.sandbox.requests())
    status, found = set_up.check(*WAREHOUSE)
    assert {row["status"] for row in found.values()} == {"ok"}, found
    assert status == 0
    assert found["feed"]["found"].startswith("The cursor is 3, from a page loaded")
    assert set_up.files() == before
    made = set_up.sandbox.requests()[calls:]
    assert [(call["path"], call["status"]) for call in made] == [("/v1/transfers", 200), ("/v1/events", 400)]
    with OutboundTransferHook() as hook:
        assert hook.read_events(cursor=3).events == (), "the feed's minute is not used up"


@pytest.mark.parametrize("another", ["", "deliveries", "warehouse"])
def test_a_database_is_not_made_and_a_file_of_another_is_not_converted(set_up: SetUp, another: str) -> None:
    for file in set_up.folder.iterdir():
        file.unlink()
    if another:
        set_up.run(another, "CREATE TABLE a (b)")
    before = {file: file.read_bytes() for file in set_up.folder.iterdir()}
    status, found = set_up.check(*WAREHOUSE)
    assert (found["in_doubt"]["status"], found["warehouse"]["status"]) == ("ok", "ok")
    assert "not created yet" in found["deliveries"]["found"]
    assert (status, found["feed"]["status"]) == (1, "unknown")
    assert {file: file.read_bytes() for file in set_up.folder.iterdir()} == before


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
def test_other_databases_stay_as_they_are(set_up: SetUp, request: pytest.FixtureRequest, name: str) -> None:
    connection = request.getfixturevalue(name).airflow_connection
    connection = connection("mysqlclient") if callable(connection) else connection
    set_up.monkeypatch.setenv("AIRFLOW_CONN_DELIVERIES", connection)
    for _ in range(2):
        found = set_up.check(*WAREHOUSE)[1]
        assert {row["status"] for row in found.values()} == {"ok"}, found
        assert "not created yet" in str(found), "the first check has created nothing"


def use_up_calls(set_up: SetUp) -> None:
    set_up.sandbox.patch_account(requests_per_window=1)
    with OutboundTransferHook() as hook:
        hook.list_transfers()


def answer_ten_minutes_ago(set_up: SetUp) -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(minutes=10), usegmt=True)
    set_up.sandbox.plan_faults({"kind": "header", "path": "/v1/transfers", "name": "Date", "value": date})


def be_a_cluster_without_a_database(set_up: SetUp) -> None:
    set_up.monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    deliveries_table.use_default(set_up.monkeypatch)


def let_a_day_pass(set_up: SetUp) -> None:
    ago = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    set_up.run("warehouse", "UPDATE outbound_transfer_feed_polls SET polled_at = ?", ago)


MALFORMED = {"kind": "malformed_json", "path": "/v1/transfers", "text": "<html>"}
#: What breaks the set-up, the check that finds it, how grave that is, and what it says.
BROKEN: dict[str, tuple[Callable[[SetUp], object], str, str, str]] = {
    "no connection": (
        lambda it: it.monkeypatch.delenv(CONNECTION),
        *("connection", "broken", "The conn_id `outbound_transfer_default` isn't defined"),
    ),
    "a transfer key that was revoked": (
        lambda it: it.sandbox.revoke_key(it.sandbox.transfer_api_key),
        *("transfer_key", "broken", "401 invalid_api_key: "),
    ),
    "a key whose calls are used up": (
        use_up_calls,
        *("transfer_key", "degraded", "429 rate_limited: this minute's calls are used up."),
    ),
    "an answer of another": (
        lambda it: it.sandbox.plan_faults(MALFORMED, MALFORMED),
        *("transfer_key", "unknown", "the response is not as documented"),
    ),
    "a clock ten minutes ahead": (answer_ten_minutes_ago, "clock", "degraded", " ahead of the service's."),
    "a service that is down": (
        lambda it: it.lead_to("http://127.0.0.1:1", extra={"event_api_key": "obs_event_key"}),
        *("service", "broken", "list: no connection to http://127.0.0.1:1: ConnectError"),
    ),
    "a warehouse whose folder is missing": (
        lambda it: it.connect("warehouse", conn_type="sqlite", host="/nowhere/a.db"),
        *("warehouse", "broken", "FileNotFoundError: the folder of the file /nowhere/a.db"),
    ),
    "a cluster without a database": (be_a_cluster_without_a_database, "deliveries", "broken", "set deliveries_conn_id"),
    "an old cursor": (let_a_day_pass, "feed", "degraded", "The cursor is 3, from a page loaded 1 d ago."),
    "a cursor that is none": (
        lambda it: it.run("warehouse", "UPDATE outbound_transfer_feed_cursor SET cursor = -1"),
        *("feed", "broken", "connection 'warehouse': the cursor of the feed 127.0.0.1"),
    ),
    "a delivery in doubt": (
        lambda it: it.deliveries.add("t1", status="in doubt"),
        *("in_doubt", "degraded", "Deliveries in doubt: 1."),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_is_found(set_up: SetUp, name: str) -> None:
    make, check, grave, text = BROKEN[name]
    make(set_up)
    before = set_up.files()
    status, found = set_up.check(*WAREHOUSE)
    row = found[check]
    assert text in row["found"]
    assert row["found"][0] != ":"
    assert (row["status"], status) == (grave, 2 if grave == "broken" else 1)
    others = {each["check"]: each["to_do"] for each in found.values() if each["status"] != "ok" and each != row}
    assert all(to_do.startswith("See ") for to_do in others.values()), others
    assert set_up.files() == before
    assert [call["status"] for call in set_up.sandbox.feed_calls()].count(200) == 1, "that of the ingestion"


def test_a_log_message_does_not_break_the_json_output(set_up: SetUp) -> None:
    set_up.lead_to(set_up.sandbox.base_url, extra="no JSON")
    command = [Path(sys.executable).with_name("outbound-transfer"), "check", "--output", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert {row["check"] for row in json.loads(done.stdout)} >= CHECKS


def test_a_database_that_is_silent_is_given_up(set_up: SetUp) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:  # accepts nothing
        port = server.getsockname()[1]
        set_up.connect("deliveries", conn_type="postgres", host="127.0.0.1", port=port, login="u", password=PASSWORD)
        status, found = set_up.check(*WAREHOUSE)
    broken = [row["found"] for row in found.values() if row["status"] == "broken"]
    assert any(text.startswith("connection 'deliveries': ") for text in broken), found
    assert status == 2


def test_without_an_event_key_no_feed_is_looked_for(set_up: SetUp) -> None:
    set_up.lead_to(set_up.sandbox.base_url)
    status, found = set_up.check()
    assert (status, found["feed"]["found"]) == (0, "Not checked: no event key."), found


def test_the_feed_is_looked_for_where_the_page_does(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = set_up.check()
    assert (status, found["feed"]["status"]) == (1, "unknown")
    assert "No feed has been read here yet." in found["feed"]["found"]
    deliveries_table.use(monkeypatch, "warehouse")
    assert set_up.check()[1]["feed"]["status"] == "ok"


def test_nothing_configured_says_what_to_give(set_up: SetUp, single_machine: Path) -> None:
    deliveries_table.use_default(set_up.monkeypatch)
    status, found = set_up.check()
    assert status == 1
    assert str(single_machine / LOCAL_FILE) in str(found)
    assert not (single_machine / LOCAL_FILE).exists()
    assert "--sql-conn-id and --iceberg-conn-id" in found["warehouse"]["found"]


def test_airflow_prints_a_line_for_each_check(set_up: SetUp) -> None:
    set_up.capsys.readouterr()
    arguments = cli_parser.get_parser().parse_args(["outbound-transfer", "check", "-o", "plain", *WAREHOUSE])
    arguments.func(arguments)
    head, *lines = (line.split()[:2] for line in set_up.capsys.readouterr().out.splitlines())
    assert (head, {status for _, status in lines}) == (["check", "status"], {"ok"})
    assert {name for name, _ in lines} >= CHECKS
    deliveries_table.use(set_up.monkeypatch, "[/red]")
    assert "[/red]" in set_up.print()[1], "brackets are text"


def test_the_test_of_a_connection_shows_a_wrong_clock(set_up: SetUp) -> None:
    answer_ten_minutes_ago(set_up)
    works, message = OutboundTransferHook().test_connection()
    assert works
    assert message.startswith("The transfer key is accepted. The event key is accepted. This machine's clock is 10 min")


def test_tasks_that_wait_for_a_triggerer_that_is_not_alive_are_named(set_up: SetUp) -> None:
    with create_session() as session:
        session.execute(delete(Job))
        session.add(Trigger("outbound_transfer.triggers.transfer.TransferTrigger", {}))
    status, found = set_up.check(*WAREHOUSE)
    assert (status, found["polls"]["status"]) == (2, "broken")
    assert found["polls"]["found"] == "Tasks are waiting (1), but no triggerer is alive."
    with create_session() as session:
        job = Job()
        job.job_type, job.state, job.latest_heartbeat = "TriggererJob", "running", datetime.now(UTC)
        session.add(job)
    status, found = set_up.check(*WAREHOUSE)
    assert (status, found["polls"]["found"]) == (0, "1 task waiting without a worker; 1 triggerer alive.")


def test_a_shell_that_sees_another_table_than_the_tasks_says_so(set_up: SetUp) -> None:
    now = datetime.now(UTC)
    set_up.deliveries.add("t1", updated_at=now - timedelta(hours=3))
    for started, expected in ((timedelta(hours=3), "ok"), (timedelta(hours=2), "degraded"), (None, "ok")):
        set_up.monkeypatch.setattr(check, "last_start", lambda _, ago=started: ago and now - ago)
        row = set_up.check(*WAREHOUSE)[1]["tasks"]
        assert row["status"] == expected
        assert ("Tasks use a different database than this shell" in row["to_do"]) == (expected == "degraded")
    assert "connection 'deliveries'" in set_up.check()[1]["deliveries"]["found"]


DELIVER = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    with DAG("deliver_and_check", schedule=None):
        file = {"name": "a.csv", "content": "a"}
        DeliverFilesOperator(task_id="deliver", subject="S", recipients="ann@example.com", files=file)
"""


def test_a_task_that_has_delivered_is_found(set_up: SetUp, run_dag: Callable[..., Any]) -> None:
    before = datetime.now(UTC)
    assert run_dag(DELIVER).state == "success"
    assert before < last_start(["DeliverFilesOperator"]) < datetime.now(UTC)
    set_up.monkeypatch.setattr(check, "last_start", last_start)
    assert set_up.check(*WAREHOUSE)[1]["tasks"]["status"] == "ok"
    deliveries_table.use(set_up.monkeypatch, "warehouse")
    assert set_up.check(*WAREHOUSE)[1]["tasks"]["status"] == "degraded"
