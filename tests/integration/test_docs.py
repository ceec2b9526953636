"""The examples of ``docs/`` work as they stand there. That of testing-your-dags.md has a test of its own."""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import outbound_transfer
from support.iceberg import connection_json, open_lake
from support.timeouts import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md")) if path.name != "testing-your-dags.md"}

#: Every Python example, but the one whose output stands below it (tests/repository/test_docs.py runs it).
DAGS = {
    re.search(r'DAG\(\s*"(\w+)"', code).group(1): code
    for text in PAGES.values()
    for code in re.findall(r"```python\n([^`]*)```(?!\n\n```text)", text)
}


@pytest.fixture
def surroundings(sandbox, tmp_path, monkeypatch) -> Path:
    """The connections, Variables and files that the examples name."""
    for name in ("A", "B"):
        monkeypatch.setenv(f"AIRFLOW_CONN_OUTBOUND_TRANSFER_{name}", sandbox.airflow_connection())
    warehouse = {"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")}
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE", json.dumps(warehouse))
    sales = tmp_path / "sales.db"
    with closing(sqlite3.connect(sales)) as database:
        database.executescript(
            "CREATE TABLE customers AS SELECT 1 AS id, 'Ann' AS name;"
            "CREATE TABLE orders AS SELECT 1 AS id, 500 AS total"
        )
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps({"conn_type": "sqlite", "host": str(sales)}))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection_json(open_lake(tmp_path).folder))
    monkeypatch.setenv("AIRFLOW_VAR_STATEMENTS_ANSWER", "forty-two")
    with closing(sqlite3.connect(tmp_path / "crm.db")) as database, database:
        database.execute("CREATE TABLE people (email, name, phone, team)")
        database.execute("INSERT INTO people VALUES ('ann@example.com', 'Ann', '+1 555 010 4477', 'board')")
    monkeypatch.setenv("AIRFLOW_CONN_CRM", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "crm.db")}))
    for name in ("ann", "bob"):
        (tmp_path / f"{name}.csv").write_text(f"of {name}\n")
    return tmp_path


#: How many transfers each example sends.
SENDS = {
    "statements": 1,
    "to_the_board": 1,
    "with_tickets": 1,
    "summary": 1,
    "statements_by_customer": 2,
    "in_steps": 2,
    "approved": 1,
    "events_in_a_lake": 0,
    "report_from_memory": 1,
    "monthly_figures": 1,
    "statements_to_all": 2,
}

#: Examples in which recipients act, or do not, with tests of their own.
RECIPES = {"receipt", "late_pickup", "resend"}


def test_each_example_is_run() -> None:
    assert DAGS.keys() == SENDS.keys() | RECIPES


@pytest.mark.parametrize("name", SENDS)
def test_an_example_runs(name, run_dag, connection, surroundings, sandbox, answer_requests) -> None:
    answer_requests("Approve")
    run = run_dag(DAGS[name], conf={"folder": str(surroundings)})
    assert run.state == "success", run.states()
    assert len(sandbox.sent()) == SENDS[name]


