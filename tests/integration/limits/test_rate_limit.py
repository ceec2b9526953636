"""Many files, and many deliveries on one key, under the real limit of 60 calls in 60 seconds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.calls import die, during_upload
from support.deliveries import BOTH_MODES, DELIVERY, billed, counts, digest, small_files
from support.tasks import SharedSimulatedClock, task_instance
from support.virtual_time import VirtualTime
from support.waiting_tasks import WaitingTask

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
def test_500_files_take_just_the_time_that_the_limit_allows(connection, sandbox, tmp_path) -> None:
    arguments, time = DELIVERY | {"files": small_files(tmp_path / "in", 500), "deferrable": True}, VirtualTime(sandbox)
    with time.running():
        result = WaitingTask(lambda: DeliverFilesOperator(task_id="deliver", **arguments), time).run()

    report("500 files", sandbox, time.now)
    assert result["status"] == "pending"
    done = counts(sandbox)
    assert done["POST", "transfers", 201] == done["POST", "send", 200] == 1
    assert done["POST", "files", 201] == 500
    assert span(sandbox) >= least_seconds(502) == 480, "or the sandbox does not limit"
    assert span(sandbox) <= 480 * 1.05
    assert 8 <= refused_for_rate(sandbox) <= 2 * 8 * AT_ONCE, "for each window each upload at once, hardly more"
    assert len(billed(sandbox)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("death", ["an error", "a kill"])
def test_500_files_interrupted_are_sent_once(deliver, sandbox, time, stored, tmp_path, death) -> None:
    ti = deliver(small_files(tmp_path / "in", 500), retries=1)

    def end() -> None:
        if death == "a kill":
            die()
        raise OSError("the disk")

    with during_upload("0249.txt", 50, end):
        result = ti.run()

    report(f"500 files interrupted by {death}", sandbox, time.now)
    assert ti.try_number == 2
    done = counts(sandbox)
    assert done["POST", "files", 201] <= 500 + 250 + AT_ONCE, "those of a try that was cut off are uploaded again"
    assert done["POST", "files", 200] == 0
    assert done["POST", "files", 500] <= AT_ONCE, "those that were cut off"
    assert stored(result["id"]) == {f"{number:04}.txt": digest(f"{number:0100}".encode()) for number in range(500)}
    assert billed(sandbox) == {result["id"]: 1}


DELIVERIES, FILES = 20, 5


@BOTH_MODES
def test_twenty_deliveries_share_one_key(no_time_of_its_own, connection, sandbox, stored, tmp_path, deferrable) -> None:
    time = SharedSimulatedClock(sandbox, DELIVERIES)
    files = [small_files(tmp_path / str(number), FILES) for number in range(DELIVERIES)]

    def deliver(number: int) -> tuple[str, float]:
        # The clock knows one thread of each delivery.
        arguments = DELIVERY | {"files": files[number], "deferrable": deferrable, "max_parallel_uploads": 1}
        with time.thread():
            task = task_instance(DeliverFilesOperator, time, task_id=f"task_{number}", **arguments)
            return task.run()["id"], time.now

    with ThreadPoolExecutor(DELIVERIES) as pool:
        ends = dict(pool.map(deliver, range(DELIVERIES)))

    report("20 deliveries", sandbox, time.now)
    print(f"finished after {min(ends.values()):.1f} to {max(ends.values()):.1f} s")
    least = least_seconds(DELIVERIES * (FILES + 2))
    assert billed(sandbox) == dict.fromkeys(ends, 1)
    assert {len(stored(transfer_id)) for transfer_id in ends} == {FILES}
    assert counts(sandbox)["POST", "transfers", 201] == len(ends) == DELIVERIES
    assert span(sandbox) >= least, "or the sandbox does not limit"
    assert max(ends.values()) <= least * 1.5, "who is refused again waits longer, but not for long"
    assert refused_for_rate(sandbox) <= 2 * DELIVERIES * (least // WINDOW + 1), "each asks a few times a window"
