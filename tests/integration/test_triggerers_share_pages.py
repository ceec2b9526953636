"""A page that one triggerer has read serves the others, if they share a database: processes in real time."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support import transfers
from support.deliveries_table import settings
from support.repository import TESTS
from support.timeouts import eventually

pytestmark = pytest.mark.nightly

INTERVAL = 6.0  # more than the pause after a poll of two calls, which spaces the polls of a triggerer alone

#: Calls of the first polls, and those that are counted after them.
SETTLED, COUNTED = 2, 8

#: Waits for the transfers of a file, and writes the number of each trigger that fires.
WAITER = """
import asyncio, sys, time
from pathlib import Path
from support import airflow_home
import os
os.environ |= dict(one.split("=", 1) for one in sys.argv[5:])
from support.triggers import Triggerer
from support.waiting_tasks import trigger_of

async def main(ids, noticed, interval, begin):
    first = trigger_of(poke_interval=interval)
    stored = first.serialize()[1]
    triggerer = Triggerer()
    await asyncio.sleep((begin - time.time()) % interval)
    await triggerer.start(*(type(first)(**(stored | {"transfer_id": one})) for one in ids))
    while True:
        await asyncio.sleep(0.2)
        await triggerer.collect()
        noticed.write_text(str(len(triggerer.events)))

asyncio.run(main(Path(sys.argv[1]).read_text().split(), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
"""


def calls_of_two(sandbox: Sandbox, folder: Path, environment: dict[str, str]) -> float:
    """How often a second two triggerers ask, while each waits for 30 transfers; in the end, all waits are over."""
    folder.mkdir()
    sent, processes = transfers.send(sandbox, 60), list[subprocess.Popen[bytes]]()
    noticed = [folder / f"noticed{number}" for number in range(2)]
    env = os.environ | {"PYTHONPATH": str(TESTS)}
    try:
        for number, file in enumerate(noticed):
            (folder / f"{number}.ids").write_text("\n".join(sent[number::2]))
            # Half an interval apart: of two that poll at the same moment, neither has a page for the other.
            moments = [str(INTERVAL), str(number * INTERVAL / 2)]
            given = [str(folder / f"{number}.ids"), str(file), *moments, *map("=".join, environment.items())]
            processes.append(subprocess.Popen([sys.executable, "-c", WAITER, *given], env=env))
        eventually(lambda: all(file.exists() for file in noticed), 0.2)
        before = len(sandbox.requests()) + SETTLED
        eventually(lambda: len(sandbox.requests()) >= before + COUNTED, 0.2)
        times = [datetime.fromisoformat(call["timestamp"]) for call in sandbox.requests()[before : before + COUNTED]]
        for one in sent:
            transfers.pick_up(sandbox, one)
        eventually(lambda: [file.read_text() for file in noticed] == ["30", "30"], 0.2)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return COUNTED / (times[-1] - times[0]).total_seconds()


def test_two_triggerers_that_share_a_database_ask_less(sandbox, connection, postgres, tmp_path) -> None:
    service = {"AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": sandbox.airflow_connection()}
    shared = service | settings("shared") | {"AIRFLOW_CONN_SHARED": postgres.airflow_connection}
    alone = calls_of_two(sandbox, tmp_path / "alone", service)
    together = calls_of_two(sandbox, tmp_path / "together", shared)
    assert together <= 0.75 * alone
