"""A reminder that goes to those who have not picked up, and a connection that rehearses, in a real Airflow."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.repository import REPOSITORY

pytestmark = pytest.mark.e2e

ANN, BOB = "ann@example.com", "bob@example.com"
#: Seconds after which a reminder is due: an Airflow on a busy machine shows a test the transfer before.
WAIT = "45"
REHEARSED = """
from airflow.sdk import DAG, task
from outbound_transfer.operators.redelivery import remind_recipients
from outbound_transfer.operators.transfer import DeliverFilesOperator

with DAG("rehearsed", schedule=None):
    deliver = DeliverFilesOperator(
        task_id="deliver",
        outbound_transfer_conn_id="rehearsing",
        files={files!r},
        subject="Dress rehearsal",
        recipients={recipients!r},
        wait=True,
        deferrable=True,
    )

    @task
    def follow(transfer): ...

    follow(deliver.output) >> remind_recipients(deliver, task_id="remind")
"""


class TrapStack(ManySandboxesStack):
    """With the example of reminders and the DAG above, a ledger, and two connections to one service."""

    def start(self) -> None:
        dags = self.folder / "dags"
        dags.mkdir()
        shutil.copy(REPOSITORY / "dags" / "remind_recipients.py", dags)
        (dags / "rehearsed.py").write_text(REHEARSED.format(files=self.pattern, recipients=[ANN, BOB]))
        super().start()

    @property
    def pattern(self) -> str:
        return str(self.folder / "outbox" / "*.csv")

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID": "outbound_transfer_warehouse",
            "OUTBOUND_TRANSFER_POKE_INTERVAL": "1",
            "OUTBOUND_TRANSFER_TIMEOUT": WAIT,
        }

    def connections(self) -> dict[str, str]:
        warehouse = {"conn_type": "sqlite", "host": str(self.warehouse)}
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection(),
            "AIRFLOW_CONN_REHEARSING": self.sandboxes[0].airflow_connection(rehearse=True),
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE": json.dumps(warehouse),
        }

    def finish(self, dag_id: str, run_id: str) -> tuple[str, dict[str, str]]:
        """The states of a run that has ended, and of its tasks."""
        run = until(lambda: self._ended(dag_id, run_id), patience=300)
        return run["state"], {task["task_id"]: task["state"] for task in self.airflow.tasks(dag_id, run_id)}

    def _ended(self, dag_id: str, run_id: str) -> Any:
        run = self.airflow.call("GET", f"dags/{dag_id}/dagRuns/{run_id}")
        return run if run["state"] in ("success", "failed") else None

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """What a task's log says. Why a task is skipped is beside the text of its line."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1"
        lines = self.airflow.call("GET", path, full_content=True)["content"]
        return "\n".join(f"{line['event']} {line.get('reason', '')}" for line in lines)


def until(done: Callable[[], Any], patience: float = 120) -> Any:
    """What ``done`` gives as soon as that is something."""
    end = time.monotonic() + patience
    while not (found := done()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrapStack]:
    with running_stack(tmp_path_factory.mktemp("traps") / "stack", Reporter(), 1, kind=TrapStack) as stack:
        stack.wait_for_dags(stack.airflow, "remind_recipients", "rehearsed")
        yield stack


@pytest.fixture
def service(stack: TrapStack) -> Sandbox:
    """Shared by the tests, each of which counts what was sent before it."""
    return stack.sandboxes[0]


@pytest.mark.parametrize("collects", [[ANN], [ANN, BOB]])
def test_who_has_not_picked_up_in_time_is_reminded_and_nobody_else(
    stack: TrapStack, service: Sandbox, collects: list[str]
) -> None:
    before = len(service.sent())
    conf = {"files": stack.pattern, "recipients": [ANN, BOB]}
    run_id = stack.airflow.trigger("remind_recipients", conf)
    (first,) = until(lambda: service.sent()[before:])
    for email in collects:
        service.pickup(first, email)

    state, tasks = stack.finish("remind_recipients", run_id)

    reminded = [email for email in (ANN, BOB) if email not in collects]
    assert state == "success"
    assert tasks == {
        "deliver": "success",
        "wait_for_pickup": "failed" if reminded else "success",
        "remind": "success" if reminded else "skipped",
        "report": "success",
    }
    assert stack.airflow.xcom("remind_recipients", run_id, "report") == reminded
    seconds = [service.transfer(each) for each in service.sent()[before + 1 :]]
    assert [[each["email"] for each in second["recipients"]] for second in seconds] == ([reminded] if reminded else [])
    assert {file["name"] for second in seconds for file in second["files"]} == (
        {file.name for file in stack.files} if reminded else set()
    )


def test_a_reminder_of_what_was_not_delivered_fails_and_so_does_the_run(stack: TrapStack, service: Sandbox) -> None:
    before = service.sent()
    run_id = stack.airflow.trigger("remind_recipients", {"files": stack.pattern, "recipients": ["nobody"]})

    state, tasks = stack.finish("remind_recipients", run_id)

    assert (state, tasks["deliver"], tasks["remind"]) == ("failed", "failed", "failed")
    assert service.sent() == before


def test_log_result_and_page_say_that_it_was_a_rehearsal_and_nothing_is_sent(
    stack: TrapStack, service: Sandbox
) -> None:
    before = service.ledger()
    run_id = stack.airflow.trigger("rehearsed", {})

    state, tasks = stack.finish("rehearsed", run_id)

    assert (state, tasks) == ("success", {"deliver": "skipped", "follow": "skipped", "remind": "skipped"})
    assert service.ledger() == before
    result = stack.airflow.xcom("rehearsed", run_id, "deliver")
    assert (result["status"], len(result["files"]), len(result["recipients"])) == ("rehearsed", len(stack.files), 2)
    log = stack.log("rehearsed", run_id, "deliver")
    assert "Rehearsal: nothing is sent to anybody" in log
    assert f"Rehearsal: transfer '{result['id']}' with 3 files would be sent to 2 recipients now" in log
    (row,) = [row for row in stack.airflow.deliveries_page().split("<tr ") if result["id"] in row]
    assert re.sub(r"<[^>]*>", " ", row.partition(">")[2]).split()[0].lower() == "rehearsed"
    attached = [call for call in service.requests() if call["method"] == "POST" and result["id"] in call["path"]]
    assert {call["path"].rpartition("/")[2] for call in attached} == {"files"}
    discarded = [call for call in service.requests() if call["method"] == "DELETE" and result["id"] in call["path"]]
    assert [call["status"] for call in discarded] == [204]
