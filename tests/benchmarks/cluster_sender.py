"""A process that sends one-file transfers, one after the other, until it is terminated: ``… REPORT DELIVERED``.

Each delivery becomes a line of ``DELIVERED``: when it began, and when it ended, once it has.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.tasks import FakeTaskInstance


def main(report: str, delivered: str) -> None:
    clock = SimpleNamespace(sleep=time.sleep, clock=time.monotonic)
    given = {"subject": "Report", "recipients": ["ann@example.com"], "files": report}

    def write(text: str) -> None:
        with Path(delivered).open("a") as file:
            file.write(text)

    for number in count():
        write(f"{time.time()} ")
        FakeTaskInstance(
            lambda: DeliverFilesOperator(task_id="deliver", **given), clock, run_id=f"run{os.getpid()}.{number}"
        ).run()
        write(f"{time.time()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
