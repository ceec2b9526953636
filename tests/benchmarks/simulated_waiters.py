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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")  # read when Airflow is imported

import psutil

from outbound_transfer.triggers.transfer import TransferTrigger
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.waiters import send
from support.connections import connection_json

try:
    from airflow.triggers.shared_stream import SharedStreamManager
except ImportError:  # before 3.3, a trigger's own run() shares the poll
    SharedStreamManager = None

#: Seconds between two looks: a look at 5,000 takes over a minute, as it leaves the key's allowance to those who send.
INTERVAL = 120.0


def simulated(count: int) -> Iterator[str]:
    """The lines to print."""
    with sandbox_process() as sandbox:
        sent = send(sandbox, count)
        os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = connection_json(sandbox)
        yield from asyncio.run(_wait(sandbox, sent))


async def _wait(sandbox: Sandbox, sent: list[str]) -> list[str]:
    # The first wait brings the client, its TLS and its modules into memory, once for all.
    manager = _manager()
    first = start_waiters(sent[:1], INTERVAL, manager=manager)
    await asyncio.sleep(5)
    before, calls_before = _memory(), len(sandbox.requests())
    tasks = [*first, *start_waiters(sent[1:], INTERVAL, manager=manager)]
    rounds = 2
    await asyncio.sleep(INTERVAL * rounds)
    made = sandbox.requests()[calls_before:]
    memory = _memory() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    refused = sum(call["status"] == 429 for call in made)
    return [
        f"{len(sent)} waiting triggers in one process",
        f"requests a round   {len(made) / rounds:>8.1f}   refused (429): {refused}",
        f"memory             {memory / len(sent) / 1024:>8.1f} KiB per wait",
    ]


def _manager() -> Any:
    return SharedStreamManager(log=_Silent()) if SharedStreamManager else None


def start_waiters(
    transfer_ids: list[str], interval: float, on_end: Callable[[str], object] = str, *, manager: Any = None
) -> list[asyncio.Task[None]]:
    """Start a trigger for each transfer, as one triggerer does.

    :param on_end: called with the id of each transfer that ends.
    """
    manager = manager or _manager()

    async def run(trigger: TransferTrigger) -> None:
        if manager is None:
            events = trigger.run()
        else:
            key = trigger.shared_stream_key()
            stream = manager.subscribe(trigger_id=trigger.transfer_id, trigger=trigger, key=key)
            events = trigger.filter_shared_stream(stream)
        try:
            async for _ in events:
                on_end(trigger.transfer_id)
                break
        finally:
            if manager is not None:
                await manager.unsubscribe(trigger.transfer_id, key)

    deadline = "2100-01-01T00:00:00+00:00"
    return [
        asyncio.create_task(run(TransferTrigger(one, "outbound_transfer_default", interval, deadline)))
        for one in transfer_ids
    ]


class _Silent:
    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


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
