"""Deliver every morning, and send an email if a recipient has not picked up by noon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, AsyncCallback, CronTriggerTimetable, DeadlineAlert, DeadlineReference, Param

from outbound_transfer.notifications.smtp import TransferSmtpNotifier
from outbound_transfer.operators.draft import DiscardTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

MORNING = 6
NOON = 12

with DAG(
    "deliver_with_deadline",
    schedule=CronTriggerTimetable(f"0 {MORNING} * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "files": Param("/data/reports/*.pdf", type="string", description="A path, a URI or a glob of either."),
        "recipient": Param("ann@example.com", type="string", format="email"),
    },
    # Counts from the logical date, so a run that starts late has no more time.
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
        interval=timedelta(hours=NOON - MORNING),
        # The triggerer imports the callback, so it must be in a package, not in this file.
        callback=AsyncCallback(
            TransferSmtpNotifier,
            kwargs={
                "title": "Not picked up by noon",
                "task_id": "deliver",
                "from_email": "airflow@example.com",
                "to": "operations@example.com",
            },
        ),
    ),
    tags=["outbound transfer", "example"],
    doc_md="""
### Not picked up by noon

An example of a deadline: the run ends when all recipients have picked up, and at noon Airflow's `DeadlineAlert`
checks whether it has. The email names who has not, and links to the transfer. It uses the connection `smtp_default`;
`TransferSlackNotifier`, or any notifier with `async_notify`, can replace it.
The alert does not end the task, which keeps waiting.
""",
):
    deliver = DeliverFilesOperator(
        task_id="deliver",
        files="{{ params.files }}",
        subject="Reports of {{ dag_run.run_after | ds }}",
        recipients="{{ params.recipient }}",
        deferrable=True,
        retries=3,
    )
    wait = TransferSensor(
        task_id="wait_for_pickup",
        transfer_id="{{ ti.xcom_pull('deliver', key='transfer_id') }}",
        deferrable=True,
    )
    discard = DiscardTransferOperator(  # for a task whose process was killed; others remove their draft themselves
        task_id="discard_draft",
        transfer_id="{{ ti.xcom_pull('deliver', key='transfer_id') }}",
    )
    deliver >> wait
    deliver >> discard.as_teardown()
