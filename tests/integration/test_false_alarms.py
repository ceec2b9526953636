"""What is no second send: the like of another run, and a delivery whose earlier tries came to nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException
from support.calls import SEND, ProcessCrashed, dying_after
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

ARGUMENTS: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"]}
#: Seconds from one run to the next: less than the clocks may differ.
PERIOD = 1_800
NO_CREDIT = {"kind": "error", "method": "POST", "path": "*/send", "status": 403, "code": "no_credit"}


class Dag:
    """The runs of a DAG that sends the like each time, to the same people under the same name."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self._folder, self._time = sandbox, folder, SimulatedClock(sandbox)
        self._runs: list[FakeTaskInstance] = []

    def file(self, content: bytes) -> list[str]:
        path = self._folder / str(len(list(self._folder.iterdir()))) / "report.csv"
        path.parent.mkdir()
        path.write_bytes(content)
        return [str(path)]

    def run(self, **arguments: Any) -> FakeTaskInstance:
        """The task of the next run, which is due a period after the last."""
        files = self.file(b"of run %d" % len(self._runs))
        task = self.task(DeliverFilesOperator, task_id="task", **{"files": files, **ARGUMENTS, **arguments})
        if self._runs:
            self.sandbox.advance_clock(PERIOD)
            task.start_date = self._runs[-1].start_date + timedelta(seconds=PERIOD)
        task.run_id = f"run {len(self._runs)}"
        task.of_other_runs = self._runs
        self._runs.append(task)
        return task

    def task(self, operator: type, **arguments: Any) -> FakeTaskInstance:
        arguments["_airflow_from_mapped"] = True  # input is checked when it runs
        return task_instance(operator, self._time, **arguments)

    def billed(self) -> int:
        return len(self.sandbox.sent())


@pytest.fixture
def dag(connection: str, sandbox: Sandbox, tmp_path: Path) -> Dag:
    return Dag(sandbox, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"message": "x" * 2_001},
        {"recipients": ["ann@"]},
        {"files": ["/nowhere/report.csv"]},
        {"message": "of no credit"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_input_is_corrected_after_the_next_run_has_delivered(dag, sandbox, wrong) -> None:
    first = dag.run(**wrong)
    sandbox.plan_faults(NO_CREDIT)
    with pytest.raises(Exception, match=r"no_credit|nothing was created|is not there"):
        first.run()
    sandbox.clear_faults()
    second = dag.run().run()

    sent = again(first, **(ARGUMENTS | {"message": None, "files": dag.file(b"corrected")}))
    assert sent["id"] != second["id"]
    assert dag.billed() == 2


#: Why a delivery might look for what was sent before.
ASKED = {
    "an index of a run that was cleared": {"map_index": 0, "clear_number": 1},
    "a try that never began": {"try_number": 1, "max_tries": 2},
    "a task of the run that was removed": {"other_tasks": 1},
}


@pytest.mark.parametrize("why", ASKED)
def test_what_another_run_has_sent_is_another_delivery(dag, why) -> None:
    first, second = dag.run(), dag.run()
    first.map_index = ASKED[why].get("map_index", -1)
    for name, value in ASKED[why].items():
        setattr(second, name, value)
    first.run()
    second.run()
    assert dag.billed() == 2


def test_another_run_was_cleared_since(dag) -> None:
    other = dag.run()
    other.run()
    with pytest.raises(AirflowFailException, match="already delivered"):
        again(other, subject="Another")
    task = dag.run()
    task.other_tasks = 1
    task.run()
    assert dag.billed() == 2


def test_the_send_of_another_run_died_after_it(dag, sandbox) -> None:
    def draft() -> str:
        made: str = dag.task(CreateTransferOperator, **ARGUMENTS).run()
        dag.task(AttachFilesOperator, transfer_id=made, files=dag.file(b"x")).run()
        return made

    other = dag.task(SendTransferOperator, transfer_id=draft())
    other.run_id = "other"
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        other.run()
    sandbox.advance_clock(PERIOD)
    task = dag.task(SendTransferOperator, transfer_id=draft())
    task.start_date = other.start_date + timedelta(seconds=PERIOD)
    task.of_other_runs, task.try_number, task.max_tries = [other], 1, 2
    task.run()
    assert dag.billed() == 2


def test_a_draft_in_doubt_that_the_task_has_discarded_was_not_sent(dag, sandbox) -> None:
    """The service discards drafts only."""
    task = dag.run()
    sandbox.plan_faults(*[{"kind": "error", "method": "POST", "path": "*/send", "status": 503}] * 40)
    with pytest.raises(Exception, match="sent"):
        task.run()
    sandbox.clear_faults()

    assert [again(task, subject="Other")["id"]] == sandbox.sent()
    assert sandbox.transfer(*sandbox.sent())["subject"] == "Other"


def test_what_another_index_has_sent_to_some_of_the_same_people_is_another_item(dag) -> None:
    """A try has begun of which nothing is remembered."""
    run, items = dag.run(), [["ann@example.com", "bob@example.com"], ["ann@example.com", "carl@example.com"]]
    files = dag.file(b"for all")
    for index, recipients in enumerate(items):
        task = dag.task(DeliverFilesOperator, task_id="task", **{**ARGUMENTS, "files": files, "recipients": recipients})
        task.start_date, task.map_index, task.other_indexes = run.start_date, index, 1
        task.try_number, task.max_tries = index, index
        task.run()
    assert dag.billed() == 2
