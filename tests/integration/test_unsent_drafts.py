"""What becomes of the draft of a task that fails for good, or is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer.decorators.deliver_files import deliver_files_task
from outbound_transfer.exceptions import ServerFault
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import DISCARD, ProcessCrashed, before, die
from support.connections import connection_json
from support.oracle import says_sent
from support.tasks import FakeTaskInstance, again, hand_on, without_credit

DELIVERY = {"subject": "Report", "recipients": ["ann@example.com"]}

FAILING_UPLOADS = [{"kind": "error", "method": "POST", "path": "*/files", "status": 503}] * 8

#: The send is applied or not, no response to it arrives, and the service cannot be asked what it did.
SEND_IN_DOUBT = [
    {"kind": "error", "method": "POST", "path": "*/send", "status": 502},
    *[{"kind": "error", "method": "GET", "path": "*", "status": 503}] * 8,
]


@pytest.fixture
def report(tmp_path: Path) -> str:
    file = tmp_path / "report.csv"
    file.write_text("a,b\n")
    return str(file)


@pytest.fixture
def deliver(task, report) -> Callable[..., FakeTaskInstance]:
    return lambda **arguments: task(DeliverFilesOperator, **{"files": report, **DELIVERY, **arguments})


def filled_drafts(sandbox) -> set[str]:
    """The ids of the drafts that files were ever attached to."""
    paths = [call["path"] for call in sandbox.requests() if call["method"] == "POST"]
    return {path.split("/")[3] for path in paths if path.endswith("/files")}


def exists(sandbox, transfer_id: str) -> bool:
    try:
        return bool(sandbox.transfer(transfer_id)["status"] == "draft")
    except httpx.HTTPStatusError:
        return False


@pytest.mark.parametrize("fails", ["at the first try", "after its retries"])
def test_a_failure_for_good_leaves_no_draft(deliver, sandbox, fails) -> None:
    ti = deliver(retries=1)
    if fails == "at the first try":
        with without_credit(sandbox):
            ti.run()
    else:
        sandbox.plan_faults(*FAILING_UPLOADS, *FAILING_UPLOADS)
        with pytest.raises(ServerFault):
            ti.run()
        assert ti.try_number == 2
    assert not exists(sandbox, ti.xcoms["transfer_id"])


def test_a_draft_whose_send_is_in_doubt_stays_until_it_is_discarded(deliver, task, sandbox) -> None:
    ti = deliver()
    sandbox.plan_faults(*SEND_IN_DOUBT)
    with pytest.raises(Exception, match="sent") as failed:
        ti.run()
    transfer_id = ti.xcoms["transfer_id"]
    assert says_sent(failed.value, transfer_id)
    assert exists(sandbox, transfer_id)

    discard = task(DiscardTransferOperator, "discard", transfer_id=transfer_id)
    discard.upstream = {"deliver": ti}
    assert discard.run() is True, "what is removed as a draft was not sent, and cannot be any more"
    assert not exists(sandbox, transfer_id)
    sandbox.assert_nothing_sent()


@pytest.fixture
def use_key(sandbox, monkeypatch) -> Callable[[str], None]:
    """Let the connection have another API key."""
    settings = json.loads(connection_json(sandbox))
    return lambda key: monkeypatch.setenv(
        "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps({**settings, "password": key})
    )


@pytest.mark.parametrize("phase", ["handed on", "sending", "discarding"])
def test_a_draft_that_the_key_does_not_show_is_not_said_to_be_removed(deliver, task, sandbox, use_key, phase) -> None:
    """Its key's user may send it: a 404 of another user's key says nothing of it."""
    if phase == "handed on":
        draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    else:
        ti = deliver()
        sandbox.plan_faults(*SEND_IN_DOUBT)
        with pytest.raises(Exception, match="sent"):
            ti.run()
        draft = ti.xcoms["transfer_id"]
        sandbox.clear_faults()
        if phase == "discarding":
            with before(DISCARD, die), pytest.raises(ProcessCrashed):
                again(ti)
    discard = task(DiscardTransferOperator, "discard", transfer_id=draft)
    use_key(sandbox.new_key("bob@example.com"))
    with pytest.raises(AirflowFailException, match="another user's API key.*Correct the connection") as failed:
        discard.run()
    assert says_sent(failed.value, draft) == (phase != "handed on")
    assert exists(sandbox, draft)

    use_key(sandbox.transfer_api_key)
    assert again(discard) is True
    assert not exists(sandbox, draft)
    sandbox.assert_nothing_sent()


def test_a_send_in_doubt_that_the_key_does_not_show_is_not_said_to_be_removed(task, sandbox, report, use_key) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    task(AttachFilesOperator, "attach", transfer_id=draft, files=report).run()
    send = task(SendTransferOperator, "send", transfer_id=draft)
    sandbox.plan_faults(*SEND_IN_DOUBT)
    with pytest.raises(Exception, match="sent"):
        send.run()
    sandbox.clear_faults()
    use_key(sandbox.new_key("bob@example.com"))
    with pytest.raises(AirflowFailException, match=r"another user's API key\. It may have been sent"):
        again(send)

    use_key(sandbox.transfer_api_key)
    again(send)
    assert sandbox.sent() == [draft]


def test_a_discard_that_fails_does_not_hide_the_error(deliver, sandbox) -> None:
    ti = deliver()
    sandbox.plan_faults(*[{"kind": "error", "method": "DELETE", "path": "*", "status": 503}] * 30)
    with without_credit(sandbox):
        ti.run()
    assert exists(sandbox, ti.xcoms["transfer_id"])


@pytest.mark.parametrize("state", ["failed", "queued", None])
def test_a_task_process_that_airflow_has_given_up_sends_nothing(deliver, sandbox, state) -> None:
    ti = deliver()
    ti.state = state
    with pytest.raises(AirflowFailException, match="given this try up"):
        ti.run()
    sandbox.assert_nothing_sent()

    ti.state = "running"
    ti.clear()
    assert [ti.run()["id"]] == sandbox.sent(), "no call of it is in doubt"


def test_nobody_else_attaches_to_the_draft_of_one_task(deliver, task, sandbox, hook, tmp_path) -> None:
    ti = deliver()
    draft = hand_on(ti, sandbox)
    (other := tmp_path / "other.csv").write_text("of another task")
    with pytest.raises(AirflowFailException, match="fills and sends it alone"):
        task(AttachFilesOperator, "attach", transfer_id=draft, files=str(other)).run()
    ti.clear()
    assert ti.run()["id"] != draft
    assert not exists(sandbox, draft)


def test_steps_leave_their_draft_to_the_task_that_discards_it(task, sandbox, hook, report) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    task(AttachFilesOperator, "attach", transfer_id=draft, files=report).run()
    send = task(SendTransferOperator, "send", transfer_id=draft)
    with without_credit(sandbox):
        send.run()
    assert exists(sandbox, draft)

    discard = task(DiscardTransferOperator, "discard", transfer_id=draft)
    discard.upstream = {"send": send}
    assert discard.run() is True
    assert not exists(sandbox, draft)


# A retry that is skipped.


def nothing_to_deliver() -> Any:
    raise AirflowSkipException("nothing to deliver")


def skip_the_retry(ti: FakeTaskInstance, faults: Callable[[], object] = lambda: None) -> str:
    """Run a task whose first try fails; its retry has nothing to deliver, as its function or query says.

    :return: the draft of the first try.
    """
    drafts = []

    def skip() -> None:
        drafts.append(ti.xcoms["transfer_id"])
        ti.make = lambda: deliver_files_task(nothing_to_deliver, task_id=ti.task_id, **DELIVERY)().operator
        faults()

    ti.before_retry = skip
    with pytest.raises(AirflowSkipException, match="nothing to deliver"):
        ti.run()
    return str(drafts[0])


@pytest.fixture
def failing(deliver, sandbox) -> FakeTaskInstance:
    """A task whose first try leaves a draft behind."""
    sandbox.plan_faults(*FAILING_UPLOADS)
    ti: FakeTaskInstance = deliver(retries=1)
    return ti


def test_a_skip_removes_the_draft_of_an_earlier_try(failing, sandbox) -> None:
    draft = skip_the_retry(failing, sandbox.clear_faults)
    assert not exists(sandbox, draft)


def test_a_skip_says_that_nothing_was_sent(deliver, sandbox) -> None:
    """So a send in doubt is no skip, unless its draft could be removed."""
    ti = deliver(retries=1)
    sandbox.plan_faults(*SEND_IN_DOUBT)
    with suppress(AirflowFailException):
        assert not exists(sandbox, skip_the_retry(ti))


def test_a_skip_removes_no_other_transfer_that_has_the_id(failing, sandbox) -> None:
    another = {"kind": "field_value", "method": "GET", "path": "*", "field": "subject", "json": '"Payroll"'}
    draft = skip_the_retry(failing, lambda: (sandbox.clear_faults(), sandbox.plan_faults(*[another] * 9)))
    assert exists(sandbox, draft)


def test_a_skip_is_not_hidden_by_a_service_that_is_away(failing, sandbox) -> None:
    sandbox.plan_faults(*[{"kind": "error", "path": "*", "status": 503}] * 30)
    skip_the_retry(failing)


def test_a_skip_removes_nothing_that_was_sent(deliver, sandbox) -> None:
    ti = deliver()
    transfer_id = ti.run()["id"]
    ti.make = lambda: deliver_files_task(nothing_to_deliver, task_id=ti.task_id, **DELIVERY)().operator
    ti.clear()
    with pytest.raises(AirflowFailException, match="nothing to deliver"):
        ti.run()
    assert sandbox.sent() == [transfer_id]


DISCARDING = """
    from airflow.sdk import DAG, task_group
    from outbound_transfer.operators.draft import (
        AttachFilesOperator,
        CreateTransferOperator,
        DiscardTransferOperator,
        SendTransferOperator,
    )
    from outbound_transfer.operators.transfer import DeliverFilesOperator

    with DAG("discarding", schedule=None):
        common = dict(subject="Report", recipients=["ann@example.com"])
        alone = DeliverFilesOperator(task_id="alone", files={report!r}, **common)
        followed = DeliverFilesOperator(task_id="followed", files={report!r}, **common)
        discard = DiscardTransferOperator(
            task_id="discard", transfer_id="{{{{ ti.xcom_pull('followed', key='transfer_id') }}}}"
        )
        followed >> discard.as_teardown()

        @task_group
        def steps(recipients):
            create = CreateTransferOperator(task_id="create", subject="Steps", recipients=recipients)
            attach = AttachFilesOperator(task_id="attach", transfer_id=create.output, files={report!r})
            send = SendTransferOperator(task_id="send", transfer_id=create.output)
            discard = DiscardTransferOperator(task_id="discard", transfer_id=create.output)
            attach >> send >> discard.as_teardown(setups=create)

        steps.expand(recipients=["ann@example.com", "bob@example.com"])
"""


def test_a_dag_whose_account_is_out_of_credit_leaves_no_draft(run_dag, connection, sandbox, hook, report) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)

    run = run_dag(DISCARDING.format(report=report))

    assert run.state == "failed"
    states = run.states()
    assert {states[name] for name in ("alone", "followed", "steps.send[0]", "steps.send[1]")} == {"failed"}
    assert {states[name] for name in ("discard", "steps.discard[0]", "steps.discard[1]")} == {"success"}
    assert len(filled := filled_drafts(sandbox)) == 4
    assert not [transfer_id for transfer_id in filled if exists(sandbox, transfer_id)]


def test_a_dag_that_created_no_draft_discards_none(run_dag, connection, sandbox, report) -> None:
    run = run_dag(DISCARDING.replace("ann@example.com", "{{{{ 'ann' }}}}").format(report=report))

    assert run.states()["discard"] == "success"
    assert len(sandbox.sent()) == 1, "that of the other recipient"


def test_a_dag_that_delivers_discards_nothing(run_dag, connection, sandbox, report) -> None:
    run = run_dag(DISCARDING.format(report=report))

    assert run.state == "success"
    assert {*run.states().values()} == {"success"}
    assert run.xcom("discard") is False
    assert len(sandbox.sent()) == 4