def test_the_recipe_of_a_receipt(run_dag, connection, surroundings, sandbox, recipients_pick_up) -> None:
    conf = {"folder": str(surroundings), "receipts": str(surroundings / "receipts")}
    run = run_dag(DAGS["receipt"], conf=conf)
    assert run.state == "success", run.states()
    (path,) = (surroundings / "receipts").iterdir()
    receipt = json.loads(path.read_text())
    assert (receipt["id"], receipt["status"], receipt["security"]) == (sandbox.assert_sent_once(), "complete", None)
    assert {file["name"]: (file["size"], file["sha256"]) for file in receipt["files"]} == {
        file.name: (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in surroundings.glob("*.csv")
    }
    assert (receipt["not_picked_up"], [bool(one["picked_up_at"]) for one in receipt["recipients"]]) == ([], [True])


def test_the_recipe_of_a_late_pickup(run_dag, connection, surroundings, sandbox, mail) -> None:
    def pick_up_once_it_is_late() -> None:
        eventually(lambda: mail.messages)
        sandbox.pickup(sandbox.assert_sent_once(), "ann@example.com")

    with ThreadPoolExecutor(1) as pool:
        picking_up = pool.submit(pick_up_once_it_is_late)
        soon = DAGS["late_pickup"].replace("timedelta(days=2)", "timedelta(seconds=2)")
        run = run_dag(soon, conf={"folder": str(surroundings)})
        picking_up.result()

    assert run.states() == {"deliver": "success", "late": "skipped", "wait": "success"}
    (message,) = mail.parsed()
    assert (message["To"], message["Subject"]) == ("operations@example.com", "Not picked up by 1 of 1: Statements")


def test_the_recipe_of_a_resend(run_dag, connection, surroundings, sandbox) -> None:
    def expire() -> None:
        eventually(sandbox.sent)
        sandbox.set_expiry(sandbox.assert_sent_once(), 1)

    with ThreadPoolExecutor(1) as pool:
        expiring = pool.submit(expire)
        run = run_dag(DAGS["resend"], conf={"folder": str(surroundings)})
        expiring.result()

    assert run.state == "success", run.states()
    first, second = (sandbox.transfer(one) for one in (run.xcom("deliver")["id"], run.xcom("resend")["id"]))
    assert (first["status"], second["subject"]) == ("expired", "Once more: Statements")


def shell_examples() -> list[str]:
    found = re.findall(r"```sh\n(.*?)```", PAGES["connection.md"], re.DOTALL)
    assert len(found) == 4
    return found


def test_the_control_api_takes_what_its_page_shows(sandbox) -> None:
    calls = [code for code in re.findall(r"```sh\n(.*?)```", PAGES["sandbox.md"], re.DOTALL) if "/_sandbox/" in code]
    assert len(calls) == 2
    for call in calls:
        script = call.replace("http://127.0.0.1:8085", sandbox.base_url).replace(
            "curl ", "curl --fail --no-progress-meter "
        )
        subprocess.run(["bash", "-ec", script], check=True, capture_output=True)
    (fault,) = sandbox.faults()
    assert (fault["kind"], fault["state"]) == ("reset", "planned")


def test_the_folder_of_examples_is_a_bundle_as_shown() -> None:
    (code,) = [code for code in re.findall(r"```sh\n(.*?)```", PAGES["recipes.md"], re.DOTALL) if "BUNDLE" in code]
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = code + 'printf %s "$AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"'
    printed = subprocess.run(["bash", "-ec", script], env=env, check=True, capture_output=True, text=True).stdout
    own, examples = json.loads(printed)
    assert pkgutil.resolve_name(own["classpath"]) is pkgutil.resolve_name(examples["classpath"])
    assert Path(examples["kwargs"]["path"]) == Path(*outbound_transfer.__path__) / "example_dags"


WAYS = ["by hand", "by the environment", "by a secrets backend"]


@pytest.mark.e2e
@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_is_set_up_so_passes_its_test(way, no_saved_connection, sandbox, tmp_path) -> None:
    *ways, test = shell_examples()
    script = (ways[WAYS.index(way)] + test).replace("https://account.example.com", sandbox.base_url)
    own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}
    given = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRANSFER_API_KEY": sandbox.transfer_api_key,
        "EVENT_API_KEY": sandbox.event_api_key,
        "SECRETS": str(tmp_path),
    }
    done = subprocess.run(["bash", "-ec", script], env=own | given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Connection success!" in done.stdout
    assert [call["path"] for call in sandbox.requests()] == ["/v1/transfers", "/v1/events"]


@pytest.fixture
def no_saved_connection(airflow_database) -> Iterator[None]:
    """What the command saves is gone from Airflow's database afterwards, which other tests share."""
    from airflow.models import Connection
    from airflow.utils.session import create_session

    yield
    with create_session() as session:
        session.query(Connection).filter_by(conn_id="outbound_transfer_default").delete()
