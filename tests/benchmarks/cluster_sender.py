"""A process that sends one-file transfers, one after the other, until it is terminated, by tasks of its own."""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from types import SimpleNamespace

from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.tasks import FakeTaskInstance


def main(file: str) -> None:
    clock = SimpleNamespace(sleep=time.sleep, clock=time.monotonic)
    given = {"subject": "Report", "recipients": ["ann@example.com"], "files": file}
    for number in count():
        FakeTaskInstance(
            lambda: DeliverFilesOperator(task_id="deliver", **given), clock, run_id=f"run{os.getpid()}.{number}"
        ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
