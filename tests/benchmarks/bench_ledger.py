"""What the ledger adds to a delivery of three small files against the sandbox, in each database, and where."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx

ROUNDS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="bench-ledger-") as folder:
        os.environ["AIRFLOW_HOME"] = folder
        os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"
        compare(stack, Path(folder), arguments.rounds)
    return 0


def compare(stack: ExitStack, folder: Path, rounds: int) -> None:
    """Deliver in turn without a ledger and with one in each database; print the medians."""
    from outbound_transfer_sandbox.testing import running_sandbox
    from support.postgres import running_server

    sandbox = stack.enter_context(running_sandbox())
    sandbox.patch_account(requests_per_window=1_000_000, outstanding_transfer_limit=1_000_000)
    os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = sandbox.airflow_connection(calls_per_minute=10**6)
    server = stack.enter_context(running_server())
    ledgers = {
        "none": None,
        "SQLite": json.dumps({"conn_type": "sqlite", "host": str(folder / "ledger.db")}),
        "PostgreSQL": server.airflow_connection,
    }
    files = []
    for name in "abc":
        files.append(folder / f"{name}.csv")
        files[-1].write_bytes(b"x" * 10_000)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ledgers}
    for number in range(rounds + 1):
        for name, connection in ledgers.items():
            result = deliver(connection, list(map(str, files)))
            if number:  # the first imports and makes the tables
                taken[name].append(result)
    none = [statistics.median(each) for each in zip(*taken["none"], strict=True)]
    for name, results in taken.items():
        to_send, whole = (statistics.median(each) for each in zip(*results, strict=True))
        added = "" if name == "none" else f": {to_send - none[0]:+.1f} ms and {whole - none[1]:+.1f} ms"
        print(f"ledger {name:10}  until sent {to_send:6.1f} ms, whole task {whole:6.1f} ms{added}")


def deliver(connection: str | None, files: list[str]) -> tuple[float, float]:
    """Milliseconds until the transfer is sent, and until the task has ended."""
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from support.tasks import FakeTaskInstance

    os.environ["AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID"] = "ledger" if connection else ""
    os.environ["AIRFLOW_CONN_LEDGER"] = connection or ""
    arguments: dict[str, Any] = {"subject": "S", "recipients": ["ann@example.com"], "files": files}
    clock: Any = SimpleNamespace(sleep=time.sleep, clock=time.monotonic)
    task = FakeTaskInstance(lambda: DeliverFilesOperator(task_id="deliver", **arguments), clock)
    sent: list[float] = []
    exchange = httpx.Client.send

    def timed(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        response = exchange(client, request, **options)
        if request.url.path.endswith("/send"):
            sent.append(time.perf_counter())
        return response

    with mock.patch.object(httpx.Client, "send", timed):
        began = time.perf_counter()
        task.run()
        ended = time.perf_counter()
    return 1_000 * (sent[0] - began), 1_000 * (ended - began)


if __name__ == "__main__":
    sys.exit(main())
