"""Drafts that several tasks fill, approve, send and discard, in a real Airflow."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from airflow.utils.state import TaskInstanceState

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.repository import REPOSITORY
from support.timeouts import eventually

pytestmark = pytest.mark.e2e

APPROVAL = "deliver_with_approval"
ASKING = getattr(TaskInstanceState, "AWAITING_INPUT", TaskInstanceState.DEFERRED).value  # since Airflow 3.3

#: The example of docs/operators.md, whose sends free their workers while they wait for a slot of the account.
(IN_STEPS,) = re.findall(r"```python\n([^`]*\"in_steps\"[^`]*)```", (REPOSITORY / "docs" / "operators.md").read_text())
IN_STEPS = IN_STEPS.replace('task_id="send",', 'task_id="send", deferrable=True,')

STEPS = """
from airflow.sdk import DAG, task_group
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)

FILES = [{files!r} + name for name in ("a.csv", "b.csv", "c.csv")]


def create_draft(subject):
    return CreateTransferOperator(task_id="create", subject=subject, recipients=["ann@example.com"])


def send_or_discard(create, *attached):
    send = SendTransferOperator(task_id="send", transfer_id=create.output)
    discard = DiscardTransferOperator(task_id="discard", transfer_id=create.output)
    list(attached) >> send >> discard.as_teardown(setups=create)


@task_group
def mapped():
    create = create_draft("Mapped")
    attach = AttachFilesOperator.partial(task_id="attach", transfer_id=create.output).expand(files=FILES)
    send_or_discard(create, attach)


@task_group
def twice():
    create = create_draft("Twice")
    one = AttachFilesOperator(task_id="one", transfer_id=create.output, files=FILES[0])
    other = AttachFilesOperator(task_id="other", transfer_id=create.output, files=FILES[0])
    send_or_discard(create, one, other)


with DAG("steps", schedule=None):
    mapped()
    twice()
"""


class DraftsStack(ManySandboxesStack):
    """With the example of an approval, and the Dag of this test."""

    def start(self) -> None:
        self.dags = self.folder / "dags"
        self.dags.mkdir()
        shutil.copy(REPOSITORY / "dags" / f"{APPROVAL}.py", self.dags)
        (self.dags / "steps.py").write_text(STEPS.format(files=f"{self.folder / 'outbox'}/"))
        (self.dags / "in_steps.py").write_text(IN_STEPS)
        super().start()

    def settings(self) -> dict[str, str]:
        # Airflow may take a task for failed that is answered as soon as it waits: its retry takes the answer up.
        return super().settings() | {"AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1"}

    def connections(self) -> dict[str, str]:
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection(),
        }

    def ask(self) -> str:
        """Start a run that asks for approval, and wait until it does; return the run's id."""
        run_id = self.airflow.trigger(APPROVAL, {"files": str(self.folder / "outbox" / "*.csv")})
        self.wait_for(run_id, approve=ASKING)
        return run_id

    def wait_for(self, run_id: str, **wanted: str) -> None:
        eventually(lambda: wanted.items() <= self.airflow.states(APPROVAL, run_id).items(), interval=0.5)

    def options(self, run_id: str) -> list[str]:
        return list(self.airflow.call("GET", self._request(run_id))["options"])

    def answer(self, run_id: str, option: str) -> None:
        self.airflow.call("PATCH", self._request(run_id), {"chosen_options": [option], "params_input": {}})

    @staticmethod
    def _request(run_id: str) -> str:
        return f"dags/{APPROVAL}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DraftsStack]:
    with running_stack(tmp_path_factory.mktemp("drafts") / "stack", Reporter(), 1, kind=DraftsStack) as stack:
        stack.wait_for_dags(stack.airflow, APPROVAL, "steps", "in_steps")
        yield stack


@pytest.fixture
def service(stack: DraftsStack) -> Sandbox:
    stack.sandboxes[0].reset()
    stack.sandboxes[0].patch_account(requests_per_window=10**6)
    return stack.sandboxes[0]


def test_an_approved_draft_is_sent(stack: DraftsStack, service: Sandbox) -> None:
    run_id = stack.ask()
    service.assert_nothing_sent()
    page = stack.airflow.deliveries_page()
    assert "Waits for approval" in page
    assert re.search(r'href="\.\./dags/[^"]+/runs/[^"]+/required_actions"', page)

    approve, _ = stack.options(run_id)
    stack.answer(run_id, approve)

    assert {*stack.airflow.finish(APPROVAL, run_id).values()} == {"success"}
    sent = stack.airflow.xcom(APPROVAL, run_id, "send")
    assert (service.assert_sent_once(), sent["approval"]["by"] != "") == (sent["id"], True)
    assert approve.startswith(f"Approve {sent['id']} (")


