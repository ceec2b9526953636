"""Uploads that a delivery of 20 files repeats after its first try has ended in some way: the price of one writer.

A draft is continued only if its last writer has said that it stopped. The peer is a client that would trust any draft:
it repeats the upload that was cut off, and no other.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

FILES = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-repeats-") as folder:
        os.environ["AIRFLOW_HOME"] = folder
        os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"
        measure(Path(folder), arguments.files)
    return 0


def measure(folder: Path, count: int) -> None:
    """Print for each end of the first try how many files the second one uploads again."""
    files = [folder / f"{number:03}.csv" for number in range(count)]
    for file in files:
        file.write_bytes(b"x" * 1_000)
    print(f"files uploaded again, of {count}; a client that trusts any draft: 0, or 1 where an upload was cut off")
    for name, end in {
        "refused at the send (no credit)": refuse,
        "killed at the first upload": partial(kill, "attach", 0),
        f"killed at upload {count // 2}": partial(kill, "attach", count // 2 - 1),
        "killed at the last upload": partial(kill, "attach", count - 1),
        "killed before the send": partial(kill, "send", 0),
    }.items():
        print(f"  {name:32} {count_repeats(files, end):4}")


def count_repeats(files: list[Path], end: Callable[[Any, Any], None]) -> int:
    """Deliver in two tries, of which the first ends so; return the number of uploads beyond one for each file."""
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer_sandbox.testing import running_sandbox
    from support.tasks import CrashableStateStore, FakeTaskInstance, SimulatedClock

    with running_sandbox() as sandbox, mock.patch.dict(os.environ):
        sandbox.patch_account(requests_per_window=1_000_000, billing="per_transfer", credits=9)
        os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = sandbox.airflow_connection()
        arguments: dict[str, Any] = {"subject": "S", "recipients": ["ann@example.com"], "keep_draft": True}
        ti = FakeTaskInstance(
            lambda: DeliverFilesOperator(task_id="deliver", files=list(map(str, files)), **arguments),
            SimulatedClock(sandbox),
            store=CrashableStateStore(),
        )
        end(sandbox, ti)
        ti.clear()
        sent = ti.run()["id"]
        assert [row["transfer_id"] for row in sandbox.ledger() if row["kind"] == "billed"] == [sent]
        done = [call for call in sandbox.requests() if call["path"].endswith("/files") and call["status"] == 201]
    return len(done) - len(files)


def kill(operation: str, skip: int, sandbox: Any, ti: Any) -> None:
    """Kill the process when the service has answered such a call."""
    from outbound_transfer.protocol.messages import Operation
    from support.tasks import ProcessCrashed, dying_after

    if operation == "send":
        sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 502})
    with dying_after(Operation(operation), ti.store, skip):
        try:
            ti.run()
        except ProcessCrashed:
            return
    raise AssertionError("it was not killed")


def refuse(sandbox: Any, ti: Any) -> None:
    """Let the service refuse the send: the try ends with no call under way."""
    sandbox.patch_account(credits=0)
    try:
        ti.run()
    except Exception as error:
        assert "no_credit" in str(error), error
    sandbox.patch_account(credits=9)


if __name__ == "__main__":
    sys.exit(main())
