"""Items of a mapped task that change places between clears, and task instances that are made anew: all sent once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException
from support.tasks import FakeTaskInstance, SimulatedClock, again, at_the_next_wait, without_credit

RECIPIENTS = ["ann@example.com"]
DOWN = {"kind": "error", "method": "GET", "path": "*", "status": 503}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.csv"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def deliver(task, file) -> Callable[..., FakeTaskInstance]:
    arguments = {"subject": "Report", "recipients": RECIPIENTS, "files": [str(file)]}
    return lambda **options: task(DeliverFilesOperator, **{**arguments, **options})


class Run:
    """A run whose task is mapped; each index is delivered in one task, or in three.

    :param is_alike: the items differ in their file alone; otherwise in their subject alone.
    :ivar task: the one that ran last.
    """

    task: FakeTaskInstance

    def __init__(
        self, sandbox: Sandbox, file: Path, items: Sequence[str], *, steps: bool = False, is_alike: bool = False
    ) -> None:
        self._is_alike = is_alike
        self.items, self._time, self._file, self._steps = list(items), SimulatedClock(sandbox), file, steps
        self.clear_number, self.retries, self.deferrable = 0, 0, False
        self.before_retry: Callable[[], object] = lambda: None
        self.at_wait: Callable[[], object] | None = None
        self._tasks: dict[tuple[int, str], FakeTaskInstance] = {}

    def deliver(self, index: int) -> str:
        """Run an index to its end; return the id of its transfer."""
        if not self._steps:
            task = self._task(index, DeliverFilesOperator, subject=self._item, files=self._files)
            return str(task.run()["id"])
        create = self._task(index, CreateTransferOperator, subject=self._item)
        made = create.run()
        attach = self._task(index, AttachFilesOperator, transfer_id=made, files=self._files)
        send = self._task(index, SendTransferOperator, transfer_id=made)
        send.upstream = attach.upstream = {"create": create}
        attach.run()
        return str(send.run()["id"])

    def clear(self) -> None:
        self.clear_number += 1
        for task in self._tasks.values():
            task.clear()

    def file_of(self, item: str) -> Path:
        return self._file.with_name(f"{item}.csv") if self._is_alike else self._file

    def _item(self, index: int) -> str:
        return "Report" if self._is_alike else self.items[index]

    def _files(self, index: int) -> list[str]:
        return [str(self.file_of(self.items[index]))]

    def _task(self, index: int, operator: type, **arguments: Any) -> FakeTaskInstance:
        def make() -> Any:
            values = {key: value(index) if callable(value) else value for key, value in arguments.items()}
            recipients = {"recipients": RECIPIENTS} if "subject" in values else {}
            return operator(task_id=name, deferrable=self.deferrable, **values, **recipients)

        name = operator.__name__
        fresh = FakeTaskInstance(make, self._time, self.retries, task_id=name)
        task = self._tasks.setdefault((index, name), fresh)
        task.make, task.map_index, task.clear_number = make, index, self.clear_number
        task.before_retry, self.task = self.before_retry, task
        if self.at_wait:
            at_the_next_wait(task.time, self.at_wait)
            self.at_wait = None
        return task


@pytest.mark.parametrize("shrinks", [False, True])
def test_an_item_that_comes_back_to_its_index_is_not_sent_again(connection, sandbox, file, shrinks) -> None:
    run = Run(sandbox, file, ["A", "X"], steps=True)
    with without_credit(sandbox):
        run.deliver(1)
    run.clear()
    run.items = ["X"] if shrinks else ["X", "A"]
    sent = run.deliver(0)
    run.clear()
    run.items = ["A", "X"]

    with pytest.raises(AirflowFailException, match=sent):
        run.deliver(1)

    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("steps", [False, True], ids=["one task", "three tasks"])
def test_an_item_that_moves_to_an_index_of_its_own_is_not_sent_again(connection, sandbox, file, steps) -> None:
    run = Run(sandbox, file, ["A"], steps=steps)
    sent = run.deliver(0)
    run.clear()
    run.items = ["new", "A"]

    with pytest.raises(AirflowFailException, match=sent):
        run.deliver(1)

    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("deferrable", [False, True], ids=["held", "deferrable"])
def test_an_item_that_another_index_sends_while_this_one_waits_for_a_slot_is_not_sent_again(
    connection, sandbox, file, deferrable
) -> None:
    run = Run(sandbox, file, ["new", "X"])
    run.clear_number, run.deferrable = 1, deferrable
    sandbox.patch_account(outstanding_transfer_limit=0)
    sent = []

    def send_at_the_other() -> None:
        sandbox.patch_account(outstanding_transfer_limit=9)
        run.items[0] = "X"
        sent.append(run.deliver(0))

    run.at_wait = send_at_the_other
    with pytest.raises(AirflowFailException, match="tr_"):
        run.deliver(1)
    assert len(sent) == 1
    assert sandbox.sent() == sent


@pytest.mark.parametrize("lost", [0, 2], ids=["", "after tries that stored nothing"])
def test_a_task_instance_that_is_made_anew_does_not_send_again(deliver, sandbox, lost) -> None:
    """Its tries count from 1 again; it returns what was sent, at the latest once they are as many as before."""
    task = deliver()
    sandbox.plan_faults(*[{**DOWN, "method": "POST", "path": "/v1/transfers"}] * 30)
    with pytest.raises(Exception, match="503"):
        task.run()
    sandbox.clear_faults()
    task.try_number += lost
    sent = again(task)["id"]
    tries = task.try_number
    task.delete()

    for number in range(1, tries + 1):
        try:
            assert again(task)["id"] == sent
        except Exception as refused:
            assert number < tries
            assert sent in str(refused)
    assert sandbox.sent() == [sent]


def test_a_task_that_has_its_old_name_again_does_not_send_elsewhere_what_its_other_name_sent(
    deliver, sandbox, elsewhere
) -> None:
    task, other_name = deliver(), deliver()
    with without_credit(sandbox):
        task.run()
    sent = other_name.run()["id"]
    task.other_tasks = 1
    other = elsewhere()

    with pytest.raises(AirflowFailException, match="sent"):
        again(task)

    assert (sandbox.sent(), other.sent()) == ([sent], [])
