"""The row of a delivery with many files, in each database: its bytes, and the time of a save.

PYTHONPATH=tests .venv/bin/python -m benchmarks.bench_row [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from support import mariadb, postgres
from support.deliveries_table import ManyFiles
from support.quiet import be_quiet
from support.warehouses import Hook, sqlite_hook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    be_quiet()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-row-"))
        hooks = {
            "SQLite": sqlite_hook(Path(folder, "state.db")),
            "PostgreSQL": Hook("postgresql", stack.enter_context(postgres.running_server()).connect),
            "MariaDB": Hook("mysql", stack.enter_context(mariadb.running_server()).connect),
        }
        for name, hook in hooks.items():
            for files in (1, 1_000, 10_000):
                print(f"{name:12}{files:>8,} files{measure(hook, files, arguments.rounds)}", flush=True)


def measure(hook: Hook, files: int, rounds: int) -> str:
    row, took = ManyFiles(hook, files), []
    for _ in range(rounds):
        began = time.perf_counter()
        row.save()
        took.append(1_000 * (time.perf_counter() - began))
    return f"{row.size():>12,} bytes{statistics.median(took):>10.1f} ms a save"


if __name__ == "__main__":
    main()
