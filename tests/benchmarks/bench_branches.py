"""To each branch its rows: ``dags/deliver_by_branch.py`` in a real Airflow, while its tasks are killed.

The rows of all branches are in one table of a PostgreSQL. At each step of a delivery, before and after the service has
done it, a call is held, and every task that delivers then is killed. What each branch got is compared byte by byte with
what PostgreSQL says. Beside it, without Airflow and the service: the same queries one after another, and one pass of
pandas over all rows that writes a file for each branch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, is_running, running_stack
from support.postgres import Database
from support.repository import REPOSITORY

DAG, MONTH = "deliver_by_branch", "2026-01"
TABLES = """
    CREATE TABLE orders AS SELECT
        i AS id, '2026-01' AS month, 'branch ' || i % {branches} AS branch, 'customer ' || i % 10000 AS customer,
        md5(i::text) AS reference, (i % 100000)::numeric / 100 AS total, date '2026-01-01' + i % 31 AS day
    FROM generate_series(1, {rows}) AS i;
    CREATE INDEX ON orders (month, branch);
    CREATE TABLE branch_contacts AS SELECT
        'branch ' || i AS branch, 'branch-' || i || '@example.com' AS email FROM generate_series(0, {branches} - 1) AS i
"""
BRANCH = "SELECT * FROM orders WHERE month = '2026-01' AND branch = %s ORDER BY id"
CHUNK_ROWS = 10_000
#: The calls of a delivery, each held before or after the service has done it.
HOLDS = [
    {"kind": "hold", "method": "POST", "path": path, "effect": effect, "then": then}
    for path in ("/v1/transfers", "*/files", "*/send")
    for effect, then in (("before", "proceed"), ("after", "reset"))
]


class BranchesStack(ManySandboxesStack):
    """Run the example with the rows, and the memory of delivery keys, in a database of its own."""

    def start(self) -> None:
        (self.folder / "dags").mkdir()
        shutil.copy(REPOSITORY / "dags" / f"{DAG}.py", self.folder / "dags")
        self.dags = self.folder / "dags"
        with closing(self.database.connect(autocommit=True)) as connection:
            connection.execute("CREATE DATABASE sales")
        self.sales = Database(self.database.host, "sales")
        super().start()
        self.sandbox.patch_account(outstanding_transfer_limit=10**6)

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID": "sales",
        }

    def connections(self) -> dict[str, str]:
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": super().connections()["AIRFLOW_CONN_SANDBOX_0"],
            "AIRFLOW_CONN_SALES": self.sales.airflow_connection,
        }


class Killer:
    """Lets one run deliver, and kills what delivers at each step; notes the memory of each process of a task."""

    def __init__(self, stack: BranchesStack, kills: int, every: int) -> None:
        self.stack, self.every = stack, every
        self.holds = [HOLDS[number % len(HOLDS)] for number in range(kills)]
        self.killed = 0
        self.peaks: dict[str, float] = {}

    def run(self) -> str:
        """Deliver, and clear what has failed, until the run succeeds; return its id."""
        run_id = self.stack.airflow.trigger(DAG, {"month": MONTH})
        path = f"dags/{DAG}/dagRuns/{run_id}"
        for step in self._holding():
            self._note_memory(self._tasks(run_id))
            if step:
                self._kill(self._tasks(run_id))
            state = self.stack.airflow.call("GET", path)["state"]
            if state == "failed":
                body = {"dry_run": False, "only_failed": True, "dag_run_id": run_id}
                self.stack.airflow.call("POST", f"dags/{DAG}/clearTaskInstances", body)
            if state == "success":
                self.stack.sandbox.clear_faults()
                return run_id
            self.stack.processes.check()
            time.sleep(0.3)
        raise AssertionError  # it yields without an end

    def _holding(self) -> Iterator[bool]:
        """Yield whether a call is held now; the next is planned when some more were sent."""
        sandbox = self.stack.sandbox
        for number, hold in enumerate(self.holds):
            while len(sandbox.sent()) < number * self.every:
                yield False
            sandbox.plan_faults(hold)
            while sandbox.faults()[-1]["state"] == "planned":
                yield False
            yield True
            sandbox.release_held_calls()
        while True:
            yield False

    def _tasks(self, run_id: str) -> list[dict[str, Any]]:
        path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances"
        rows: list[dict[str, Any]] = self.stack.airflow.call("GET", path, limit=1000, state="running")["task_instances"]
        return [row for row in rows if row["pid"]]

    def _note_memory(self, tasks: Iterable[dict[str, Any]]) -> None:
        for row in tasks:
            with suppress(OSError):
                peak = status(row["pid"], "VmHWM")
                self.peaks[row["task_id"]] = max(self.peaks.get(row["task_id"], 0), peak)

    def _kill(self, tasks: Iterable[dict[str, Any]]) -> None:
        pids = [row["pid"] for row in tasks if row["task_id"] == "deliver" and is_running(row["pid"])]
        self.stack.kill(pids)
        self.killed += len(pids)


def status(pid: int, name: str) -> float:
    """Return a figure of ``/proc/<pid>/status`` in MiB; 0 if the process has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next((line.split()[1] for line in lines if line.startswith(name)), 0)) / 1024


