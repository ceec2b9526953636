"""What a later try concludes where a run's order, names, connection or beginning have changed since."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException, TaskDeferred
from outbound_transfer.delivery.draft_writer import DraftWriter
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol.errors import ServerFault
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support.connections import connection_json
from support.tasks import FakeTaskInstance, SimulatedClock, again, changed, without_credit

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
RECIPIENTS = ["ann@example.com"]


DOWN = {"kind": "error", "method": "GET", "path": "*", "status": 503}


def billed(sandbox: Sandbox) -> list[str]:
    return [row["transfer_id"] for row in sandbox.ledger() if row["kind"] == "billed"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.csv"
    path.write_bytes(b"content")
    return path


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


@pytest.mark.parametrize("steps", [False, True], ids=["one task", "three tasks"])
@pytest.mark.parametrize("shrinks", [False, True])
def test_an_item_that_comes_back_to_its_index_is_not_sent_again(connection, sandbox, file, steps, shrinks) -> None:
    run = Run(sandbox, file, ["A", "X"], steps=steps)
    with without_credit(sandbox):
        run.deliver(1)
    run.clear()
    run.items = ["X"] if shrinks else ["X", "A"]
    sent = run.deliver(0)
    run.clear()
    run.items = ["A", "X"]

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        run.deliver(1)

    assert billed(sandbox) == [sent]


def test_an_index_that_gets_the_item_of_another_for_its_retry_does_not_send_it_again(connection, sandbox, file) -> None:
    run = Run(sandbox, file, ["X", "Y"])
    sent = run.deliver(0)
    with without_credit(sandbox):
        run.deliver(1)
    run.items = ["Y", "X"]

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        run.deliver(1)

    assert billed(sandbox) == [sent]


@pytest.mark.parametrize("trouble", ["a file", "the send"])
def test_what_a_resend_overruled_is_asked_about_again_for_another_item(connection, sandbox, file, trouble) -> None:
    run = Run(sandbox, file, ["X", "Y"])
    before = [run.deliver(0), run.deliver(1)]
    run.clear()
    run.resend = before[0]
    sent = run.deliver(0)
    run.resend = before[1]
    if trouble == "the send":
        with without_credit(sandbox):
            run.deliver(1)
    else:
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(Exception, match=r"report\.csv"):
            run.deliver(1)
        file.write_bytes(content)
    run.items = ["Y", "X"]

    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        run.deliver(1)

    assert billed(sandbox) == [*before, sent]


def test_only_the_index_whose_transfer_is_named_sends_again(connection, sandbox, file) -> None:
    run = Run(sandbox, file, ["X", "Y"])
    before = [run.deliver(0), run.deliver(1)]
    run.resend = before[0]
    for _ in range(2):
        run.clear()
        assert [run.deliver(0), run.deliver(1)] == [billed(sandbox)[-1], before[1]]
    assert (billed(sandbox)[:2], len(billed(sandbox))) == (before, 3)


@pytest.mark.parametrize("steps", [False, True], ids=["one task", "three tasks"])
def test_one_resend_for_all_indexes_sends_the_file_of_one(connection, sandbox, file, steps) -> None:
    run = Run(sandbox, file, ["A", "B", "C"], steps=steps, is_alike=True)
    for item in run.items:
        run.file_of(item).write_text(item)
    before = [run.deliver(index) for index in range(3)]
    run.resend = before[2]
    for _ in range(2):
        run.clear()
        after = [run.deliver(index) for index in range(3)]
        assert after[:2] == before[:2]
        assert billed(sandbox) == [*before, after[2]]
    assert [each["name"] for each in sandbox.transfer(after[2])["files"]] == ["C.csv"]


def test_what_a_resend_names_hides_no_older_send_of_another_item(connection, sandbox, file, monkeypatch) -> None:
    run = Run(sandbox, file, ["A", "B"], is_alike=True)
    monkeypatch.setattr(run, "file_of", lambda item: file.parent / item / "report.csv")
    for item in run.items:
        run.file_of(item).parent.mkdir()
        run.file_of(item).write_text(item)
    before = [run.deliver(index) for index in range(2)]
    run.items, run.resend = ["B", "A"], before[1]
    run.clear()
    with pytest.raises(AirflowFailException, match=f"Transfer {before[0]} may be this very delivery"):
        run.deliver(1)
    assert billed(sandbox) == before


@pytest.mark.parametrize(
    ("steps", "is_lost"),
    [(False, True), (True, False), (True, True)],
    ids=["one task, lost memory", "three tasks", "three tasks, lost memory"],
)
def test_an_index_sends_once_its_user_names_all_that_may_be_its_delivery(
    connection, sandbox, file, steps, is_lost, monkeypatch
) -> None:
    run = Run(sandbox, file, ["A", "B"], steps=steps, is_alike=True)
    monkeypatch.setattr(run, "file_of", lambda item: file.parent / item / "report.csv")
    for item in run.items:
        run.file_of(item).parent.mkdir()
        run.file_of(item).write_text(item)
    before = [run.deliver(index) for index in range(2)]
    run.file_of("B").write_text("B, corrected")
    if is_lost:
        run._tasks[1, "CreateTransferOperator" if steps else "DeliverFilesOperator"].store.values.clear()
    run.clear()
    run.resend = [before[1]]
    with pytest.raises(AirflowFailException, match=f"add '{before[0]}' to resend"):
        run.deliver(1)
    run.resend.append(before[0])
    for _ in range(2):
        run.clear()
        assert run.deliver(1) == billed(sandbox)[2]
    assert len(billed(sandbox)) == 3


@pytest.mark.parametrize("steps", [False, True], ids=["one task", "three tasks"])
@pytest.mark.parametrize("is_sent", [False, True])
def test_a_moved_file_that_has_grown_is_not_sent_again(connection, sandbox, file, steps, is_sent) -> None:
    run = Run(sandbox, file, ["A", "B"], steps=steps, is_alike=True)
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
    assert billed(sandbox) == [*([run.resend] if run.resend else []), sent]


def test_a_resend_does_not_send_the_item_of_another_index(connection, sandbox, file) -> None:
    """It names what its index has sent, which has the item of another index now."""
    run = Run(sandbox, file, ["X", "Y"])
    before = [run.deliver(0), run.deliver(1)]
    run.clear()
    run.items, run.resend = ["Y", "X"], before[1]
    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        run.deliver(1)
    assert billed(sandbox) == before


def test_the_retry_of_a_resend_does_not_send_the_item_of_another_index(connection, sandbox, file) -> None:
    """Index 0 is cleared with ``resend``, and its automatic retry has the item of index 1."""
    run = Run(sandbox, file, ["X", "Y"])
    run.retries = 2
    before = [run.deliver(0), run.deliver(1)]
    run.clear()
    run.resend = before[1]
    sent = run.deliver(1)
    run.resend = before[0]

    def change() -> None:
        sandbox.clear_faults()
        run.items = ["Y", "X"]

    sandbox.plan_faults({**DOWN, "method": "POST", "path": "*/send"}, *[DOWN] * 40)
    run.before_retry = change
    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        run.deliver(0)
    assert billed(sandbox) == [*before, sent]


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

    assert billed(sandbox) == [sent]


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
    assert billed(sandbox) == sent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, of which the larger is attached first."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "large.csv").write_bytes(b"x" * 100)
    return tmp_path / "files"


def during_the_deferral(task: FakeTaskInstance, *changes: Callable[[], object]) -> None:
    fire, left = task._fire, list(changes)

    def fire_later(trigger: Any) -> Any:
        while left:
            left.pop(0)()
        return fire(trigger)

    task._fire = fire_later  # type: ignore[method-assign]


def test_a_resend_whose_draft_is_replaced_after_a_deferral_is_not_made_up_for(deliver, sandbox, folder) -> None:
    task = deliver(files=f"{folder}/*.csv", deferrable=True)
    first = task.run()["id"]
    (folder / "small.csv").write_bytes(b"y")
    sandbox.plan_faults({**LATER, "method": "POST", "path": "*/files", "skip": 1})
    during_the_deferral(task, (folder / "small.csv").unlink)
    with without_credit(sandbox):
        again(task, resend=first)

    assert again(task, resend=None)["id"] == first
    assert task.deferrals == 1


def test_what_another_index_sends_during_a_deferral_is_not_sent_again(deliver, sandbox, folder) -> None:
    one, other = (deliver(files=f"{folder}/*.csv", deferrable=True, subject=subject) for subject in "XA")
    one.map_index, other.map_index = 0, 1
    with without_credit(sandbox):
        other.run()
    (folder / "small.csv").write_bytes(b"y")
    sandbox.plan_faults({**LATER, "method": "POST", "path": "*/files", "skip": 1})
    during_the_deferral(other, (folder / "small.csv").unlink, one.run)

    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        again(other, subject="X")

    assert len(billed(sandbox)) == other.deferrals == 1


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
    assert billed(sandbox) == [sent]


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
    assert billed(sandbox) == [sent]


def test_a_task_instance_that_is_made_anew_with_the_input_of_another_asks(deliver, sandbox) -> None:
    task, other = deliver(subject="X"), deliver(subject="Y")
    with without_credit(sandbox):
        task.run()
    sent = other.run()["id"]
    task.delete()

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        again(task, subject="Y")
    assert billed(sandbox) == [sent]


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


def test_alike_items_of_other_files_are_sent_after_a_failure(connection, sandbox, file) -> None:
    run = Run(sandbox, file, ["Report", "Report"])
    first = run.deliver(0)
    file.write_bytes(b"of another day")
    with without_credit(sandbox):
        run.deliver(1)
    run.clear()

    second = run.deliver(1)
    assert billed(sandbox) == [first, second]


def test_an_item_that_another_index_sends_meanwhile_is_not_sent_again(
    connection, sandbox, elsewhere, file, monkeypatch
) -> None:
    run = Run(sandbox, file, ["A", "X"])
    with without_credit(sandbox):
        run.deliver(0)
    run.items[0] = "X"
    run.clear()
    create, sent = DraftWriter.create, []

    def create_beside_the_other(self: DraftWriter, *arguments: Any) -> Any:
        monkeypatch.setattr(DraftWriter, "create", create)
        run.clear_number = 0  # the other index was not cleared, and is in its first try
        sent.append(run.deliver(1))
        return create(self, *arguments)

    monkeypatch.setattr(DraftWriter, "create", create_beside_the_other)
    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        run.deliver(0)

    assert billed(sandbox) == sent
    assert len(sent) == 1

    # Nor where the connection leads later, to an account that cannot say what was sent in the other.
    run.clear_number = 1
    run.clear()
    monkeypatch.setenv(CONNECTION, connection_json(elsewhere))
    with pytest.raises(AirflowFailException, match="cannot be listed now"):
        run.deliver(0)

    assert (billed(sandbox), billed(elsewhere)) == (sent, [])


# A resend that was not fulfilled.


@pytest.fixture
def deliver(connection, sandbox, file) -> Callable[..., FakeTaskInstance]:
    time = SimulatedClock(sandbox)

    def make(**options: Any) -> FakeTaskInstance:
        arguments = {"subject": "Report", "recipients": RECIPIENTS, "files": [str(file)]}
        return FakeTaskInstance(lambda: DeliverFilesOperator(task_id="task", **{**arguments, **options}), time)

    return make


def test_what_was_sent_is_returned_once_a_withdrawn_resend_is_said_to_be_unsent(deliver, sandbox) -> None:
    task = deliver()
    first = task.run()["id"]
    sandbox.plan_faults(*[{**DOWN, "method": "POST", "path": "*/send"}] * 40)
    with pytest.raises(ServerFault):
        again(task, resend=first)
    draft = task.xcoms["transfer_id"]
    sandbox.clear_faults()
    sandbox.advance_clock(31 * 86_400)  # drafts live 30 days
    with pytest.raises(AirflowFailException, match=f"Transfer {draft} .* may have been.*add '{draft}' to resend"):
        again(task, resend=None)

    for _ in range(2):
        assert again(task, resend=draft)["id"] == first
    assert again(task, resend=None)["id"] == first
    assert billed(sandbox) == [first]
    assert again(task, resend=[first, draft])["id"] == billed(sandbox)[1]


@pytest.mark.parametrize("path", ["/v1/transfers", "*/send"], ids=["create", "send"])
def test_a_resend_that_failed_is_not_made_up_for_when_it_is_no_longer_asked_for(deliver, sandbox, path) -> None:
    task = deliver()
    first = task.run()["id"]
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": path, "status": 403, "code": "no_credit"})
    with pytest.raises(AirflowFailException, match="no_credit") as failed:
        again(task, resend=first)
    assert first not in str(failed.value)

    assert again(task, resend=None)["id"] == first
    assert again(task, resend=None)["id"] == first
    assert billed(sandbox) == [first]

    second = again(task, resend=first)["id"]
    assert again(task, resend=None)["id"] == second
    assert billed(sandbox) == [first, second]


def test_a_resend_is_tried_again_by_its_own_retries(deliver, sandbox) -> None:
    task = deliver()
    first = newest = task.run()["id"]
    for times in (2, 3):
        sandbox.plan_faults(*[{"kind": "error", "method": "POST", "path": "/v1/transfers", "status": 503}] * 20)
        task.retries = 1
        with pytest.raises(Exception, match="503"):
            again(task, resend=newest)
        sandbox.clear_faults()
        task.try_number += 1
        newest = task.run_once()["id"]
        assert len(billed(sandbox)) == times
    assert billed(sandbox)[0] == first


# Where the service that is asked cannot know.


@pytest.fixture
def elsewhere() -> Iterator[Sandbox]:
    with running_sandbox() as sandbox:
        yield sandbox


def test_a_gap_and_another_account_send_nothing(deliver, sandbox, elsewhere, monkeypatch) -> None:
    task = deliver()
    with without_credit(sandbox):
        task.run()
    sent = again(task)["id"]
    del task.store.values["outbound_transfer_delivery_try_2"]
    monkeypatch.setenv(CONNECTION, connection_json(elsewhere))

    with pytest.raises(AirflowFailException, match="(cannot be listed now|leads to)"):
        again(task)

    assert (billed(sandbox), billed(elsewhere)) == ([sent], [])


def test_a_gap_and_another_users_key_send_nothing(deliver, sandbox, monkeypatch) -> None:
    task = deliver()
    with without_credit(sandbox):
        task.run()
    sent = again(task)["id"]
    del task.store.values["outbound_transfer_delivery_try_2"]
    connection = json.loads(connection_json(sandbox)) | {"password": sandbox.new_key("bob@example.com")}
    monkeypatch.setenv(CONNECTION, json.dumps(connection))

    with pytest.raises(AirflowFailException, match="cannot be listed now"):
        again(task)

    assert billed(sandbox) == [sent]


def test_an_index_whose_connection_leads_elsewhere_does_not_send_what_was_sent_there(
    connection, sandbox, elsewhere, file, monkeypatch
) -> None:
    run = Run(sandbox, file, ["X", "A"])
    sent = run.deliver(0)
    with without_credit(sandbox):
        run.deliver(1)
    run.clear()
    run.items = ["A", "X"]
    monkeypatch.setenv(CONNECTION, connection_json(elsewhere))

    with pytest.raises(AirflowFailException, match="cannot be listed now"):
        run.deliver(1)

    assert (billed(sandbox), billed(elsewhere)) == ([sent], [])


def test_what_was_not_sent_elsewhere_is_sent_here_once_its_user_names_that_account(
    connection, sandbox, elsewhere, file, monkeypatch
) -> None:
    run = Run(sandbox, file, ["X", "A"])
    with without_credit(sandbox):
        run.deliver(1)
    run.clear()
    run.items = ["X", "B"]
    monkeypatch.setenv(CONNECTION, connection_json(elsewhere))
    account = sandbox.base_url.removeprefix("http://")
    with pytest.raises(AirflowFailException, match=f"cannot be listed now.*add '{account}' to resend"):
        run.deliver(1)

    run.resend = account
    sent = run.deliver(1)
    run.clear()
    assert (run.deliver(1), billed(sandbox), billed(elsewhere)) == (sent, [], [sent])


# The run's beginning, and a trigger that fails.


def test_a_run_that_was_queued_again_has_begun_when_it_was_due(deliver, sandbox, monkeypatch) -> None:
    sent = deliver().run()["id"]
    sandbox.advance_clock(7_200)
    renamed = deliver()
    renamed.other_tasks = 1
    context = renamed.context()
    due = context["dag_run"].run_after
    moved = SimpleNamespace(clear_number=0, run_after=due, start_date=due + timedelta(hours=2))
    monkeypatch.setattr(renamed, "context", lambda: context | {"dag_run": moved})

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        renamed.run()

    assert billed(sandbox) == [sent]


def test_a_trigger_that_fails_while_the_state_is_lost_does_not_make_it_a_first_try(deliver, sandbox) -> None:
    task = deliver(wait=True, deferrable=True, timeout=600)
    task.try_number = 1
    with pytest.raises(TaskDeferred):
        task._operator().execute(task.context())
    task.store.values.clear()

    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        task._operator().resume_execution("__fail__", {"error": "Trigger failure"}, task.context())

    assert len(billed(sandbox)) == 1


def test_an_automatic_retry_of_a_wait_is_no_clear_of_its_own(deliver, sandbox, file) -> None:
    task = deliver()
    task.retries = task.max_tries = 2
    sent = task.run()["id"]
    file.write_bytes(b"rotated")
    task.clear_number += 1  # of another task of the run
    task.try_number += 1

    assert task.run_once()["id"] == sent
    assert billed(sandbox) == [sent]


def test_a_possible_send_that_a_failed_resend_overruled_is_asked_about_again(deliver, sandbox) -> None:
    task = deliver()
    first = task.run()["id"]
    task.store.values.clear()
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 403, "code": "no_credit"})
    with pytest.raises(AirflowFailException, match="no_credit"):
        again(task, resend=first)

    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"{first}.*may be this very delivery"):
            again(task, resend=None)
    assert billed(sandbox) == [first]

    second = again(task, resend=first)["id"]
    assert billed(sandbox) == [first, second]


def test_a_record_that_is_lost_while_its_try_is_deferred_is_missed_though_an_older_one_is_there(
    deliver, sandbox
) -> None:
    task = deliver(wait=True, deferrable=True, timeout=600)
    task.try_number = 1
    with without_credit(sandbox):
        task.run_once()
    make, task.make = task.make, lambda: changed(make(), {"message": "corrected"})
    task.try_number = 2
    with pytest.raises(TaskDeferred):
        task._operator().execute(task.context())
    del task.store.values["outbound_transfer_delivery_try_2"]

    with pytest.raises(AirflowFailException, match="may be this very delivery"):
        task._operator().resume_execution("__fail__", {"error": "Trigger failure"}, task.context())

    assert len(billed(sandbox)) == 1


# A retry, a resend and a lost record.


def test_a_task_that_gets_the_input_of_another_for_its_retry_does_not_send_it_again(deliver, sandbox) -> None:
    task, other = deliver(), deliver()
    task.make = lambda make=task.make: changed(make(), {"subject": "Other"})
    task.retries = task.max_tries = 1
    with without_credit(sandbox):
        task.run()
    sent = other.run()["id"]
    task.make = lambda make=task.make: changed(make(), {"subject": "Report"})

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        task.run()

    assert billed(sandbox) == [sent]


@pytest.mark.parametrize("is_all", [False, True], ids=["the newest record", "all records"])
def test_a_resend_whose_record_is_lost_while_it_waits_is_not_made_again(deliver, sandbox, is_all) -> None:
    task = deliver(wait=True, deferrable=True, timeout=600)
    make = task.make
    for number in (1, 2):
        if number == 2:
            resend = {"resend": billed(sandbox)[0]}
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

    assert len(billed(sandbox)) == 2


@pytest.mark.parametrize("has_failed_before", [False, True])
def test_a_resend_whose_newest_memory_is_lost_is_not_made_again(deliver, sandbox, has_failed_before) -> None:
    task = deliver()
    first = task.run()["id"]
    if has_failed_before:
        with without_credit(sandbox):
            again(task, resend=first)
    second = again(task, resend=first)["id"]
    del task.store.values[f"outbound_transfer_delivery_try_{task.try_number}"]

    with pytest.raises(AirflowFailException, match=f"Transfer {second} may be this very delivery"):
        again(task)
    assert billed(sandbox) == [first, second]


def test_an_item_is_found_that_another_index_sent_before_the_run_was_queued_again(connection, sandbox, file) -> None:
    run = Run(sandbox, file, ["X", "A"])
    with without_credit(sandbox):
        run.deliver(0)
    run.items = ["A", "X"]
    sent = run.deliver(1)
    run.items = ["X", "A"]
    sandbox.advance_clock(600)
    task = run._tasks[0, "DeliverFilesOperator"]
    task.restarted = task.start_date + timedelta(seconds=600)

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        run.deliver(0)

    assert billed(sandbox) == [sent]


def test_a_task_that_has_its_old_name_again_does_not_send_elsewhere_what_its_other_name_sent(
    deliver, sandbox, elsewhere, monkeypatch
) -> None:
    task, other_name = deliver(), deliver()
    with without_credit(sandbox):
        task.run()
    sent = other_name.run()["id"]
    task.other_tasks = 1
    monkeypatch.setenv(CONNECTION, connection_json(elsewhere))

    with pytest.raises(AirflowFailException, match="cannot be listed now"):
        again(task)

    assert (billed(sandbox), billed(elsewhere)) == ([sent], [])
