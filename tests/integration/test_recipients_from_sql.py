"""Recipients from a query: read in the worker, hidden like those given directly, and the same rules for both."""

from __future__ import annotations

import json
import logging
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from itertools import product
from typing import Any

import duckdb
import jinja2
import pytest
from airflow.providers.sqlite.hooks.sqlite import SqliteHook

from outbound_transfer.exceptions import InvalidDelivery, QueryFailed
from outbound_transfer.operators.draft import CreateTransferOperator
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.airflow_names import AirflowFailException, AirflowSkipException, redact
from support.deliveries import BOTH_MODES
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

ANN, BOB = "ann@example.com", "bob@example.com"
PHONE = "+1 555 010 4477"


@pytest.fixture
def crm(tmp_path, monkeypatch) -> Callable[..., None]:
    """``crm(rows)`` is what the table ``people`` has from then on."""
    file = tmp_path / "crm.db"
    monkeypatch.setenv("AIRFLOW_CONN_CRM", json.dumps({"conn_type": "sqlite", "host": str(file)}))

    def fill(*rows: tuple[Any, ...]) -> None:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("DROP TABLE IF EXISTS people")
            database.execute("CREATE TABLE people (email, name, phone, team)")
            database.executemany("INSERT INTO people VALUES (?, ?, ?, 'board')", rows)

    fill((ANN, "Ann", PHONE), (BOB, None, 15_550_104_478))
    return fill


def people(**arguments: Any) -> RecipientsFromSql:
    sql = "SELECT email AS EMAIL, name, phone FROM people WHERE team = ?"
    return RecipientsFromSql(**{"sql": sql, "conn_id": "crm", "parameters": ["board"], **arguments})


@pytest.fixture
def deliver(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    time, given = SimulatedClock(sandbox), {"files": {"name": "a.csv", "content": "a"}, "subject": "Report"}
    return lambda query=None, **arguments: task_instance(
        DeliverFilesOperator, time, recipients=query or people(), **given, **arguments
    )


def emailed(sandbox: Sandbox) -> list[str]:
    return sorted(row["recipient"] for row in sandbox.ledger() if row["kind"] == "emailed")


@BOTH_MODES
def test_the_rows_of_a_query_are_the_recipients_in_any_order(deliver, crm, sandbox, deferrable) -> None:
    task = deliver(security="sms", deferrable=deferrable)
    sent = task.run()
    assert emailed(sandbox) == [ANN, BOB]
    assert {one["email"]: one["name"] for one in sent["recipients"]} == {ANN: "Ann", BOB: "bob"}
    crm((BOB, None, 15_550_104_478), (ANN, "Ann", PHONE))
    assert again(task)["id"] == sent["id"]
    draft = task_instance(CreateTransferOperator, SimulatedClock(sandbox), subject="Draft", recipients=people()).run()
    assert len(sandbox.transfer(draft)["recipients"]) == 2


def test_phones_of_a_query_are_masked(deliver, crm, sandbox, caplog) -> None:
    task = deliver(security="sms")
    fault = {"kind": "error", "status": 400, "message": f"No: {PHONE}", "method": "POST", "path": "*/files"}
    sandbox.plan_faults(fault)
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowFailException, match="400 invalid_request") as raised:
        task.run()
    sandbox.assert_all_faults_triggered()
    shown = caplog.text + str(raised.value) + repr(task.xcoms) + memory.remembered(task)
    assert PHONE not in shown
    assert redact(PHONE) == redact("15550104478") == "***", "in whatever another library logs"


def test_columns_of_a_fixed_width_lose_their_padding(deliver, crm, sandbox) -> None:
    crm((f"{ANN}         ", "Ann     ", None))
    deliver().run()
    (recipient,) = sandbox.transfer(sandbox.sent()[0])["recipients"]
    assert (recipient["email"], recipient["name"]) == (ANN, "Ann")


def test_no_row_is_an_error_or_a_skip_and_nothing_else_can_be_chosen(deliver, crm, sandbox) -> None:
    crm()
    with pytest.raises(AirflowFailException, match="returned no rows: nothing is delivered"):
        deliver().run()
    with pytest.raises(AirflowSkipException, match="returned no rows: nothing is delivered"):
        deliver(people(on_empty="skip")).run()
    assert sandbox.requests() == []
    for choice in ("succeed", "", None):
        with pytest.raises(ValueError, match="fail, skip"):
            people(on_empty=choice)


def test_other_columns_are_refused(crm) -> None:
    for columns, error in (
        ("name, phone", "must return the column email.*returned name, phone"),
        ("*", "returned email, name, phone, team"),
        ("email, email", "returned email, email"),
    ):
        with pytest.raises(InvalidDelivery, match=error):
            RecipientsFromSql(sql=f"SELECT {columns} FROM people", conn_id="crm").load()


@pytest.mark.parametrize(
    ("driver", "cursor"),
    [("psycopg", "dictcursor"), *product(("psycopg2",), ("dictcursor", "realdictcursor"))]
    + list(product(("mysqlclient",), ("dictcursor", "ssdictcursor"))),
)
def test_rows_that_the_connection_makes_dictionaries(connection, database_of, monkeypatch, driver, cursor) -> None:
    if driver == "psycopg2":
        monkeypatch.setattr("airflow.providers.postgres.hooks.postgres.USE_PSYCOPG3", False)
    value = json.loads(database_of(driver).airflow_connection)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({**value, "extra": {"cursor": cursor}}))
    sql = "SELECT 'ann@example.com' AS EMAIL, 'Ann' AS name, NULL AS phone"
    assert RecipientsFromSql(sql=sql, conn_id="warehouse").load() == [{"email": ANN, "name": "Ann"}]


