"""Deliver what a person has approved: nothing is sent before somebody approves the draft in Airflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from outbound_transfer.operators.approval import ApproveTransferOperator
from outbound_transfer.operators.draft import DiscardTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator

with DAG(
    "deliver_with_approval",
    schedule="0 6 1 * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "files": Param("/data/statements/*.pdf", type="string", description="A path, a URI or a glob of either."),
        "recipients": Param(["ann@example.com", "bob@example.com"], type="array", items={"type": "string"}),
    },
    tags=["outbound transfer", "example"],
    doc_md="""
### Fill a draft, ask a person, send

`deliver` fills a draft. `approve` waits up to three days, without a worker: under "Required Actions", a person sees
subject, message, recipients and files with their digests. "Approve" lets `send` send exactly that. "Reject" skips
`send`. `discard` then deletes the draft, and leaves a sent transfer alone.
""",
):
    deliver = DeliverFilesOperator(
        task_id="deliver",
        files="{{ params.files }}",
        subject="Statements of {{ dag_run.run_after | ds }}",
        message="Dear all,\n\nplease find the statements of last month.",
        recipients="{{ params.recipients | tojson }}",
        send=False,
        retries=3,
    )
    approve = ApproveTransferOperator(
        task_id="approve", transfer_id=deliver.output, response_timeout=timedelta(days=3), retries=3
    )
    send = SendTransferOperator(
        task_id="send", transfer_id=deliver.output, approval=approve.output, deferrable=True, retries=3
    )
    discard = DiscardTransferOperator(
        task_id="discard", transfer_id="{{ ti.xcom_pull('deliver', key='transfer_id') }}", retries=3
    )
    # Without setups: Airflow clears the setups of a task with it, and so would make another draft.
    send >> discard.as_teardown()
