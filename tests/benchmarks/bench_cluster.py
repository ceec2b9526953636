"""One key, shared by a cluster in real time: processes that send, beside triggerers that wait for thousands.

The service has its real limit of 60 calls a minute, of which a transfer of one file takes three: 20 are possible. With
``--database``, the processes share a PostgreSQL, and through it the key's calls and the poll.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.simulated_waiters import sandbox_process
from benchmarks.waiters import RECIPIENT
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries_table import settings
from support.postgres import running_server
from support.transfers import send


@contextmanager
def process(module: str, *arguments: object, **environment: str) -> Iterator[None]:
    """A process of this folder, while the block runs."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    started = subprocess.Popen(command, env=os.environ | environment)
    try:
        yield
    finally:
        started.terminate()
        started.wait()


def wait_for_first_look(sandbox: Sandbox) -> None:
    """Wait until the triggerers know all transfers, after which none calls until its interval is over."""
    before, made = -1, 0
    while made == 0 or made != before:
        time.sleep(15)
        before, made = made, len([call for call in sandbox.requests() if call["method"] == "GET"])


def end(sandbox: Sandbox, transfer_ids: Sequence[str], seconds: float) -> dict[str, float]:
    """End the transfers, evenly over so many seconds: of ten, nine are collected and one is canceled; when each did."""
    ended: dict[str, float] = {}
    began = time.time()
    for number, one in enumerate(transfer_ids):
        time.sleep(max(began + seconds * (number + 1) / len(transfer_ids) - time.time(), 0))
        if number % 10 == 9:
            sandbox.cancel(one)
        else:
            sandbox.pickup(one, RECIPIENT)
        ended[one] = time.time()
    return ended


def lines(
    made: list[dict[str, Any]],
    sends: int,
    seconds: float,
    ended: dict[str, float],
    noticed: dict[str, float],
    deliveries: list[float],
) -> Iterator[str]:
    """What to print."""
    waiting = [call for call in made if call["method"] == "GET"]
    refused = sum(call["status"] == 429 for call in made)
    delays = sorted(noticed[one] - at for one, at in ended.items() if one in noticed)
    minutes = seconds / 60
    yield f"sends a minute               {sends / minutes:>8.1f}   of 20 that are possible"
    if deliveries:
        yield f"a delivery takes             {statistics.median(deliveries):>8.1f} s at the median"
        yield f"                             {max(deliveries):>8.1f} s at worst"
    yield f"calls refused                {100 * refused / max(len(made), 1):>8.1f} %"
    if delays:
        yield f"from end to noticed          {statistics.median(delays):>8.1f} s at the median"
        last = delays[min(len(delays) * 99 // 100, len(delays) - 1)]
        yield f"                             {last:>8.1f} s at the 99th percentile"
    yield f"not noticed                  {len(ended) - len(delays):>8}   of {len(ended)}"
    yield f"calls a minute on waiting    {len(waiting) / minutes:>8.1f}   of {len(made) / minutes:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waits", type=int, default=5_000)
    parser.add_argument("--triggerers", type=int, default=3)
    parser.add_argument("--senders", type=int, default=8)
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two looks")
    parser.add_argument("--settle", type=float, default=420.0, help="seconds before anything is measured")
    parser.add_argument("--seconds", type=float, default=600.0, help="that are measured")
    parser.add_argument("--ends", type=int, default=120, help="transfers that end in this time")
    parser.add_argument("--late", type=float, default=300.0, help="seconds in which an end may still be noticed")
    parser.add_argument("--database", action="store_true", help="the processes share a database")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder,
        sandbox_process() as sandbox,
        ExitStack() as stack,
    ):
        sent = send(sandbox, arguments.waits)
        sandbox.patch_account(requests_per_window=10**6, outstanding_transfer_limit=10**6)
        print(f"Sent {len(sent)} transfers", flush=True)
        connections = {"AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": sandbox.airflow_connection()}
        if arguments.database:
            connections["AIRFLOW_CONN_CLUSTER_STATE"] = stack.enter_context(running_server()).airflow_connection
            connections |= settings("cluster_state")
        files = [Path(folder, f"noticed-{number}") for number in range(arguments.triggerers)]
        for number, file in enumerate(files):
            transfers = Path(folder, f"transfers-{number}")
            transfers.write_text("\n".join(sent[number :: arguments.triggerers]))
            file.touch()
            stack.enter_context(process("cluster_waiter", transfers, file, arguments.interval, **connections))
        wait_for_first_look(sandbox)
        sandbox.patch_account(requests_per_window=60)
        report = Path(folder, "report.csv")
        report.write_bytes(b"a")
        delivered = [Path(folder, f"delivered-{number}") for number in range(arguments.senders)]
        for file in delivered:
            file.touch()
            stack.enter_context(process("cluster_sender", report, file, **connections))
        time.sleep(arguments.settle)
        print("Measuring", flush=True)
        billed = len(sandbox.sent())
        began = time.time()
        ended = end(sandbox, random.Random(7).sample(sent, arguments.ends), arguments.seconds)
        over = time.time()
        sends = len(sandbox.sent()) - billed
        time.sleep(arguments.late)
        made = [
            call for call in sandbox.requests() if began <= datetime.fromisoformat(call["timestamp"]).timestamp() < over
        ]
        noticed = {one: float(at) for file in files for one, at in map(str.split, file.read_text().splitlines())}
        # One that has not ended yet counts, too: it may be the worst.
        moments = [[*map(float, line.split()), time.time()] for file in delivered for line in file.open()]
    deliveries = [at[1] - at[0] for at in moments if at[1] >= began]
    print("\n".join(lines(made, sends, over - began, ended, noticed, deliveries)))


if __name__ == "__main__":
    main()
