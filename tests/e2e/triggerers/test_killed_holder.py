"""Processes that poll for one another as triggerers do, over a real PostgreSQL: the one that polls is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.waiters import RECIPIENT, send
from support.connections import connection_json
from support.postgres import Database
from support.repository import REPOSITORY
from support.timeouts import eventually

pytestmark = pytest.mark.e2e

TRIGGERERS, WAITERS, INTERVAL = 3, 30, 5


@pytest.fixture
def triggerers(sandbox: Sandbox, postgres: Database, tmp_path: Path) -> Iterator[dict[int, list[str]]]:
    """What each process waits for, by its pid; the transfers that it notices are lines of ``noticed-…``."""
    sent = send(sandbox, WAITERS)
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "tests"),
        "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": connection_json(sandbox),
        "AIRFLOW_CONN_CLUSTER_STATE": postgres.airflow_connection,
        "AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID": "cluster_state",
    }
    with ExitStack() as stack:
        waiting = {}
        for number in range(TRIGGERERS):
            own, file = sent[number::TRIGGERERS], tmp_path / f"transfers-{number}"
            file.write_text("\n".join(own))
            command = [
                sys.executable,
                "-m",
                "benchmarks.cluster_waiter",
                file,
                tmp_path / f"noticed-{number}",
                INTERVAL,
            ]
            process = subprocess.Popen(list(map(str, command)), env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            waiting[process.pid] = own
        yield waiting


@pytest.fixture
def lease(postgres: Database) -> Callable[[], Any]:
    """Return the pid of the holder, None if there is none, and whether it has polled."""

    def read() -> tuple[int | None, bool]:
        time.sleep(0.2)
        with closing(postgres.connect(autocommit=True)) as connection:
            try:
                query = "SELECT holder, polled_at > held_since FROM outbound_transfer_poll_leases"
                ((holder, has_polled),) = connection.execute(query).fetchall()
            except Exception:  # the tables are not there yet
                return None, False
        return (int(holder.split(":")[1]) if holder else None), bool(has_polled)

    return read


def test_another_triggerer_goes_on_when_the_holder_of_the_lease_is_killed(
    sandbox: Sandbox, triggerers: dict[int, list[str]], lease: Callable[[], Any], tmp_path: Path
) -> None:
    def noticed() -> set[str]:
        return {line.split()[0] for file in tmp_path.glob("noticed-*") for line in file.read_text().splitlines()}

    eventually(lambda: lease()[1])
    holder, _ = lease()
    os.kill(holder, signal.SIGKILL)
    killed_at = time.monotonic()
    eventually(lambda: lease()[0] not in (None, holder))
    print(f"another held the lease after {time.monotonic() - killed_at:.1f} s")

    left = [one for pid, own in triggerers.items() if pid != holder for one in own]
    for one in left:
        sandbox.pickup(one, RECIPIENT)
    eventually(lambda: set(left) <= noticed())
    assert lease()[0] in triggerers
