"""Deliver every week, and deliver once more to those who have not picked up two days later."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from outbound_transfer.operators.redelivery import remind_recipients
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

log = logging.getLogger(__name__)

POKE_INTERVAL = float(os.environ.get("OUTBOUND_TRANSFER_POKE_INTERVAL", "60"))
TIMEOUT = timedelta(seconds=float(os.environ.get("OUTBOUND_TRANSFER_TIMEOUT", "172800")))

with DAG(
    "remind_recipients",
    schedule="0 6 * * MON",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "files": Param("/data/reports/*.pdf", type="string", description="A path, a URI or a glob of either."),
        "recipients": Param(["ann@example.com", "bob@example.com"], type="array", items={"type": "string"}),
    },
    tags=["outbound transfer", "example"],
    doc_md="""
### Deliver, wait, remind, report

`wait_for_pickup` fails if somebody has not picked up after two days. Then, `remind` delivers the same files once more,
to just those; it is skipped if everybody has picked up, and fails if `deliver` has. `report` says who was reminded.
The run fails if one of the deliveries does.
""",
):
    deliver = DeliverFilesOperator(
        task_id="deliver",
        files="{{ params.files }}",
        subject="Reports of {{ dag_run.run_after | ds }}",
        recipients="{{ params.recipients | tojson }}",
        deferrable=True,
        retries=3,
    )
    wait = TransferSensor(
        task_id="wait_for_pickup",
        transfer_id=deliver.output,
        timeout=TIMEOUT,
        poke_interval=POKE_INTERVAL,
        on_expired="succeed",
        deferrable=True,
    )
    remind = remind_recipients(deliver, task_id="remind", deferrable=True, retries=3)

    @task(trigger_rule="none_failed")
    def report(reminder: Any) -> list[str]:
        """Return who was reminded."""
        reminded = [each["email"] for each in reminder["recipients"]] if reminder else []
        log.info("Reminded: %s", ", ".join(reminded) or "nobody, as everybody has picked up")
        return reminded

    wait >> remind >> report(remind.output)
