"""Deferrable deliveries that start at once, on few worker slots and one key, in virtual time.

The operator, its retries and its deferrals are the real ones, as are the service's 60 calls a minute. A task holds a
slot while it runs, and none while it is deferred.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

CALLS_PER_DELIVERY = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-deferrals-") as folder:
        os.environ |= {
            "AIRFLOW_HOME": folder,
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL",
            "AIRFLOW_CONN_LEDGER": json.dumps({"conn_type": "sqlite", "host": f"{folder}/ledger.db"}),
        }
        for database in ("none", "SQLite"):
            os.environ["AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID"] = "" if database == "none" else "ledger"
            print(
                f"database {database:8}", deliver_all(Path(folder), arguments.deliveries, arguments.slots), flush=True
            )


def deliver_all(folder: Path, count: int, slots: int) -> str:
    """Run the deliveries; return the line to print."""
    from outbound_transfer.airflow_compat.names import timezone
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.warehouse.database import Warehouse
    from outbound_transfer_sandbox.domain.clock import Clock
    from outbound_transfer_sandbox.testing import running_sandbox
    from support.slots import SlottedClock, SlottedTask

    logging.disable(logging.CRITICAL)

    (folder / "report.csv").write_text("a")
    began = timezone.utcnow()
    with running_sandbox() as sandbox, mock.patch.dict(os.environ):
        os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = sandbox.airflow_connection()
        time = SlottedClock(sandbox, count, slots)
        make: Callable[[], Any] = lambda: DeliverFilesOperator(  # noqa: E731
            task_id="task",
            files=str(folder / "report.csv"),
            subject="Report",
            recipients=["ann@example.com"],
            deferrable=True,
        )

        def deliver(number: int) -> None:
            with time.thread(), time.slot():
                SlottedTask(make, time, run_id=f"run {number}").run()

        def virtual_now(*_: object) -> datetime:
            return began + timedelta(seconds=time.now)

        def virtual_epoch_time(*_: object) -> float:
            return virtual_now().timestamp()

        with (
            mock.patch.object(Clock, "now", lambda clock: clock.offset),
            mock.patch.object(timezone, "utcnow", virtual_now),
            mock.patch.object(Warehouse, "epoch_time", virtual_epoch_time),
            ThreadPoolExecutor(count) as pool,
        ):
            list(pool.map(deliver, range(count)))
        made = sandbox.requests()
        sent = len(sandbox.sent())
    calls = count * CALLS_PER_DELIVERY
    floor = (calls - 1) // 60 * 60
    refused = sum(call["status"] == 429 for call in made)
    return (
        f"{sent} sent in {time.now:,.0f} s, {time.now / floor:.3f} times the {floor:,} s that the key allows; "
        f"{refused} of {len(made)} calls refused; {time.starts / calls:.2f} worker starts per call"
    )


if __name__ == "__main__":
    main()
