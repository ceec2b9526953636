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
PASSWORD = "hunter2-hunter2"
NOTHING_LISTENS = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "u", "password": PASSWORD}


@dataclass
class SetUp:
    """A service, and the databases of Airflow's connections ``deliveries`` and ``warehouse``."""

    sandbox: Sandbox
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def connect(self, conn_id: str, **fields: Any) -> None:
        self.monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    @property
    def deliveries(self) -> DeliveriesTable:
        return DeliveriesTable(sqlite_hook(self.folder / "deliveries.db"))

    def run(self, conn_id: str, statement: str, *parameters: Any) -> None:
        with closing(sqlite3.connect(self.folder / f"{conn_id}.db")) as connection, connection:
            connection.execute(statement, parameters)

    def check(self, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
        """Run the command; return its exit status, and its rows by the name of the check."""
        self.capsys.readouterr()
        status, out = self.print("--output", "json", *words)
        rows = json.loads(out)
        assert {row["check"] for row in rows} >= CHECKS
        assert {tuple(row) for row in rows} == {("check", "status", "found", "to_do")}
        return status, {row["check"]: row for row in rows}

    def print(self, *words: str) -> tuple[int, str]:
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
        """The files of the databases, with everything in them."""
        found = {}
        for file in sorted(self.folder.iterdir()):
            with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as connection:
                found[file.name] = list(connection.iterdump())
        return found


@pytest.fixture
def set_up(
    connection: str,
    airflow_database: None,
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> SetUp:
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
    return made


# -------------------------------------------------------------------------------------------------- nothing is changed


def test_a_set_up_that_works_is_ok_and_stays_as_it_is(set_up: SetUp) -> None:
    before, calls = set_up.files(), len(set_up.sandbox.requests())
    status, found = set_up.check("--sql-conn-id", "warehouse")
    assert {row["status"] for row in found.values()} == {"ok"}, found
    assert status == 0
    assert found["feed"]["found"].startswith("The cursor is 3, of a page that was loaded")
    assert set_up.files() == before
    made = set_up.sandbox.requests()[calls:]
    assert [(call["method"], call["path"], call["status"]) for call in made] == [
        ("GET", "/v1/transfers", 200),
        ("GET", "/v1/events", 400),
    ]
    with OutboundTransferHook() as hook:
        assert hook.read_events(cursor=3).events == (), "the feed's minute is not used up"


def test_databases_that_are_not_there_yet_are_not_made(set_up: SetUp) -> None:
    for file in set_up.folder.iterdir():
        file.unlink()
    status, found = set_up.check("--sql-conn-id", "warehouse")
    assert [found[name]["status"] for name in ("in_doubt", "warehouse")] == ["ok"] * 2
    assert "not made yet" in found["deliveries"]["found"]
    assert (status, found["feed"]["status"]) == (1, "unknown")
    assert list(set_up.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["deliveries", "warehouse"])
def test_a_file_of_another_is_not_converted(set_up: SetUp, name: str) -> None:
    file = set_up.folder / f"{name}.db"
    file.unlink()
    set_up.run(name, "CREATE TABLE a (b)")
    content = file.read_bytes()
    assert "not made yet" in str(set_up.check("--sql-conn-id", "warehouse")[1])
    assert file.read_bytes() == content


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
def test_other_databases_stay_as_they_are(set_up: SetUp, request: pytest.FixtureRequest, name: str) -> None:
    database = request.getfixturevalue(name)
    connection = database.airflow_connection
    set_up.monkeypatch.setenv(
        "AIRFLOW_CONN_DELIVERIES", connection("mysqlclient") if callable(connection) else connection
    )
    for _ in range(2):
        found = set_up.check("--sql-conn-id", "warehouse")[1]
        assert {row["status"] for row in found.values()} == {"ok"}, found
        assert "not made yet" in str(found), "the first check has made nothing"


# ------------------------------------------------------------------------------------------------------ what is broken


BROKEN: dict[str, tuple[Callable[[SetUp], object], str, int, str]] = {}


def broken(name: str, check: str, status: int, found: str) -> Callable[[Callable[[SetUp], object]], None]:
    def add(make: Callable[[SetUp], object]) -> None:
        BROKEN[name] = make, check, status, found

    return add


@broken("no connection", "connection", 2, "The conn_id `outbound_transfer_default` isn't defined")
def _(set_up: SetUp) -> None:
    set_up.monkeypatch.delenv(CONNECTION)


@broken("a transfer key that was revoked", "transfer_key", 2, "401 invalid_api_key: ")
def _(set_up: SetUp) -> None:
    set_up.sandbox.revoke_key(set_up.sandbox.transfer_api_key)


@broken("a key whose calls are used up", "transfer_key", 1, "429 rate_limited: the calls of this minute are used up.")
def _(set_up: SetUp) -> None:
    set_up.sandbox.patch_account(requests_per_window=1)
    with OutboundTransferHook() as hook:
        hook.list_transfers()


@broken("a clock ten minutes ahead", "clock", 1, " ahead of the service's.")
def _(set_up: SetUp) -> None:
    answer_at(set_up.sandbox, timedelta(minutes=-10))


def answer_at(sandbox: Sandbox, offset: timedelta) -> None:
    date = format_datetime(datetime.now(UTC) + offset, usegmt=True)
    sandbox.plan_faults({"kind": "header", "path": "/v1/transfers", "name": "Date", "value": date})


@broken("a service that is down", "service", 2, "list: no connection to http://127.0.0.1:1: ConnectError")
def _(set_up: SetUp) -> None:
    fields = {"host": "http://127.0.0.1:1", "password": "transfer-key", "extra": {"event_api_key": "obs_event_key"}}
    set_up.connect("outbound_transfer_default", conn_type="outbound_transfer", **fields)


@broken(
    "a warehouse whose folder is missing", "warehouse", 2, "FileNotFoundError: the folder of the file /nowhere/a.db"
)
def _(set_up: SetUp) -> None:
    set_up.connect("warehouse", conn_type="sqlite", host="/nowhere/a.db")


@broken("an old cursor", "feed", 1, "The cursor is 3, of a page that was loaded 1 d ago.")
def _(set_up: SetUp) -> None:
    set_up.run(
        "warehouse",
        "UPDATE outbound_transfer_feed_polls SET polled_at = ?",
        (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    )


@broken("a cursor that is none", "feed", 2, "connection 'warehouse': the cursor of the feed 127.0.0.1")
def _(set_up: SetUp) -> None:
    set_up.run("warehouse", "UPDATE outbound_transfer_feed_cursor SET cursor = -1")


@broken("a delivery in doubt", "in_doubt", 1, "Deliveries in doubt: 1.")
def _(set_up: SetUp) -> None:
    set_up.deliveries.add("t1", status="in doubt")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_is_found(set_up: SetUp, name: str) -> None:
    make, check, status, text = BROKEN[name]
    make(set_up)
    before = set_up.files()
    found_status, found = set_up.check("--sql-conn-id", "warehouse")
    row = found[check]
    assert text in row["found"]
    assert row["found"][0] != ":"
    assert row["status"] == {1: "degraded", 2: "broken"}[status]
    assert found_status == status
    others = {each["check"]: each["to_do"] for each in found.values() if each["status"] != "ok" and each != row}
    assert all(to_do.startswith("See ") for to_do in others.values()), others
    assert set_up.files() == before
    assert [call["status"] for call in set_up.sandbox.feed_calls()].count(200) == 1, "that of the ingestion"
    set_up.sandbox.release_held_calls()


def test_a_response_that_is_none_of_the_services_is_shown(set_up: SetUp) -> None:
    set_up.sandbox.plan_faults(*2 * [{"kind": "malformed_json", "path": "/v1/transfers", "text": "<html>"}])
    status, found = set_up.check("--sql-conn-id", "warehouse")
    assert (status, found["service"]["status"], found["transfer_key"]["status"]) == (1, "ok", "unknown")
    assert "the response is not as documented" in found["transfer_key"]["found"]


def test_a_log_is_no_part_of_the_output(set_up: SetUp) -> None:
    fields = {"host": set_up.sandbox.base_url, "password": "transfer-key", "extra": "no JSON"}
    set_up.connect("outbound_transfer_default", conn_type="outbound_transfer", **fields)
    command = [Path(sys.executable).with_name("outbound-transfer"), "check", "--output", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert {row["check"] for row in json.loads(done.stdout)} >= CHECKS


def test_a_database_that_is_silent_is_given_up(set_up: SetUp) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:  # accepts nothing
        set_up.connect("deliveries", **{**NOTHING_LISTENS, "port": server.getsockname()[1]})
        status, found = set_up.check("--sql-conn-id", "warehouse")
    broken = [row["found"] for row in found.values() if row["status"] == "broken"]
    assert any(text.startswith("connection 'deliveries': ") for text in broken), found
    assert status == 2


# -------------------------------------------------------------------------------------------------------- other set-ups


def test_without_an_event_key_no_feed_is_looked_for(set_up: SetUp) -> None:
    sandbox = set_up.sandbox
    fields = {"host": sandbox.base_url, "password": sandbox.transfer_api_key}
    set_up.connect("outbound_transfer_default", conn_type="outbound_transfer", **fields)
    status, found = set_up.check()
    assert status == 0, found
    assert found["feed"]["found"] == "Not looked for: no event key."


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
    assert "--sql-conn-id, --iceberg-conn-id" in found["warehouse"]["found"]


@pytest.mark.usefixtures("several_machines")
def test_a_cluster_without_a_database_says_what_to_set(set_up: SetUp) -> None:
    deliveries_table.use_default(set_up.monkeypatch)
    status, found = set_up.check("--sql-conn-id", "warehouse")
    assert status >= 1
    assert found["in_doubt"]["status"] == "unknown"
    assert found["deliveries"]["status"] == "broken"
    assert "set deliveries_conn_id" in found["deliveries"]["found"]


def test_airflow_prints_a_line_for_each_check(set_up: SetUp) -> None:
    set_up.capsys.readouterr()
    parser = cli_parser.get_parser()
    arguments = parser.parse_args(["outbound-transfer", "check", "-o", "plain", "--sql-conn-id", "warehouse"])
    arguments.func(arguments)
    lines = set_up.capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["check", "status"]
    assert {line.split()[1] for line in lines[1:]} == {"ok"}
    assert {line.split()[0] for line in lines[1:]} >= CHECKS
    assert "transfer_key" in set_up.print("--sql-conn-id", "warehouse")[1]


def test_brackets_are_text(set_up: SetUp) -> None:
    deliveries_table.use(set_up.monkeypatch, "[/red]")
    assert "[/red]" in set_up.print()[1]


def test_the_test_of_a_connection_shows_a_wrong_clock(set_up: SetUp) -> None:
    answer_at(set_up.sandbox, timedelta(minutes=-10))
    works, message = OutboundTransferHook().test_connection()
    assert works
    assert message.startswith("The transfer key is accepted. The event key is accepted. This machine's clock is 10 min")


# ---------------------------------------------------------------------------------------------------- what tasks do


@pytest.fixture
def waiting_trigger(airflow_database: None) -> Iterator[None]:
    """A trigger of ours in Airflow's database, and no triggerer."""
    from airflow.jobs.job import Job
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(Job))
        session.add(Trigger("outbound_transfer.triggers.transfer.TransferTrigger", {}))
    yield
    with create_session() as session:
        session.execute(delete(Trigger))


@pytest.mark.usefixtures("waiting_trigger")
def test_tasks_that_wait_for_a_triggerer_that_is_not_alive_are_named(set_up: SetUp) -> None:
    status, found = set_up.check("--sql-conn-id", "warehouse")
    assert (status, found["polls"]["status"]) == (2, "broken")
    assert found["polls"]["found"] == "Tasks wait (1), and no triggerer is alive."


@pytest.mark.usefixtures("waiting_trigger")
def test_a_triggerer_that_is_alive_polls(set_up: SetUp) -> None:
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    with create_session() as session:
        job = Job()
        job.job_type, job.state, job.latest_heartbeat = "TriggererJob", "running", datetime.now(UTC)
        session.add(job)
    status, found = set_up.check("--sql-conn-id", "warehouse")
    assert (status, found["polls"]["found"]) == (0, "1 task waiting without a worker; 1 triggerer alive.")


def test_a_shell_that_sees_another_table_than_the_tasks_says_so(set_up: SetUp) -> None:
    now = datetime.now(UTC)
    set_up.deliveries.add("t1", updated_at=now - timedelta(hours=3))
    for started, expected in ((timedelta(hours=3), "ok"), (timedelta(hours=2), "degraded"), (None, "ok")):
        set_up.monkeypatch.setattr(check, "last_start", lambda _, ago=started: ago and now - ago)
        row = set_up.check("--sql-conn-id", "warehouse")[1]["tasks"]
        assert row["status"] == expected
        assert ("Tasks use another database than this shell" in row["to_do"]) == (expected == "degraded")
    assert "connection 'deliveries'" in set_up.check()[1]["deliveries"]["found"]


DELIVER = """
from airflow.sdk import DAG
from outbound_transfer.operators.transfer import DeliverFilesOperator

with DAG("deliver_and_check", schedule=None):
    DeliverFilesOperator(task_id="deliver", subject="S", recipients="ann@example.com", files=FILE)
"""


def test_a_task_that_has_delivered_is_found(set_up: SetUp, run_dag: Callable[..., Any], tmp_path: Path) -> None:
    before = datetime.now(UTC)
    (tmp_path / "a.csv").write_text("a")
    run = run_dag(DELIVER.replace("FILE", repr(str(tmp_path / "a.csv"))))
    assert run.state == "success"
    assert before < last_start(["DeliverFilesOperator"]) < datetime.now(UTC)
    set_up.monkeypatch.setattr(check, "last_start", last_start)
    assert set_up.check("--sql-conn-id", "warehouse")[1]["tasks"]["status"] == "ok"
    deliveries_table.use(set_up.monkeypatch, "warehouse")
    assert set_up.check("--sql-conn-id", "warehouse")[1]["tasks"]["status"] == "degraded"
