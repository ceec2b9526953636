"""Many events from a sandbox into each warehouse, while calls fail and the process is killed at random."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outbound_transfer.client.client import Client
from outbound_transfer.client.settings import Settings
from outbound_transfer.protocol import endpoints
from outbound_transfer_sandbox.testing import running_sandbox
from resilience.crash_ingest.ingest import in_a_process, target_of

#: What the feed does to calls; each is planned again and again.
FAULTS = (
    {"kind": "error", "status": 500},
    {"kind": "error", "status": 503},
    {"kind": "reset", "effect": "before"},
    {"kind": "reset", "effect": "after"},
    {"kind": "truncated_page"},
)

#: How a run may end otherwise: as the tries of a task do.
_EXPECTED = (b"MalformedResponse", b"ConnectionLost", b"ServerFault", b"NotConnected")


def run(events: int, names: list[str], folder: Path, database_of: Callable[[str], Any]) -> int:
    """Land ``events`` in each; 1 where any is missing or doubled."""
    wrong = 0
    with running_sandbox() as sandbox:
        sandbox.patch_account(feed_interval_seconds=0)
        for at in range(0, events, 100_000):
            sandbox.add_events(min(100_000, events - at))
        for name in names:
            wrong |= _land(name, events, sandbox, folder, database_of)
    return wrong


def _land(name: str, events: int, sandbox: Any, folder: Path, database_of: Callable[[str], Any]) -> int:
    target, kills, runs, started = target_of(name, folder, database_of), 0, 0, time.monotonic()
    target.prepare()
    target.empty()
    settings = (sandbox.base_url, sandbox.event_api_key)
    while True:
        _plan(sandbox)
        runs += 1
        code, said = in_a_process(lambda write: _ingest(target, *settings, write))
        if code == -signal.SIGKILL:
            kills += 1
        elif said == b"caught up":
            break
        elif not said.startswith(_EXPECTED):
            print(f"{name}: {said.decode()}")
            return 1
    found = json.loads(in_a_process(lambda write: os.write(write, json.dumps(target.count()).encode()))[1])
    met = sum(fault["state"] == "triggered" for fault in sandbox.faults())
    good = found == [events, events, events]
    took = time.monotonic() - started
    print(
        f"{name:<10} {events:,} events: {runs} runs, {kills} kills, {met} faults met in the last; "
        f"rows, different ids and cursor {found}: {'once each' if good else 'WRONG'}  ({took:.0f} s)",
        flush=True,
    )
    return 0 if good else 1


def _plan(sandbox: Any) -> None:
    sandbox.clear_faults()
    sandbox.plan_faults(*({"path": "/v1/events", **random.choice(FAULTS)} for _ in range(3)))


def _ingest(target: Any, base_url: str, key: str, write: int) -> None:
    # The kernel ends the process at an instant that nothing in it knows of.
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.2, 6))
    with Client(
        Settings(base_url=base_url, transfer_api_key="", event_api_key=key),
        sleep=lambda _: None,
        on_retry=lambda _: None,
    ) as client:
        destination, has_more = target.open(), True
        cursor = destination.get_or_create_cursor()
        while has_more:
            page = client.perform(endpoints.read_events(cursor=cursor))
            destination.load_page(page)
            cursor, has_more = page.next_cursor, page.has_more
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.write(write, b"caught up")
