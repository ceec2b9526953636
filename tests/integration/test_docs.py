"""The examples of ``docs/`` work as they stand there. That of testing-your-dags.md has a test of its own."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import outbound_transfer
from support.iceberg import connection_json, open_lake
from support.keyed_tasks import sqlite_connection
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
    for name in ("A", "B"):
        monkeypatch.setenv(f"AIRFLOW_CONN_OUTBOUND_TRANSFER_{name}", sandbox.airflow_connection())
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE", sqlite_connection(tmp_path / "warehouse.db"))
    with closing(sqlite3.connect(tmp_path / "tables.db")) as database:
        database.executescript(
            "CREATE TABLE customers AS SELECT 1 AS id, 'Ann' AS name;"
            "CREATE TABLE orders AS SELECT 1 AS id, 500 AS total;"
            "CREATE TABLE people (email, name, phone, team);"
            "INSERT INTO people VALUES ('ann@example.com', 'Ann', '+1 555 010 4477', 'board')"
        )
    for name in ("SALES", "CRM"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", sqlite_connection(tmp_path / "tables.db"))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection_json(open_lake(tmp_path).folder))
    monkeypatch.setenv("AIRFLOW_VAR_STATEMENTS_ANSWER", "forty-two")
    for name in ("ann", "bob"):
        (tmp_path / f"{name}.csv").write_text(f"of {name}\n")
    return tmp_path


#: How many transfers each example sends.
SENDS = {
    **dict.fromkeys(("statements", "to_the_board", "with_tickets", "summary", "approved"), 1),
    **dict.fromkeys(("report_from_memory", "monthly_figures", "receipt"), 1),
    **dict.fromkeys(("statements_by_customer", "in_steps", "statements_to_all"), 2),
    "events_in_a_lake": 0,
}

#: Examples in which recipients act, or do not, with tests of their own.
RECIPES = {"late_pickup", "resend"}


def test_each_example_is_run() -> None:
    assert DAGS.keys() == SENDS.keys() | RECIPES


@pytest.mark.parametrize("name", SENDS)
def test_an_example_runs(name, run_dag, connection, surroundings, sandbox, answer_requests, recipients_pick_up) -> None:
    answer_requests("Approve")
    run = run_dag(DAGS[name], conf={"folder": str(surroundings), "receipts": str(surroundings / "receipts")})
    assert run.state == "success", run.states()
    assert len(sandbox.sent()) == SENDS[name]
    if name == "receipt":
        (path,) = (surroundings / "receipts").iterdir()
        receipt = json.loads(path.read_text())
        assert (receipt["id"], receipt["status"]) == (*sandbox.sent(), "complete")
        assert {file["name"] for file in receipt["files"]} == {"ann.csv", "bob.csv"}


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        yield
        acting.result()


def test_the_recipe_of_a_late_pickup(run_dag, connection, surroundings, sandbox, mail) -> None:
    def pick_up_once_it_is_late() -> None:
        eventually(lambda: mail.messages)
        sandbox.pickup(sandbox.assert_sent_once(), "ann@example.com")

    soon = DAGS["late_pickup"].replace("timedelta(days=2)", "timedelta(seconds=2)")
    # ``dag.test()`` runs tasks that are ready one after the other, in any order.
    soon = soon.replace('task_id="wait"', 'task_id="wait", trigger_rule="all_done"')
    soon += '\n    deliver.dag.get_task("late") >> deliver.dag.get_task("wait")\n'
    with meanwhile(pick_up_once_it_is_late):
        run = run_dag(soon, conf={"folder": str(surroundings)})
    assert run.states() == {"deliver": "success", "late": "skipped", "wait": "success"}
    (message,) = mail.parsed()
    assert (message["To"], message["Subject"]) == ("operations@example.com", "Not picked up by 1 of 1: Statements")


def test_the_recipe_of_a_resend(run_dag, connection, surroundings, sandbox) -> None:
    def expire() -> None:
        eventually(sandbox.sent)
        sandbox.set_expiry(sandbox.assert_sent_once(), 1)

    with meanwhile(expire):
        run = run_dag(DAGS["resend"], conf={"folder": str(surroundings)})
    assert run.state == "success", run.states()
    first, second = (sandbox.transfer(run.xcom(name)["id"]) for name in ("deliver", "resend"))
    assert (first["status"], second["subject"]) == ("expired", "Once more: Statements")


def shell_examples(page: str, of: str = "") -> list[str]:
    return [code for code in re.findall(r"```sh\n(.*?)```", PAGES[page], re.DOTALL) if of in code]


def run_shell(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}
    done = subprocess.run(["bash", "-ec", script], env=own | {"PATH": path} | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_control_api_takes_what_its_page_shows(sandbox) -> None:
    calls = shell_examples("sandbox.md", "/_sandbox/")
    assert len(calls) == 2
    for call in calls:
        here = call.replace("http://127.0.0.1:8085", sandbox.base_url)
        run_shell(here.replace("curl ", "curl --fail --no-progress-meter "))
    (fault,) = sandbox.faults()
    assert (fault["kind"], fault["state"]) == ("reset", "planned")


def test_the_folder_of_examples_is_a_bundle_as_shown() -> None:
    (code,) = shell_examples("recipes.md", "BUNDLE")
    own, examples = json.loads(run_shell(code + 'printf %s "$AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"').stdout)
    assert pkgutil.resolve_name(own["classpath"]) is pkgutil.resolve_name(examples["classpath"])
    assert Path(examples["kwargs"]["path"]) == Path(*outbound_transfer.__path__) / "example_dags"


@pytest.mark.e2e
@pytest.mark.parametrize("way", [0, 1, 2], ids=["by hand", "by the environment", "by a secrets backend"])
def test_a_connection_that_is_set_up_so_passes_its_test(way, no_saved_connection, sandbox, tmp_path) -> None:
    *ways, test = shell_examples("connection.md")
    assert len(ways) == 3
    script = (ways[way] + test).replace("https://account.example.com", sandbox.base_url)
    keys = {"TRANSFER_API_KEY": sandbox.transfer_api_key, "EVENT_API_KEY": sandbox.event_api_key}
    assert "Connection success!" in run_shell(script, SECRETS=str(tmp_path), **keys).stdout
    assert [call["path"] for call in sandbox.requests()] == ["/v1/transfers", "/v1/events"]


@pytest.fixture
def no_saved_connection(airflow_database) -> Iterator[None]:
    """What the command saves is gone from Airflow's database afterwards, which other tests share."""
    from airflow.models import Connection
    from airflow.utils.session import create_session

    yield
    with create_session() as session:
        session.query(Connection).filter_by(conn_id="outbound_transfer_default").delete()