def violations(stack: BranchesStack, branches: int) -> Iterator[str]:
    """What the service says that each branch got, and what PostgreSQL says that it should have got."""
    sandbox = stack.sandbox
    sent = [sandbox.transfer(each) for each in sandbox.sent()]
    times = Counter(recipient["email"] for one in sent for recipient in one["recipients"])
    yield from (f"{email} got {count} transfers" for email, count in times.items() if count != 1)
    by_email = {one["recipients"][0]["email"]: one for one in sent}
    with closing(stack.sales.connect()) as connection:
        for number in range(branches):
            one = by_email.get(f"branch-{number}@example.com")
            expected = hashlib.sha256(as_csv(connection, f"branch {number}")).hexdigest()
            found = [sandbox.stored_file(one["id"], file["id"])["sha256"] for file in one["files"]] if one else []
            if found != [expected]:
                yield f"branch {number} got {found} instead of {expected}"


def as_csv(connection: Any, branch: str) -> bytes:
    """Return the rows of a branch as PostgreSQL writes them, with the line breaks of RFC 4180."""
    query = BRANCH.replace("%s", f"'{branch}'")
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)") as rows:
        return b"".join(map(bytes, rows)).replace(b"\n", b"\r\n")


def one_query_a_branch(folder: Path, branches: int) -> None:
    from outbound_transfer.queries.export import QueryExport
    from outbound_transfer.queries.file_formats import FORMATS
    from outbound_transfer.queries.spec import QuerySpec

    export: Any = QueryExport("sales", logging.getLogger(__name__))  # type: ignore[arg-type]
    for number in range(branches):
        with (folder / f"{number}.csv").open("wb") as file:
            export.write(QuerySpec(BRANCH, f"{number}.csv", FORMATS["csv"], [f"branch {number}"]), file)


def one_pass(folder: Path, branches: int) -> None:
    import pandas as pd
    from airflow.sdk.bases.hook import BaseHook

    engine, began = BaseHook.get_hook("sales").get_sqlalchemy_engine(), set[str]()
    query = "SELECT * FROM orders WHERE month = '2026-01' ORDER BY id"
    with ExitStack() as stack, engine.connect().execution_options(stream_results=True) as connection:
        files = {f"branch {n}": stack.enter_context((folder / f"{n}.csv").open("wb")) for n in range(branches)}
        for chunk in pd.read_sql(query, connection, chunksize=CHUNK_ROWS):
            for branch, part in chunk.groupby("branch"):
                part.to_csv(files[str(branch)], index=False, header=branch not in began, lineterminator="\r\n")
                began.add(str(branch))
    engine.dispose()


WAYS: dict[str, Callable[[Path, int], None]] = {"one query a branch": one_query_a_branch, "one pass (pandas)": one_pass}


def measure(way: str, branches: int) -> dict[str, float]:
    """Seconds, and by how many MiB the peak memory of this process grew."""
    with tempfile.TemporaryDirectory(prefix="bench-branches-") as folder:
        WAYS[way](Path(folder), 1 if way == "one query a branch" else branches)  # what is imported is no growth
        before, started = _peak(), time.perf_counter()
        WAYS[way](Path(folder), branches)
        return {"seconds": time.perf_counter() - started, "grown": _peak() - before, "peak": _peak()}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--branches", type=int, default=200)
    parser.add_argument("--kills", type=int, default=12, help="times that all tasks which deliver are killed")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.branches)))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="bench-branches-"))
    with running_stack(folder / "stack", Reporter(), 1, kind=BranchesStack) as stack:
        with closing(stack.sales.connect(autocommit=True)) as connection:
            connection.execute(TABLES.format(rows=arguments.rows, branches=arguments.branches))
            connection.execute("ANALYZE")
        print(f"{arguments.rows:,} rows of {arguments.branches} branches", flush=True)
        for way in WAYS:
            run = _measured(way, arguments.branches, stack.connections())
            print(f"{way:20} {run['seconds']:>8.1f} s  +{run['grown']:.0f} MiB, peak {run['peak']:.0f} MiB", flush=True)
        stack.wait_for_dags(stack.airflow, DAG)
        killer = Killer(stack, arguments.kills, max(arguments.branches // (arguments.kills + 1), 1))
        started = time.perf_counter()
        run_id = killer.run()
        seconds = time.perf_counter() - started
        again = Killer(stack, 0, 1)
        again.run()
        broken = list(violations(stack, arguments.branches))
        print(f"{'a task a branch':20} {seconds:>8.1f} s  in Airflow, {seconds / arguments.branches:.1f} s a branch")
        for task, peak in {**again.peaks, **killer.peaks}.items():
            print(f"{'':20} peak {peak:.0f} MiB: task {task!r}, Airflow included")
        calls, summary = len(stack.sandbox.requests()), stack.airflow.xcom(DAG, run_id, "summary")
        print(f"killed {killer.killed} processes at {len(killer.holds)} held calls; {calls} calls in all; {summary}")
        print(f"{len(stack.sandbox.sent())} transfers sent in two runs; {len(broken)} branches with another result")
        print("\n".join(broken[:20]))
    shutil.rmtree(folder)
    return 1 if broken else 0


def _measured(way: str, branches: int, connections: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_branches", "--measure", way, "--branches", str(branches)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **connections})
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(main())
