"""What a later try concludes: what the model does not play.

It has no mapped tasks that share a draft, no deferral of an index, no texts, and no task instance whose memory outlives
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException, TaskDeferred
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import FakeTaskInstance, SimulatedClock, again, changed, without_credit

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
        self.resend: str | list[str] | None = None
        self.before_retry: Callable[[], object] = lambda: None
        self.before_resume: Callable[[], object] | None = None
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
            values = {name: value(index) if callable(value) else value for name, value in arguments.items()}
            recipients = {"recipients": RECIPIENTS} if "subject" in values else {}
            resend = {"resend": self.resend} if self.resend and "subject" in values else {}
            return operator(task_id="task", deferrable=self.deferrable, **values, **recipients, **resend)

        task = self._tasks.setdefault((index, operator.__name__), FakeTaskInstance(make, self._time, self.retries))
        task.make, task.map_index, task.clear_number = make, index, self.clear_number
        task.before_retry, self.task = self.before_retry, task
        if self.before_resume:
            during_the_deferral(task, self.before_resume)
            self.before_resume = None
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

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        run.deliver(1)

    assert sandbox.sent() == [sent]


def test_one_resend_for_all_indexes_sends_the_file_of_one(connection, sandbox, file) -> None:
    run = Run(sandbox, file, ["A", "B", "C"], steps=True, is_alike=True)
    for item in run.items:
        run.file_of(item).write_text(item)
    before = [run.deliver(index) for index in range(3)]
    run.resend = before[2]
    for _ in range(2):
        run.clear()
        after = [run.deliver(index) for index in range(3)]
        assert after[:2] == before[:2]
        assert sandbox.sent() == [*before, after[2]]
    assert [each["name"] for each in sandbox.transfer(after[2])["files"]] == ["C.csv"]


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "lost memory"])
def test_an_index_sends_once_its_user_names_all_that_may_be_its_delivery(
    connection, sandbox, file, is_lost, monkeypatch
) -> None:
    run = Run(sandbox, file, ["A", "B"], steps=True, is_alike=True)
    monkeypatch.setattr(run, "file_of", lambda item: file.parent / item / "report.csv")
    for item in run.items:
        run.file_of(item).parent.mkdir()
        run.file_of(item).write_text(item)
    before = [run.deliver(index) for index in range(2)]
    run.file_of("B").write_text("B, corrected")
    if is_lost:
        run._tasks[1, "CreateTransferOperator"].store.values.clear()
    run.clear()
    run.resend = [before[1]]
    with pytest.raises(AirflowFailException, match=f"add '{before[0]}' to resend"):
        run.deliver(1)
    run.resend.append(before[0])
    for _ in range(2):
        run.clear()
        assert run.deliver(1) == sandbox.sent()[2]
    assert len(sandbox.sent()) == 3


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_moved_file_that_has_grown_is_not_sent_again(connection, sandbox, file, is_sent) -> None:
    run = Run(sandbox, file, ["A", "B"], steps=True, is_alike=True)
    for item in run.items:
        run.file_of(item).write_text(item)
    if is_sent:
        run.resend = run.deliver(0)
    else:
        with without_credit(sandbox):
            run.deliver(0)
    sent = run.deliver(1)
    run.file_of("B").write_text("B has grown")
    run.items = ["B", "A"]
    run.clear()
    with pytest.raises(AirflowFailException, match=f"{sent} may be this very delivery"):
        run.deliver(0)
    assert sandbox.sent() == [*([run.resend] if run.resend else []), sent]


def test_a_resend_that_fails_before_it_creates_anything_does_not_doubt_what_was_sent(deliver, sandbox, file) -> None:
    task = deliver()
    sent = task.run()["id"]
    file.unlink()
    with pytest.raises(Exception, match=r"report\.csv is not there") as failed:
        again(task, resend=sent)
    assert sent not in str(failed.value)


# What a try knew before it was deferred.

LATER = {"kind": "error", "status": 429, "code": "rate_limited", "headers": {"Retry-After": "30"}}


@pytest.mark.parametrize("steps", [False, True], ids=["one task", "three tasks"])
def test_a_first_try_of_a_cleared_run_asks_after_its_deferral_too(connection, sandbox, file, steps) -> None:
    run = Run(sandbox, file, ["A"], steps=steps)
    run.deferrable = True
    sent = run.deliver(0)
    run.clear()
    run.items = ["new", "A"]
    sandbox.plan_faults({**LATER, "method": "GET", "path": "/v1/transfers*", "skip": int(steps)})

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        run.deliver(1)

    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("path", ["/v1/transfers", "*/files"])
def test_a_question_of_a_first_try_is_not_narrowed_by_its_deferral(connection, sandbox, file, path) -> None:
    """Meanwhile another index sends the item, and then its file grows."""
    run = Run(sandbox, file, ["new", "X"])
    run.clear_number, run.deferrable = 1, True
    sandbox.plan_faults({**LATER, "method": "POST", "path": path})
    sent = []

    def send_at_the_other() -> None:
        run.items[0] = "X"
        sent.append(run.deliver(0))
        file.write_bytes(b"more content")

    run.before_resume = send_at_the_other
    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        run.deliver(1)
    assert sandbox.sent() == sent


def during_the_deferral(task: FakeTaskInstance, change: Callable[[], object]) -> None:
    fire, left = task._fire, [change]

    def fire_later(trigger: Any) -> Any:
        while left:
            left.pop()()
        return fire(trigger)

    task._fire = fire_later  # type: ignore[method-assign]


@pytest.mark.parametrize("lost", [0, 2], ids=["", "after tries that stored nothing"])
def test_a_task_instance_that_is_made_anew_does_not_send_again(deliver, sandbox, lost) -> None:
    """Its first try left a record of its own, without a draft."""
    task, last = deliver(), 2 + lost
    sandbox.plan_faults(*[{**DOWN, "method": "POST", "path": "/v1/transfers"}] * 30)
    with pytest.raises(Exception, match="503"):
        task.run()
    sandbox.clear_faults()
    task.try_number += lost
    sent = again(task)["id"]
    task.delete()

    for number in range(1, last):
        with pytest.raises(
            Exception, match=f"This is try {number} of the task, and try {last} has begun, and sent transfer {sent}"
        ):
            again(task)
    assert again(task)["id"] == sent
    assert sandbox.sent() == [sent]


@pytest.mark.parametrize("tries", [1, 2])
def test_a_number_that_has_outlived_the_record_of_its_try_is_evidence(deliver, sandbox, tries) -> None:
    """The newest try has sent; its record is lost, and then its task instance is made anew."""
    task = deliver()
    if tries == 2:
        sandbox.plan_faults(*[{**DOWN, "method": "POST", "path": "/v1/transfers"}] * 30)
        with pytest.raises(Exception, match="503"):
            task.run()
        sandbox.clear_faults()
    sent = again(task)["id"] if tries == 2 else task.run()["id"]
    del task.store.values[f"outbound_transfer_delivery_try_{tries}"]
    task.delete()
    for _ in range(tries - 1):
        with pytest.raises(Exception, match="deleted and created again"):
            again(task)

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        again(task)
    assert sandbox.sent() == [sent]


def test_a_task_instance_that_is_made_anew_attaches_nothing_to_what_another_has_attached(
    connection, sandbox, file
) -> None:
    time = SimulatedClock(sandbox)
    create = FakeTaskInstance(
        lambda: CreateTransferOperator(task_id="create", subject="Report", recipients=RECIPIENTS), time
    )
    draft = create.run()
    attach = FakeTaskInstance(
        lambda: AttachFilesOperator(task_id="attach", transfer_id=draft, files=["/nowhere.csv"]), time
    )
    with pytest.raises(Exception, match="nowhere"):
        attach.run()
    again(attach, files=[str(file)])
    attach.delete()

    with pytest.raises(Exception, match="deleted and created again"):
        attach.run()


@pytest.mark.parametrize("is_all", [False, True], ids=["the newest record", "all records"])
def test_a_resend_whose_record_is_lost_while_it_waits_is_not_made_again(deliver, sandbox, is_all) -> None:
    task = deliver(wait=True, deferrable=True, timeout=600)
    make = task.make
    for number in (1, 2):
        if number == 2:
            resend = {"resend": sandbox.sent()[0]}
            task.make = lambda resend=resend: changed(make(), resend)
            task.clear()
        task.try_number = number
        with pytest.raises(TaskDeferred):
            task._operator().execute(task.context())
    lost = list(task.store.values) if is_all else ["outbound_transfer_delivery_try_2"]
    for key in lost:
        del task.store.values[key]

    with pytest.raises(AirflowFailException, match="(may be|may have sent) this very delivery"):
        task._operator().resume_execution("__fail__", {"error": "Trigger failure"}, task.context())

    assert len(sandbox.sent()) == 2


def test_a_task_that_has_its_old_name_again_does_not_send_elsewhere_what_its_other_name_sent(
    deliver, sandbox, elsewhere
) -> None:
    task, other_name = deliver(), deliver()
    with without_credit(sandbox):
        task.run()
    sent = other_name.run()["id"]
    task.other_tasks = 1
    other = elsewhere()

    with pytest.raises(AirflowFailException, match="cannot be listed now"):
        again(task)

    assert (sandbox.sent(), other.sent()) == ([sent], [])
