"""What becomes of the draft of a task that fails for good, or is skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException, AirflowSkipException
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol.errors import NotFound, ServerFault
from support.tasks import FakeTaskInstance, without_credit

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


def exists(hook, transfer_id: str) -> bool:
    try:
        return hook.get_transfer(transfer_id).is_draft
    except NotFound:
        return False


def test_a_failure_for_good_leaves_no_draft(deliver, sandbox, hook) -> None:
    ti = deliver(retries=3)
    with without_credit(sandbox):
        ti.run()
    assert not exists(hook, ti.xcoms["transfer_id"])


def test_a_draft_that_is_to_be_kept_stays(deliver, sandbox, hook) -> None:
    ti = deliver(keep_draft=True)
    with without_credit(sandbox):
        ti.run()
    assert exists(hook, ti.xcoms["transfer_id"])


def test_only_the_last_retry_removes_the_draft(deliver, sandbox, hook) -> None:
    ti = deliver(retries=1)
    sandbox.plan_faults(*FAILING_UPLOADS, *FAILING_UPLOADS)
    there = []
    ti.before_retry = lambda: there.append(exists(hook, ti.xcoms["transfer_id"]))
    with pytest.raises(ServerFault):
        ti.run()
    assert there == [True]
    assert not exists(hook, ti.xcoms["transfer_id"])


def test_a_draft_whose_send_is_in_doubt_stays_until_it_is_discarded(deliver, task, sandbox, hook) -> None:
    ti = deliver()
    sandbox.plan_faults(*SEND_IN_DOUBT)
    with pytest.raises(ServerFault, match="may nevertheless have been sent"):
        ti.run()
    assert exists(hook, ti.xcoms["transfer_id"])

    transfer_id = ti.xcoms["transfer_id"]
    discard = task(DiscardTransferOperator, "discard", transfer_id=transfer_id)
    discard.upstream = {"deliver": ti}
    assert discard.run() is True, "what is removed as a draft was not sent, and cannot be any more"
    assert not exists(hook, transfer_id)
    sandbox.assert_nothing_sent()


def test_a_discard_that_fails_does_not_hide_the_error(deliver, sandbox, hook) -> None:
    ti = deliver()
    sandbox.plan_faults(*[{"kind": "error", "method": "DELETE", "path": "*", "status": 503}] * 3)
    with without_credit(sandbox):
        ti.run()
    assert exists(hook, ti.xcoms["transfer_id"])
    sandbox.assert_all_faults_triggered()


@pytest.mark.parametrize("state", ["failed", "queued", None])
def test_a_superseded_task_process_sends_nothing_and_leaves_its_draft_to_the_next_try(
    deliver, sandbox, hook, state
) -> None:
    ti = deliver()
    ti.state = state
    with pytest.raises(AirflowFailException, match="given this try up"):
        ti.run()
    draft = ti.xcoms["transfer_id"]
    assert exists(hook, draft)
    sandbox.assert_nothing_sent()

    ti.state = "running"
    ti.clear()
    assert ti.run()["id"] == draft, "no call of it is in doubt"


def test_a_superseded_task_process_attaches_nothing(task, sandbox, hook, report) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=report)
    attach.state = "failed"
    with pytest.raises(AirflowFailException, match="given this try up"):
        attach.run()
    assert hook.get_transfer(draft).files == ()


def test_a_draft_that_holds_the_file_of_another_is_not_continued(deliver, task, sandbox, hook, tmp_path) -> None:
    ti = deliver(keep_draft=True)
    with without_credit(sandbox):
        ti.run()
    draft = ti.xcoms["transfer_id"]
    (other := tmp_path / "other.csv").write_text("of another task")
    task(AttachFilesOperator, "attach", transfer_id=draft, files=str(other)).run()
    ti.make = deliver().make
    ti.clear()
    assert ti.run()["id"] != draft
    assert not exists(hook, draft)


def test_steps_leave_their_draft_to_the_task_that_discards_it(task, sandbox, hook, report) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    task(AttachFilesOperator, "attach", transfer_id=draft, files=report).run()
    send = task(SendTransferOperator, "send", transfer_id=draft)
    with without_credit(sandbox):
        send.run()
    assert exists(hook, draft)

    discard = task(DiscardTransferOperator, "discard", transfer_id=draft)
    discard.upstream = {"send": send}
    assert discard.run() is True
    assert not exists(hook, draft)


# A retry that is skipped.


class SkippingOperator(DeliverFilesOperator):
    """One whose function, or query, has nothing to deliver."""

    def prepare(self, delivery: Any, context: Any) -> None:
        raise AirflowSkipException("nothing to deliver")


@pytest.fixture
def skip(deliver, task, report) -> Callable[..., None]:
    """Clear a task, let it be skipped; if it may have sent, it fails instead."""

    def skip(ti: FakeTaskInstance, *, may_have_sent: bool = False, **arguments: Any) -> None:
        ti.make = task(SkippingOperator, **{"files": report, **DELIVERY, **arguments}).make
        ti.clear()
        with pytest.raises(AirflowFailException if may_have_sent else AirflowSkipException, match="nothing to deliver"):
            ti.run()

    return skip


def failed_with_its_draft(deliver: Any, sandbox: Any) -> tuple[FakeTaskInstance, str]:
    ti = deliver(keep_draft=True)
    with without_credit(sandbox):
        ti.run()
    return ti, ti.xcoms["transfer_id"]


@pytest.mark.parametrize("keep_draft", [False, True])
def test_a_skip_removes_the_draft_of_an_earlier_try(deliver, skip, sandbox, hook, keep_draft) -> None:
    ti, draft = failed_with_its_draft(deliver, sandbox)
    for _ in range(2):  # a second one finds nothing more to remove
        skip(ti, keep_draft=keep_draft)
        assert exists(hook, draft) is keep_draft


def test_a_skip_leaves_a_send_in_doubt_alone(deliver, skip, sandbox, hook) -> None:
    ti = deliver()
    sandbox.plan_faults(*SEND_IN_DOUBT)
    with pytest.raises(ServerFault, match="may nevertheless have been sent"):
        ti.run()
    draft = ti.xcoms["transfer_id"]
    skip(ti, may_have_sent=True)
    assert exists(hook, draft)


def test_no_skip_but_a_failure_removes_the_draft_if_a_record_is_missing(deliver, skip, sandbox, hook) -> None:
    """The try whose record it is may have begun to send: what the service removes as a draft cannot be sent."""
    ti, draft = failed_with_its_draft(deliver, sandbox)
    ti.clear()
    with without_credit(sandbox):
        ti.run()
    del ti.store.values["outbound_transfer_delivery_try_2"]
    skip(ti, may_have_sent=True)
    assert not exists(hook, draft)


def test_a_skip_removes_nothing_that_was_sent(deliver, skip, sandbox) -> None:
    sent = deliver()
    transfer_id = sent.run()["id"]
    skip(sent, may_have_sent=True)
    assert sandbox.sent() == [transfer_id]


def test_a_skip_removes_no_other_transfer_that_has_the_id(deliver, skip, sandbox, hook, monkeypatch) -> None:
    ti, draft = failed_with_its_draft(deliver, sandbox)
    monkeypatch.setattr("outbound_transfer.delivery.evidence.matches", lambda *_: False)
    skip(ti)
    assert exists(hook, draft)


def test_a_skip_is_not_hidden_by_a_service_that_is_away(deliver, skip, sandbox, hook) -> None:
    ti, draft = failed_with_its_draft(deliver, sandbox)
    sandbox.plan_faults(*[{"kind": "error", "path": "*", "status": 503}] * 3)
    skip(ti)
    assert exists(hook, draft)


DISCARDING = """
    from airflow.sdk import DAG, task_group
    from outbound_transfer.operators.transfer import (
        AttachFilesOperator,
        CreateTransferOperator,
        DeliverFilesOperator,
        DiscardTransferOperator,
        SendTransferOperator,
    )

    with DAG("discarding", schedule=None):
        common = dict(subject="Report", recipients=["ann@example.com"])
        alone = DeliverFilesOperator(task_id="alone", files={report!r}, **common)
        kept = DeliverFilesOperator(task_id="kept", files={report!r}, keep_draft=True, **common)
        discard = DiscardTransferOperator(
            task_id="discard", transfer_id="{{{{ ti.xcom_pull('kept', key='transfer_id') }}}}"
        )
        kept >> discard.as_teardown()

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
    assert {states[name] for name in ("alone", "kept", "steps.send[0]", "steps.send[1]")} == {"failed"}
    assert {states[name] for name in ("discard", "steps.discard[0]", "steps.discard[1]")} == {"success"}
    assert len(filled := filled_drafts(sandbox)) == 4
    assert not [transfer_id for transfer_id in filled if exists(hook, transfer_id)]


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
