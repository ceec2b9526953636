"""Many files, and many deliveries on one key, under the real limit of 60 calls in 60 seconds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import timezone
from outbound_transfer.client.retry import WAITED_JITTER
from outbound_transfer.cluster import database
from outbound_transfer.files.sources import Source
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import BOTH_MODES, DELIVERY, billed, counts, digest, small_files, task_instance
from support.tasks import CrashableStateStore, ProcessCrashed, SharedSimulatedClock, SimulatedClock

WINDOW, ALLOWED = 60, 60
#: Uploads at once, where nothing else is said.
AT_ONCE = 4


def least_seconds(calls: int) -> int:
    """The least time in which the limit lets ``calls`` through: whole windows to wait for before the last."""
    return (calls - 1) // ALLOWED * WINDOW


def span(sandbox: Sandbox) -> float:
    """Seconds of the service's clock between the first call and the last."""
    first, *_, last = (datetime.fromisoformat(call["timestamp"]) for call in sandbox.requests())
    return (last - first).total_seconds()


def report(what: str, sandbox: Sandbox, waited: float) -> None:
    refused = sum(call["status"] == 429 for call in sandbox.requests())
    done = len(sandbox.requests()) - refused
    print(
        f"{what}: {done} calls and {refused} times 429; {waited:.1f} s waited, {span(sandbox):.1f} s of the service's "
        f"clock; {least_seconds(done)} s at the least"
    )


def refused_for_rate(sandbox: Sandbox) -> int:
    return sum(call["status"] == 429 for call in sandbox.requests())


@pytest.mark.slow
def test_500_files_take_just_the_time_that_the_limit_allows(
    no_time_of_its_own, deliver, sandbox, time, tmp_path
) -> None:
    ti = deliver(small_files(tmp_path / "in", 500), deferrable=True)
    result = ti.run()

    report("500 files", sandbox, time.now)
    assert result["status"] == "pending"
    assert counts(sandbox) - Counter({("POST", "files", 429): 99}) == {
        ("POST", "transfers", 201): 1,
        ("POST", "files", 201): 500,
        ("POST", "send", 200): 1,
        ("GET", "", 200): ti.deferrals,
    }
    assert least_seconds(502 + ti.deferrals) == 480
    assert span(sandbox) >= 480, "or the sandbox does not limit"
    assert span(sandbox) <= 480 * 1.02
    assert 8 <= refused_for_rate(sandbox) <= 8 * AT_ONCE, "one for each window and each upload at once"
    assert len(billed(sandbox)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("death", ["an error", "a kill"])
def test_500_files_interrupted_are_sent_once(deliver, sandbox, time, stored, tmp_path, monkeypatch, death) -> None:
    ti = deliver(small_files(tmp_path / "in", 500), deferrable=True, retries=1)
    ti.store = store = CrashableStateStore()
    alive, whole, deaths = ti.make, Source._chunks, []

    def make() -> Any:
        store.dead = False
        return alive()

    def chunks(self: Source, on_progress: Callable[[int], object]) -> Iterator[bytes]:
        for chunk in whole(self, on_progress):
            if self.name == "0249.txt" and not deaths:
                deaths.append(self.name)
                yield chunk[:50]
                store.dead = death == "a kill"
                raise ProcessCrashed
            yield chunk

    ti.make = make
    monkeypatch.setattr(Source, "_chunks", chunks)

    result = ti.run()

    report(f"500 files interrupted by {death}", sandbox, time.now)
    assert deaths
    assert ti.try_number == 2
    done = counts(sandbox)
    assert done["POST", "files", 201] <= 500 + 250 + AT_ONCE, "those of a try that was cut off are uploaded again"
    assert done["POST", "files", 200] == 0
    assert done["POST", "files", 500] <= AT_ONCE, "those that were cut off"
    assert stored(result["id"]) == {f"{number:04}.txt": digest(f"{number:0100}".encode()) for number in range(500)}
    assert billed(sandbox) == {result["id"]: 1}


class Reader(OutboundTransferOperator):
    """A task that reads page after page, as the one that stores the listing does."""

    def run_task(self, hook: OutboundTransferHook, context: Any) -> int:
        return len([hook.list_transfers(limit=1) for _page in range(30)])


@pytest.mark.parametrize("allowed", [1, 5, 20])
def test_a_task_that_reads_more_than_a_key_allows_comes_to_its_end(
    no_time_of_its_own, connection, sandbox, time, allowed
) -> None:
    """It is deferred once at most, as each of its processes begins from the first page."""
    sandbox.patch_account(requests_per_window=allowed)
    task = task_instance(Reader, time, deferrable=True)
    assert task.run() == 30
    assert task.deferrals <= 1
    assert sum(call["status"] == 200 for call in sandbox.requests()) <= 30 + allowed


DELIVERIES, FILES = 20, 5


@pytest.fixture
def allowance(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedClock], None]:
    """Let tasks share the key's allowance in a database whose time is simulated."""

    def share(time: SimulatedClock) -> None:
        monkeypatch.setenv(
            "AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")})
        )
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID", "ledger")
        monkeypatch.setattr(database, "_databases", {})
        began = timezone.utcnow()
        monkeypatch.setattr(Warehouse, "epoch_time", lambda self, tx: began.timestamp() + time.now)
        monkeypatch.setattr(timezone, "utcnow", lambda: began + timedelta(seconds=time.now))

    return share


