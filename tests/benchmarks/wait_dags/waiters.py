"""What `make bench-wait` runs: as many waits as its file names, ours and the HTTP provider's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.providers.http.sensors.http import HttpSensor
from airflow.sdk import DAG, BaseOperator, task

from outbound_transfer.sensors.transfer import TransferSensor

INTERVAL = float(os.environ["BENCH_WAIT_INTERVAL"])


class Metered(BaseOperator):
    """Measures the triggerer's event loop for as long as there is the file that says so."""

    def execute(self, context: Any) -> None:
        from benchmarks.stall_meter import StallMeter

        self.defer(trigger=StallMeter(os.environ["BENCH_WAIT_FOLDER"]), method_name="done")

    def done(self, context: Any, event: Any) -> Any:
        return event


@task
def transfers() -> list[str]:
    found: list[str] = json.loads((Path(os.environ["BENCH_WAIT_FOLDER"]) / "transfers.json").read_text())
    return found


with DAG("waits", schedule=None, catchup=False):
    TransferSensor.partial(
        task_id="wait",
        deferrable=True,
        poke_interval=INTERVAL,
        on_expired="succeed",
        on_canceled="succeed",
        end_from_trigger=True,
    ).expand(transfer_id=transfers())

with DAG("peer", schedule=None, catchup=False):
    HttpSensor.partial(
        task_id="wait", http_conn_id="peer", method="GET", deferrable=True, poke_interval=INTERVAL
    ).expand(endpoint=transfers())

with DAG("meter", schedule=None, catchup=False):
    Metered(task_id="measure")
