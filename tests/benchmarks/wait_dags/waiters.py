"""What `make bench-wait` runs: as many waits as its file names, ours and the HTTP provider's."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.http.sensors.http import HttpSensor
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
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


class Idle(BaseOperator):
    """Waits for a day, by a trigger of Airflow's own that does nothing."""

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(days=1)), method_name="done")

    def done(self, context: Any, event: Any) -> None:
        pass


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

with DAG("idle", schedule=None, catchup=False):
    Idle.partial(task_id="wait").expand(doc_md=transfers())

with DAG("meter", schedule=None, catchup=False):
    Metered(task_id="measure")
