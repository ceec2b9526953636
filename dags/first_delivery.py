"""Deliver a report, and wait until its recipient has picked it up (README.md)."""

from airflow.sdk import DAG

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

with DAG("first_delivery", schedule=None):
    deliver = DeliverFilesOperator(
        task_id="deliver",
        files=[{"name": "report.csv", "content": "region,total\nnorth,42\nsouth,17\n"}],
        subject="Report of {{ run_id }}",
        recipients=["ann@example.com"],
        deferrable=True,
        retries=3,
    )
    TransferSensor(task_id="wait_for_pickup", transfer_id=deliver.output, poke_interval=10, deferrable=True)
