"""Deliver what a person has approved: the task waits without a worker until somebody answers in Airflow (from 3.1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.util import find_spec

from airflow.sdk import DAG, Param

from outbound_transfer.operators.transfer import DeliverFilesOperator

#: Airflow 3.1 and newer can ask a person.
HAS_HUMAN_INPUT = find_spec("airflow.sdk.execution_time.hitl") is not None

if HAS_HUMAN_INPUT:
    with DAG(
        "approve_delivery",
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

The task fills a draft and then waits up to three days. Under "Required Actions", a person sees what would be sent:
subject, message, recipients and files with their digests. "Approve" sends exactly that. "Reject" discards the draft and
skips the task.
""",
    ):
        DeliverFilesOperator(
            task_id="deliver",
            files="{{ params.files }}",
            subject="Statements of {{ dag_run.run_after | ds }}",
            message="Dear all,\n\nplease find the statements of last month.",
            recipients="{{ params.recipients | tojson }}",
            require_approval=True,
            approval_timeout=timedelta(days=3),
            on_approval_timeout="reject",
            deferrable=True,
            retries=3,
        )
