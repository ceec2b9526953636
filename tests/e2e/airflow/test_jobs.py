"""The jobs of the docs in a real Airflow: query, deliver, wait, remind and report; and one delivery for each branch."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.repository import REPOSITORY
from support.timeouts import eventually

pytestmark = pytest.mark.e2e

DAILY, BY_BRANCH = "remind_recipients", "deliver_by_branch"
ANN, BOB = "ann@example.com", "bob@example.com"

#: The queries of docs/sql-to-transfer.md, in place of the example's files.
(QUERIES,) = re.findall(
    r"queries=\[.*?\n        \],\n", (REPOSITORY / "docs" / "sql-to-transfer.md").read_text(), re.DOTALL
)
DAILY_JOB = (
    (REPOSITORY / "dags" / f"{DAILY}.py")
    .read_text()
    .replace("operators.transfer", "transfers.sql_to_outbound_transfer")
    .replace("DeliverFilesOperator", "SqlToOutboundTransferOperator")
    .replace('files="{{ params.files }}",', f'sql_conn_id="figures",\n        {QUERIES}')
)

BRANCHES = ("east", "north", "south", "upstate", "west")  # in the order of the example's query
ADD = """
    CREATE TABLE sold (id integer, month text, branch text, total integer, days integer);
    CREATE VIEW orders AS SELECT id, month, branch, total / days AS daily FROM sold;
    CREATE TABLE branch_contacts (branch text, email text);
"""


class JobsStack(ManySandboxesStack):
    """With both examples, and what they query."""

    def start(self) -> None:
        self.dags = self.folder / "dags"
        self.dags.mkdir()
        (self.dags / "daily.py").write_text(DAILY_JOB)
        shutil.copy(REPOSITORY / "dags" / f"{BY_BRANCH}.py", self.dags)
        with closing(sqlite3.connect(self.folder / "figures.db")) as database:
            database.executescript(
                "CREATE TABLE customers AS SELECT 1 AS id, 'Ann' AS name;"
                "CREATE TABLE orders AS SELECT 1 AS id, 500 AS total"
            )
        super().start()

    def settings(self) -> dict[str, str]:
        return super().settings() | {"AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1", "OUTBOUND_TRANSFER_TIMEOUT": "15"}

    def connections(self) -> dict[str, str]:
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection(),
            "AIRFLOW_CONN_SALES": self.database.airflow_connection,
            "AIRFLOW_CONN_FIGURES": json.dumps({"conn_type": "sqlite", "host": str(self.folder / "figures.db")}),
        }


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsStack]:
    with running_stack(tmp_path_factory.mktemp("jobs") / "stack", Reporter(), 1, kind=JobsStack) as stack:
        stack.wait_for_dags(stack.airflow, DAILY, BY_BRANCH)
        yield stack


@pytest.fixture
def service(stack: JobsStack) -> Sandbox:
    stack.sandboxes[0].reset()
    stack.sandboxes[0].patch_account(requests_per_window=10**6)
    return stack.sandboxes[0]


def contents(service: Sandbox, transfer_id: str) -> dict[str, bytes]:
    files = service.transfer(transfer_id)["files"]
    return {file["name"]: service.stored_content(transfer_id, file["id"]) for file in files}


def test_the_daily_job_reminds_only_who_has_not_picked_up_and_says_whom(stack: JobsStack, service: Sandbox) -> None:
    run_id = stack.airflow.trigger(DAILY, {"recipients": [ANN, BOB], "minimum": 100})
    eventually(service.sent)
    service.pickup(service.assert_sent_once(), ANN)

    assert stack.airflow.finish(DAILY, run_id) == {
        "deliver": "success",
        "wait_for_pickup": "failed",
        "remind": "success",
        "report": "success",
    }
    first, second = service.sent()
    queried = {"customers.csv", f"orders-{run_id}.xlsx"}
    assert contents(service, first).keys() == queried
    service.assert_delivered(second, contents(service, first), BOB)
    assert service.transfer(second)["subject"].startswith("Once more: Reports of ")
    assert stack.airflow.xcom(DAILY, run_id, "report") == [BOB]

    stack.airflow.clear(DAILY, run_id, "deliver", "remind", "report")
    assert stack.airflow.finish(DAILY, run_id)["report"] == "success"
    assert service.sent() == [first, second]


def test_a_failed_branch_is_cleared_and_no_other_branch_is_sent_again(stack: JobsStack, service: Sandbox) -> None:
    with closing(stack.database.connect(autocommit=True)) as database:
        database.execute(ADD)
        for number, branch in enumerate(BRANCHES):
            sold = [number, "2026-01", branch, 100 * number, 0 if branch == "south" else 1]
            database.execute("INSERT INTO sold VALUES (%s, %s, %s, %s, %s)", sold)
            database.execute("INSERT INTO branch_contacts VALUES (%s, %s)", [branch, f"{branch}@example.com"])

        run_id = stack.airflow.trigger(BY_BRANCH, {})
        states = stack.airflow.finish(BY_BRANCH, run_id)
        failed = f"deliver{BRANCHES.index('south')}"
        assert {task for task, state in states.items() if state != "success"} == {failed, "summary"}
        before = service.sent()

        database.execute("UPDATE sold SET days = 1")
    stack.airflow.clear(BY_BRANCH, run_id, ("deliver", BRANCHES.index("south")), "summary")
    assert {*stack.airflow.finish(BY_BRANCH, run_id).values()} == {"success"}

    assert service.sent()[:-1] == before
    subjects = sorted(service.transfer(each)["subject"] for each in service.sent())
    assert subjects == [f"Orders of 2026-01, branch {branch}" for branch in BRANCHES]
    for each in service.sent():
        branch = service.transfer(each)["subject"].rpartition(" ")[2]
        number = BRANCHES.index(branch)
        rows = f"id,month,branch,daily\r\n{number},2026-01,{branch},{100 * number}\r\n".encode()
        service.assert_delivered(each, {f"orders-2026-01-{branch}.csv": rows}, f"{branch}@example.com")
    assert stack.airflow.xcom(BY_BRANCH, run_id, "summary")["transfers"] == 5
