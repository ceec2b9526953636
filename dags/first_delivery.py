"""Write a report, deliver it, and wait until its recipient has picked it up (docs/quickstart.md)."""

from pathlib import Path
from tempfile import mkdtemp

from airflow.sdk import DAG, task

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

with DAG("first_delivery", schedule=None):

    @task
    def export() -> str:
        report = Path(mkdtemp()) / "report.csv"
        report.write_text("region,total\nnorth,42\nsouth,17\n")
        return str(report)

    deliver = DeliverFilesOperator(
        task_id="deliver",
        files=[export()],
        subject="Report of {{ run_id }}",
        recipients=[{"email": "ann@example.com", "name": "Ann"}],
        deferrable=True,
        retries=3,
    )
    TransferSensor(
        task_id="wait_for_pickup", transfer_id=deliver.output, on_expired="fail", poke_interval=10, deferrable=True
    )
