"""The service's limits: names, sizes, and 60 calls in 60 seconds for all deliveries on one key."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from outbound_transfer.exceptions import InvalidDelivery
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.domain.clock import Clock
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException, timezone
from support.deliveries import BOTH_MODES, DELIVERY, billed, counts, small_files
from support.remote_files import delivery_maker, stored
from support.tasks import FakeTaskInstance, SharedSimulatedClock, SimulatedClock, task_instance


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox) -> Callable[..., FakeTaskInstance]:
    return delivery_maker(sandbox)


#: Names that are refused, with the word of the reason.
REFUSED = {
    "back\\slash.txt": "separator",
    "carriage\r\nX-Evil: 1": "control",
    "escape\x1b[31m": "control",
    "lone surrogate \udcff.txt": "Unicode",
    "   ": "empty",
}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=[ascii(name) for name in REFUSED])
@pytest.mark.parametrize("way", ["path", "glob", "mapping"])
def test_a_name_that_cannot_be_kept_creates_nothing(deliver, sandbox, tmp_path, name, reason, way) -> None:
    (tmp_path / "a.txt").write_bytes(b"a")
    os.close(os.open(os.path.join(os.fsencode(tmp_path), os.fsencode(name)), os.O_CREAT))
    mapping = {"path": str(tmp_path / "a.txt"), "name": name}
    files = {"path": str(tmp_path / name), "glob": f"{tmp_path}/*", "mapping": mapping}

    with pytest.raises((AirflowFailException, InvalidDelivery), match=reason) as refusal:
        deliver(files[way]).run()  # a name in the Dag file is refused when that is parsed

    assert sandbox.requests() == []
    assert str(refusal.value).isprintable(), "the log shows the name, and obeys nothing in it"


LIMIT = 1024 * 1024
TOO_LARGE = r"file_too_large.*b\.bin.*2 MB.*1 MB.*split it or have the limit raised"


@pytest.fixture
def too_large(sandbox, tmp_path) -> str:
    sandbox.patch_account(per_file_limit_mb=1)
    for name, size in (("a.bin", LIMIT), ("b.bin", LIMIT + 1), ("c.bin", 1)):
        (tmp_path / name).write_bytes(bytes(size))
    return f"{tmp_path}/*.bin"


def test_a_byte_over_the_limit_uploads_nothing_and_says_what_to_do(deliver, sandbox, too_large) -> None:
    ti = deliver(too_large, retries=3)
    for tries in (1, 2):
        with pytest.raises(AirflowFailException, match=TOO_LARGE):
            ti.run()
        assert ti.try_number == tries, "no retry would end otherwise"
        assert counts(sandbox)["POST", "files", 201] == 0, "not the files that are small enough either"
        ti.clear()

    assert counts(sandbox)["POST", "files", 413] == 2, "in each try the first upload, and the only one"
    assert sandbox.ledger() == []
    sandbox.patch_account(per_file_limit_mb=2)
    assert set(stored(sandbox, ti.run()["id"])) == {"a.bin", "b.bin", "c.bin"}


def test_attaching_alone_uploads_nothing_over_the_limit(connection, sandbox, too_large) -> None:
    time = SimulatedClock(sandbox)
    transfer_id = task_instance(CreateTransferOperator, time, **DELIVERY).run()
    attach = task_instance(AttachFilesOperator, time, transfer_id=transfer_id, files=too_large)
    with pytest.raises(AirflowFailException, match=TOO_LARGE):
        attach.run()
    assert stored(sandbox, transfer_id) == {}
    sandbox.patch_account(per_file_limit_mb=2)
    attach.clear()
    assert [file["name"] for file in attach.run()] == ["a.bin", "b.bin", "c.bin"], "as they were named"


WINDOW, ALLOWED = 60, 60


DELIVERIES, FILES = 20, 5


@BOTH_MODES
def test_twenty_deliveries_share_one_key(connection, sandbox, tmp_path, monkeypatch, deferrable) -> None:
    now = timezone.utcnow()  # real time stands still, so that the machine's speed plays no part
    monkeypatch.setattr(timezone, "utcnow", lambda: now)
    monkeypatch.setattr(Clock, "now", lambda clock: clock.offset)
    time = SharedSimulatedClock(sandbox, DELIVERIES)
    files = [small_files(tmp_path / str(number), FILES) for number in range(DELIVERIES)]

    def deliver(number: int) -> tuple[str, float]:
        # The clock knows one thread of each delivery.
        arguments: Any = DELIVERY | {"files": files[number], "deferrable": deferrable, "max_parallel_uploads": 1}
        with time.thread():
            task = task_instance(DeliverFilesOperator, time, task_id=f"task_{number}", **arguments)
            return task.run()["id"], time.now

    with ThreadPoolExecutor(DELIVERIES) as pool:
        ends = dict(pool.map(deliver, range(DELIVERIES)))

    least = (DELIVERIES * (FILES + 2) - 1) // ALLOWED * WINDOW  # whole windows to wait for before the last call
    assert billed(sandbox) == dict.fromkeys(ends, 1)
    assert {len(stored(sandbox, transfer_id)) for transfer_id in ends} == {FILES}
    assert counts(sandbox)["POST", "transfers", 201] == len(ends) == DELIVERIES
    first, *_, last = (datetime.fromisoformat(call["timestamp"]) for call in sandbox.requests())
    assert (last - first).total_seconds() >= least, "or the sandbox does not limit"
    assert max(ends.values()) <= least * 1.5, "who is refused again waits longer, but not for long"
    refused = sum(call["status"] == 429 for call in sandbox.requests())
    assert refused <= 2 * DELIVERIES * (least // WINDOW + 1), "each asks a few times a window"