def test_rows_of_a_driver_that_only_has_dictionaries_are_refused(crm, monkeypatch) -> None:
    connect = SqliteHook.get_conn

    def connect_with_dictionaries(hook: Any) -> Any:
        opened = connect(hook)
        opened.row_factory = lambda cursor, row: {column[0]: row[n] for n, column in enumerate(cursor.description)}
        return opened

    monkeypatch.setattr(SqliteHook, "get_conn", connect_with_dictionaries)
    with pytest.raises(QueryFailed, match="the driver returns dictionaries: choose a tuple cursor"):
        people().load()


def test_more_rows_than_the_service_takes_are_refused(deliver, crm, sandbox) -> None:
    crm(*((f"a{number}@example.com", None, None) for number in range(251)))
    with pytest.raises(AirflowFailException, match="more than 250 rows"):
        deliver().run()
    crm(*((f"a{number}@example.com", None, None) for number in range(250)))
    deliver().run()
    assert len(emailed(sandbox)) == 250


def test_a_row_follows_the_rules_of_a_recipient(deliver, crm) -> None:
    crm(("nobody", None, PHONE), (None, None, PHONE))
    with pytest.raises(AirflowFailException, match="recipient 2: .*email") as raised:
        deliver().run()
    assert PHONE not in str(raised.value)


@pytest.mark.parametrize("secret", ["S3CRET-TOKEN-77", "ab1", 1234])
def test_no_error_quotes_a_parameter(connection, tmp_path, monkeypatch, secret) -> None:
    """DuckDB quotes the value that it cannot convert."""
    value = {"conn_type": "duckdb", "host": str(tmp_path / "crm.duckdb")}
    duckdb.connect(value["host"]).close()
    monkeypatch.setenv("AIRFLOW_CONN_DUCK", json.dumps(value))
    sql = "SELECT 'a' AS email WHERE CAST(? AS DATE) > NOW()"
    error = "query for the recipients: connection 'duck' refused the query: .*Exc"
    with pytest.raises(QueryFailed, match=error) as raised:
        RecipientsFromSql(sql=sql, parameters=[secret], conn_id="duck").load()
    assert str(secret) not in "".join(traceback.format_exception(raised.value))


def test_a_parameter_that_fails_to_render_shows_no_other(caplog) -> None:
    query = people(parameters=["S3CRET-TOKEN-77", "ab1", "{{ nope.missing.x }}"])
    operator = DeliverFilesOperator(task_id="t", files="a", subject="S", recipients=query)
    with caplog.at_level(logging.DEBUG), pytest.raises(jinja2.UndefinedError) as raised:
        operator.render_template_fields({}, jinja2.Environment())
    shown = caplog.text + "".join(traceback.format_exception(raised.value)) + repr(operator.recipients)
    assert "S3CRET" not in shown
    assert "ab1" not in shown
    assert query.parameters[0] == "S3CRET-TOKEN-77", "as the next task instance needs it"


DAG = """
    from airflow.sdk import DAG, task
    from outbound_transfer.operators.recipients import RecipientsFromSql
    from outbound_transfer.operators.transfer import DeliverFilesOperator

    content = {"name": "a.txt", "content": "a"}
    given = {"subject": "Report", "files": content}

    with DAG("recipients", schedule=None, params={"team": "board"}):
        query = RecipientsFromSql(
            sql="SELECT email, phone FROM people WHERE team = ? AND email LIKE ?", conn_id="{{ var.value.crm }}",
            parameters=["{{ params.team }}", "{{ task.subject }}%"],
        )
        everybody = RecipientsFromSql(sql="SELECT email, phone FROM people", conn_id="crm")
        DeliverFilesOperator.partial(task_id="query", recipients=query, files=content).expand(subject=["ann", "bob"])
        DeliverFilesOperator(task_id="variable", recipients="{{ var.json.team }}", **given)
        DeliverFilesOperator(task_id="text", recipients="{{ var.value.team }}", **given)

        @task.deliver_files(subject="Report", recipients=everybody, security="sms")
        def argument():
            return content

        @task.deliver_files(subject="Report", security="sms")
        def returned():
            return {"files": content, "recipients": everybody}

        argument()
        returned()
"""


def test_every_task_takes_a_query_and_templates(run_dag, connection, crm, sandbox, monkeypatch) -> None:
    team = [{"email": "var@example.com", "name": "Var", "phone": PHONE}, "val@example.com"]
    monkeypatch.setenv("AIRFLOW_VAR_TEAM", json.dumps(team))
    monkeypatch.setenv("AIRFLOW_VAR_CRM", "crm")
    run = run_dag(DAG)
    assert run.state == "success", run.states()
    assert [run.xcom("query", map_index=index)["not_picked_up"] for index in (0, 1)] == [[ANN], [BOB]]
    assert run.xcom("variable")["not_picked_up"] == run.xcom("text")["not_picked_up"]
    assert emailed(sandbox) == sorted([ANN, BOB] * 3 + ["val@example.com", "var@example.com"] * 2)
    assert PHONE not in json.dumps([run.xcom("argument"), run.xcom("returned")])
