"""The page of deliveries in a real Airflow's API server, over HTTP, with 100,000 deliveries.

PYTHONPATH=tests .venv/bin/python -m benchmarks.bench_page [--deliveries N] [--rounds N] [postgresql] [sqlite]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.airflow_stack.ui import running_ui
from support.deliveries_table import DeliveriesTable
from support.postgres import running_server
from support.warehouses import Hook, sqlite_hook

#: Of so many Dags, one is of nobody's who asks: Airflow does not know it.
DAGS = ("deliver_files", "deliver_files", "deliver_files", "forgotten")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warehouses", nargs="*", metavar="WAREHOUSE", help=f"of {', '.join(WAREHOUSES)}")
    parser.add_argument("--deliveries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    for name in arguments.warehouses or WAREHOUSES:
        with tempfile.TemporaryDirectory(prefix="bench-page-") as folder, WAREHOUSES[name](Path(folder)) as found:
            measure(name, Path(folder), *found, arguments.deliveries, arguments.rounds)
    return 0


@contextmanager
def _postgresql(folder: Path) -> Iterator[tuple[Hook, str]]:
    with running_server() as server:
        yield Hook("postgresql", server.connect), server.airflow_connection


@contextmanager
def _sqlite(folder: Path) -> Iterator[tuple[Hook, str]]:
    file = folder / "warehouse.db"
    yield sqlite_hook(file), json.dumps({"conn_type": "sqlite", "host": str(file)})


WAREHOUSES: dict[str, Callable[[Path], Any]] = {"postgresql": _postgresql, "sqlite": _sqlite}


def measure(name: str, folder: Path, hook: Hook, connection: str, deliveries: int, rounds: int) -> None:
    started = time.perf_counter()
    DeliveriesTable(hook).fill(deliveries, dags=DAGS)
    print(f"\n{name}: {deliveries:,} deliveries made in {time.perf_counter() - started:.0f} s", flush=True)
    with running_ui(folder / "airflow", connection, "") as stack:
        token = stack.sign_in("", "ann")
        with httpx.Client(
            base_url=stack.servers[""].url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60
        ) as http:
            print(f"{'':34} p50 ms   p95 ms   max ms   of {rounds}")
            milliseconds(http)  # the very first one loads modules
            took = [milliseconds(http) for _ in range(rounds)]
            print(f"  {'the page':30} {shown(took)}", flush=True)


def milliseconds(http: httpx.Client) -> float:
    started = time.perf_counter()
    http.get("/outbound-transfer/deliveries").raise_for_status()
    return (time.perf_counter() - started) * 1_000


def shown(took: list[float]) -> str:
    took = sorted(took)
    return f"{statistics.median(took):8.0f} {took[int(len(took) * 0.95)]:8.0f} {took[-1]:8.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
