"""Several uploads at once: the largest first, as many as asked for, and none more after a failure."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.timeouts import eventually

UPLOAD = {"method": "POST", "path": "*/files"}
HOLD, HOLD_ANSWER = {"kind": "hold", **UPLOAD}, {"kind": "hold", "effect": "after", **UPLOAD}
FORBIDDEN = {"kind": "error", "status": 403, "code": "sending_not_permitted", **UPLOAD}


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Nine files, of which neither the first nor the last is the largest."""
    for name in "abcdefgh":
        (tmp_path / name).write_bytes(name.encode() * 1_000)
    (tmp_path / "each").write_bytes(b"l" * 2_000)
    return f"{tmp_path}/*"


def states(sandbox: Sandbox) -> list[str]:
    return [fault["state"] for fault in sandbox.faults()]


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act)
        yield
        acted.result()


def uploads(sandbox: Sandbox) -> int:
    answered = sum(call["path"].endswith("/files") for call in sandbox.requests())
    return answered + states(sandbox).count("triggered")


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_the_largest_file_is_uploaded_first_and_no_more_at_once_than_are_asked_for(
    deliver: Callable[..., Any], sandbox: Sandbox, files: str, at_once: int
) -> None:
    sandbox.plan_faults(HOLD_ANSWER, *[HOLD] * 7)
    stored, most = list[str](), list[int]()

    def release() -> None:
        eventually(lambda: states(sandbox)[0] == "held")
        transfer_id = sandbox.faults()[0]["call"]["path"].split("/")[3]
        stored.extend(file["name"] for file in eventually(lambda: sandbox.transfer(transfer_id)["files"]))
        sandbox.release_held_calls()
        while "planned" in states(sandbox):
            eventually(lambda: states(sandbox).count("held") >= min(at_once, 8 - states(sandbox).count("triggered")))
            most.append(states(sandbox).count("held"))
            sandbox.release_held_calls()
        sandbox.clear_faults()

    with meanwhile(release):
        assert len(deliver(files, max_parallel_uploads=at_once)) == 9
    assert stored == ["each"]
    assert max(most) == at_once


def test_a_failed_upload_ends_the_others(deliver: Callable[..., Any], sandbox: Sandbox, files: str) -> None:
    sandbox.plan_faults({**HOLD, "skip": 1}, HOLD, FORBIDDEN)

    def release() -> None:
        eventually(lambda: states(sandbox) == ["held", "held", "triggered"])
        sandbox.release_held_calls()

    with meanwhile(release), pytest.raises(Exception, match="sending_not_permitted"):
        deliver(files, max_parallel_uploads=3)
    assert uploads(sandbox) <= 1 + 2 + 3, "the largest, those that were held, and those that had a fault"
    sandbox.assert_nothing_sent()


class TaskTimedOut(BaseException):
    """As Airflow raises a timeout: by a signal, in the main thread."""


def test_a_task_that_is_interrupted_uploads_nothing_more(deliver, sandbox, files) -> None:
    def raise_it(*_: object) -> None:
        raise TaskTimedOut

    def stop() -> None:
        eventually(lambda: states(sandbox) == ["held"] * 3)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, raise_it)
    try:
        sandbox.plan_faults({**HOLD, "skip": 1}, HOLD, HOLD)
        with meanwhile(stop), pytest.raises(TaskTimedOut):
            deliver(files, max_parallel_uploads=3)
        sandbox.release_held_calls()
    finally:
        signal.signal(signal.SIGINT, before)
    eventually(lambda: states(sandbox) == ["triggered"] * 3)
    assert uploads(sandbox) <= 1 + 3 + 3
    sandbox.assert_nothing_sent()
