"""Deliveries of files that a server has: made, changed in the middle of a read, and compared byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.deliveries import DELIVERY
from support.deliveries import digest as digest
from support.tasks import FakeTaskInstance, SimulatedClock, task_instance

MB = 1024 * 1024

#: Names that a service, a URI or a shell could take for something else.
NAMES = (
    "plain.csv", "with space.csv", "Über-報告 📦.csv", "e\u0301.csv", "50%25 #1?a=b&c+d;e.csv",
    "quote\"s and 'apostrophes'.csv", ".hidden", "[ab]*.csv", "$(touch owned) `id`.csv", "-rf",
)  # fmt: skip


def delivery_maker(sandbox: Any) -> Callable[..., FakeTaskInstance]:
    time = SimulatedClock(sandbox)

    def make(*files: Any, **arguments: Any) -> FakeTaskInstance:
        return task_instance(DeliverFilesOperator, time, files=list(files), **DELIVERY, **arguments)

    return make


def pattern(size: int) -> bytes:
    """Bytes of which no two chunks are alike."""
    return b"".join(number.to_bytes(8, "big") for number in range(size // 8 + 1))[:size]


def stored(sandbox, transfer_id: str) -> dict[str, str]:
    files = sandbox.transfer(transfer_id)["files"]
    return {file["name"]: sandbox.stored_file(transfer_id, file["id"])["sha256"] for file in files}


def open_files(folder: str) -> list[str]:
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(os.readlink(descriptor))
    return [link for link in links if link.startswith(folder)]


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most memory that this process has held inside the block, beyond what it held at its beginning; in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    before, peak = _status("VmRSS"), list[int]()
    try:
        yield peak
    finally:
        peak.append(_status("VmHWM") - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
