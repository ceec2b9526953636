"""Waiting triggers as a triggerer runs them, so many in one process: what a round of looks asks, and memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")  # read when Airflow is imported

import psutil

from outbound_transfer_sandbox.testing import Sandbox
from support.transfers import send
from support.triggers import Triggerer
from support.waiting_tasks import trigger_of

#: Seconds between two looks: a look at 5,000 takes over a minute, as it leaves the key's allowance to those who send.
INTERVAL = 120.0


def simulated(count: int) -> Iterator[str]:
    """The lines to print."""
    with sandbox_process() as sandbox:
        sent = send(sandbox, count)
        sandbox.patch_account(requests_per_window=60, outstanding_transfer_limit=10**6)
        os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = sandbox.airflow_connection()
        yield from asyncio.run(_wait(sandbox, sent))


async def _wait(sandbox: Sandbox, sent: list[str]) -> list[str]:
    # The first wait brings the client, its TLS and its modules into memory, once for all.
    triggerer = Triggerer()
    await triggerer.start(*triggers_of(sent[:1], INTERVAL))
    await asyncio.sleep(5)
    before, calls_before = _memory(), len(sandbox.requests())
    await triggerer.start(*triggers_of(sent[1:], INTERVAL))
    rounds = 2
    await asyncio.sleep(INTERVAL * rounds)
    made = sandbox.requests()[calls_before:]
    memory = _memory() - before
    await triggerer.stop()
    refused = sum(call["status"] == 429 for call in made)
    return [
        f"{len(sent)} waiting triggers in one process",
        f"requests a round   {len(made) / rounds:>8.1f}   refused (429): {refused}",
        f"memory             {memory / len(sent) / 1024:>8.1f} KiB per wait",
    ]


def triggers_of(transfer_ids: list[str], interval: float) -> list[Any]:
    """The trigger of a sensor for each transfer."""
    first = trigger_of(transfer_id="first", poke_interval=interval)
    _, stored = first.serialize()
    return [type(first)(**(stored | {"transfer_id": one})) for one in transfer_ids]


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_full_info().uss)


@contextmanager
def sandbox_process() -> Iterator[Sandbox]:
    """A sandbox whose memory is not this process's."""
    with tempfile.TemporaryDirectory(prefix="bench-wait-") as folder:
        ready = Path(folder, "ready.json")
        command = Path(sys.executable).with_name("outbound-transfer-sandbox")
        process = subprocess.Popen([command, "--port", "0", "--data", folder, "--ready-file", ready])
        try:
            while not ready.exists():
                time.sleep(0.05)
            yield Sandbox(**json.loads(ready.read_text()))
        finally:
            process.terminate()
            process.wait()