@BOTH_MODES
def test_twenty_deliveries_reserve_their_calls(
    no_time_of_its_own, allowance, connection, sandbox, stored, tmp_path, deferrable
) -> None:
    time = SharedSimulatedClock(sandbox, DELIVERIES)
    allowance(time)
    files = [small_files(tmp_path / str(number), FILES) for number in range(DELIVERIES)]

    def deliver(number: int) -> tuple[str, float]:
        task = task_instance(
            DeliverFilesOperator,
            time,
            **DELIVERY | {"files": files[number], "deferrable": deferrable, "max_parallel_uploads": 1},
        )
        task.run_id = f"run {number}"
        with time.thread():
            transfer_id = task.run()["id"]
            starts.append(1 + task.deferrals)
            return transfer_id, time.now

    starts: list[int] = []
    with ThreadPoolExecutor(DELIVERIES) as pool:
        ends = dict(pool.map(deliver, range(DELIVERIES)))

    calls = DELIVERIES * (FILES + 2)
    report("20 deliveries with an allowance", sandbox, time.now)
    print(f"finished after {min(ends.values()):.1f} to {max(ends.values()):.1f} s; {sum(starts)} starts")
    assert billed(sandbox) == dict.fromkeys(ends, 1)
    assert counts(sandbox)["POST", "transfers", 201] == len(ends) == DELIVERIES
    assert refused_for_rate(sandbox) == 0
    assert span(sandbox) >= least_seconds(calls), "or the sandbox does not limit"
    assert max(ends.values()) <= least_seconds(calls) + 5
    assert sum(starts) <= 1.5 * calls


@BOTH_MODES
def test_twenty_deliveries_share_one_key(no_time_of_its_own, connection, sandbox, stored, tmp_path, deferrable) -> None:
    time = SharedSimulatedClock(sandbox, DELIVERIES)
    files = [small_files(tmp_path / str(number), FILES) for number in range(DELIVERIES)]

    def deliver(number: int) -> tuple[str, float]:
        # The clock knows one thread of each delivery.
        arguments = DELIVERY | {"files": files[number], "deferrable": deferrable, "max_parallel_uploads": 1}
        with time.thread():
            return task_instance(DeliverFilesOperator, time, **arguments).run()["id"], time.now

    with ThreadPoolExecutor(DELIVERIES) as pool:
        ends = dict(pool.map(deliver, range(DELIVERIES)))

    report("20 deliveries", sandbox, time.now)
    print(f"finished after {min(ends.values()):.1f} to {max(ends.values()):.1f} s")
    least = least_seconds(DELIVERIES * (FILES + 2))
    assert billed(sandbox) == dict.fromkeys(ends, 1)
    assert {len(stored(transfer_id)) for transfer_id in ends} == {FILES}
    assert counts(sandbox)["POST", "transfers", 201] == len(ends) == DELIVERIES
    assert span(sandbox) >= least, "or the sandbox does not limit"
    assert max(ends.values()) <= least * (1 + WAITED_JITTER), "who is refused again waits longer, but not for long"
    assert refused_for_rate(sandbox) <= DELIVERIES * (least // WINDOW + 1), "each asks hardly more than once a window"