def test_a_rejection_skips_the_send_and_the_draft_is_discarded(stack: DraftsStack, service: Sandbox) -> None:
    run_id = stack.ask()
    _, reject = stack.options(run_id)
    stack.answer(run_id, reject)

    states = stack.airflow.finish(APPROVAL, run_id)
    assert states == {"deliver": "success", "approve": "skipped", "send": "skipped", "discard": "success"}
    assert stack.airflow.xcom(APPROVAL, run_id, "discard") is True
    service.assert_nothing_sent()


def test_a_clear_of_the_approval_asks_again(stack: DraftsStack, service: Sandbox) -> None:
    run_id = stack.ask()
    stack.airflow.clear(APPROVAL, run_id, "approve")
    eventually(lambda: stack.airflow.states(APPROVAL, run_id)["approve"] != ASKING, interval=0.1)
    stack.wait_for(run_id, approve=ASKING)
    stack.answer(run_id, stack.options(run_id)[0])
    assert {*stack.airflow.finish(APPROVAL, run_id).values()} == {"success"}
    service.assert_sent_once()


def test_an_old_button_approves_no_new_draft(stack: DraftsStack, service: Sandbox) -> None:
    """Airflow up to 3.3 goes on showing the first request of a task."""
    run_id = stack.ask()
    before = stack.options(run_id)
    stack.airflow.clear(APPROVAL, run_id, "deliver", "approve", "send")
    eventually(lambda: stack.airflow.states(APPROVAL, run_id)["approve"] != ASKING, interval=0.1)
    stack.wait_for(run_id, approve=ASKING)
    now = stack.options(run_id)
    stack.answer(run_id, now[0])
    states = stack.airflow.finish(APPROVAL, run_id)
    if now == before:
        assert (states["approve"], states["send"]) == ("failed", "upstream_failed")
        service.assert_nothing_sent()
    else:
        assert {*states.values()} == {"success"}
        service.assert_sent_once()


def test_mapped_tasks_fill_one_draft_unless_two_files_share_a_name(stack: DraftsStack, service: Sandbox) -> None:
    run_id = stack.airflow.trigger("steps", {})
    states = stack.airflow.finish("steps", run_id)

    assert {state for name, state in states.items() if name.startswith("mapped")} == {"success"}
    transfer_id = service.assert_sent_once()
    outbox = stack.folder / "outbox"
    service.assert_delivered(transfer_id, {file.name: file for file in outbox.iterdir()}, "ann@example.com")
    assert stack.airflow.xcom("steps", run_id, "mapped.discard") is False

    assert "failed" in (states["twice.one"], states["twice.other"])
    assert states["twice.send"] == "upstream_failed"
    assert stack.airflow.xcom("steps", run_id, "twice.discard") is True


def test_a_file_attached_again_while_the_send_waits_is_what_is_sent(stack: DraftsStack, service: Sandbox) -> None:
    """The account has no slot left; the draft of the other index stays as it was filled."""
    service.patch_account(outstanding_transfer_limit=0)
    files = {file.name: file.read_bytes() for file in stack.files}
    run_id = stack.airflow.trigger("in_steps", {"folder": str(stack.folder / "outbox")})

    def states() -> dict[str, str]:
        return stack.airflow.states("in_steps", run_id)

    eventually(lambda: [states().get(f"delivery.send{index}") for index in (0, 1)] == ["deferred"] * 2, interval=0.5)
    (stack.folder / "outbox" / "a.csv").write_bytes(b"corrected")
    try:
        stack.airflow.clear("in_steps", run_id, ("delivery.attach", 0))
        eventually(lambda: states()["delivery.attach0"] == "success", interval=0.5)
        service.patch_account(outstanding_transfer_limit=10)
        assert {*stack.airflow.finish("in_steps", run_id).values()} == {"success"}
    finally:
        (stack.folder / "outbox" / "a.csv").write_bytes(files["a.csv"])

    sent = [stack.airflow.xcom("in_steps", run_id, "delivery.send", index)["id"] for index in (0, 1)]
    assert sorted(service.sent()) == sorted(sent)
    service.assert_delivered(sent[0], {**files, "a.csv": b"corrected"}, "ann@example.com")
    service.assert_delivered(sent[1], files, "bob@example.com")
    assert [stack.airflow.xcom("in_steps", run_id, "delivery.discard", index) for index in (0, 1)] == [False, False]
