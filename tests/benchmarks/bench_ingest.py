"""The event feed into each warehouse, beside dlt reading the same feed into the same databases.

The sandbox serves synthetic events with its rate limit off. Each ingest is a process of its own; its CPU time is that
of the process and its children (a database's server is neither's), its memory what it took above its imports. dlt, with
its defaults, appends without a check for duplicates.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from outbound_transfer_sandbox.testing import Sandbox, running_sandbox

WAREHOUSES = ("sqlite", "duckdb", "postgresql", "iceberg")

#: Those that dlt writes to with its defaults.
PEERS = ("sqlite", "duckdb", "postgresql")


# ---------------------------------------------------------------------------------------------------- in the children


def _megabytes(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def _measured(work: Any) -> dict[str, Any]:
    idle, wall, cpu = _megabytes("VmRSS"), time.monotonic(), sum(os.times()[:4])
    events = work()
    return {
        "events": events,
        "wall": time.monotonic() - wall,
        "cpu": sum(os.times()[:4]) - cpu,
        "memory": _megabytes("VmHWM") - idle,
    }


def ours(target: dict[str, Any]) -> dict[str, Any]:
    """The operator, as a worker runs it."""
    from airflow.sdk.listener import get_listener_manager

    from outbound_transfer.transfers import feed_ingest

    get_listener_manager()  # Airflow's plugins, which a worker has loaded before its task begins
    feed_ingest.FEED_INTERVAL = 0.0  # the sandbox is told the same
    operator = _operator(target)
    operator.max_pages = target["events"] // 1_000
    return _measured(lambda: operator.execute({})["new_events"])


def _operator(target: dict[str, Any]) -> Any:
    if target["warehouse"] == "iceberg":
        from outbound_transfer.lake.catalog import open_catalog
        from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator

        open_catalog("warehouse").create_namespace_if_not_exists("lake")
        return EventFeedToIcebergOperator(task_id="load", iceberg_conn_id="warehouse", table="lake.events")
    from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator

    return EventFeedToSqlOperator(task_id="load", sql_conn_id="warehouse")


def _destination(target: dict[str, Any]) -> Any:
    if target["warehouse"] == "iceberg":
        from outbound_transfer.lake.catalog import open_catalog
        from outbound_transfer.lake.iceberg import IcebergEventDestination

        catalog = open_catalog("warehouse")
        catalog.create_namespace_if_not_exists("lake")
        return IcebergEventDestination(catalog, "lake.events", "bench", keep_snapshots_for=timedelta(0))
    from airflow.sdk import BaseHook

    from outbound_transfer.store.events import EventStore
    from outbound_transfer.store.tables import Tables

    return EventStore(Tables(BaseHook.get_hook("warehouse")), "bench")


def theirs(target: dict[str, Any]) -> dict[str, Any]:
    """dlt's REST client and pipeline."""
    import dlt
    from dlt.sources.helpers.rest_client import RESTClient
    from dlt.sources.helpers.rest_client.auth import BearerTokenAuth

    @dlt.resource(
        name="events", write_disposition="append", max_table_nesting=0, columns={"data": {"data_type": "json"}}
    )
    def events() -> Iterator[list[dict[str, Any]]]:
        client = RESTClient(base_url=target["base_url"], auth=BearerTokenAuth(target["event_api_key"]))
        state = dlt.current.resource_state()
        while state.get("cursor", 0) < target["events"]:
            answer = client.get("/v1/events", params={"cursor": state.get("cursor", 0), "limit": 1_000})
            yield [json.loads(line) for line in answer.content.splitlines()]
            state["cursor"] = int(answer.headers["X-Next-Cursor"])

    destination = {
        "sqlite": lambda: dlt.destinations.sqlalchemy(f"sqlite:///{target['file']}"),
        "duckdb": lambda: dlt.destinations.duckdb(target["file"]),
        "postgresql": lambda: dlt.destinations.postgres(target["url"]),
    }[target["warehouse"]]()
    pipeline = dlt.pipeline("bench", pipelines_dir=target["folder"], destination=destination, dataset_name="feed")

    def work() -> int:
        pipeline.run(events())
        with pipeline.sql_client() as client:
            return int(client.execute_sql(f"SELECT count(*) FROM {client.make_qualified_table_name('events')}")[0][0])

    return _measured(work)


def page(target: dict[str, Any]) -> dict[str, Any]:
    """What each of more pages of 1,000 costs, a connection of its own included, and what an Iceberg table's files have
    come to.
    """
    destination = _destination(target)
    cursor = destination.get_or_create_cursor()
    statements = _count_statements() if target["warehouse"] != "iceberg" else []
    cpu = sum(os.times()[:2])
    took = _load_pages(destination, cursor, target["pages"])
    costs = {
        "median": statistics.median(took),
        "longest": max(took),
        "cpu": (sum(os.times()[:2]) - cpu) / target["pages"],
        "statements": len(statements) / target["pages"],
    }
    for kind in ("data", "metadata"):
        sizes = [path.stat().st_size for path in Path(target["file"], "lake").rglob(f"{kind}/**/*") if path.is_file()]
        costs |= {f"{kind} files": len(sizes), f"{kind} bytes": sum(sizes)}
    return costs


def _count_statements() -> list[str]:
    """Return a list that grows by each statement that is executed from now on."""
    statements: list[str] = []
    sa.event.listen(sa.Engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    return statements


def _load_pages(destination: Any, cursor: int, count: int) -> list[float]:
    """Load pages of 1,000 events; return the seconds that each takes."""
    from outbound_transfer.client.events import Event, Page

    took = []
    for start in range(cursor, cursor + 1_000 * count, 1_000):
        events = tuple(
            Event(f"b{n}", "transfer_sent", "2026-01-01T00:00:00Z", '{"synthetic": true}', None, n - start)
            for n in range(start + 1, start + 1_001)
        )
        started = time.monotonic()
        destination.load_page(Page(start, start + 1_000, True, events, ()))
        took.append(time.monotonic() - started)
    return took


# ----------------------------------------------------------------------------------------------------- in the parent


def _child(what: str, target: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, json.dumps(target)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{what} into {target['warehouse']} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _connection(warehouse: str, file: str, database: Any) -> str:
    if warehouse == "iceberg":
        Path(file).mkdir(exist_ok=True)
        extra = {"type": "sql", "uri": f"sqlite:///{file}/catalog.db", "warehouse": f"file://{file}/lake"}
        return json.dumps({"conn_type": "iceberg", "extra": extra})
    if warehouse == "postgresql":
        return str(database.airflow_connection)
    return json.dumps({"conn_type": warehouse, "host": file})


def _report(who: str, warehouse: str, result: dict[str, Any]) -> dict[str, float]:
    rate, cpu = result["events"] / result["wall"], result["cpu"] / result["events"] * 1e6
    print(
        f"{warehouse:<11} {who:<10} {result['events']:>9,} {rate:>9,.0f} {cpu:>8,.0f} {result['memory']:>8,.0f}"
        f" {result['wall']:>8,.0f}",
        flush=True,
    )
    return {"rate": rate, "cpu": cpu}


def _report_page(costs: dict[str, Any]) -> None:
    statements = f", {costs['statements']:.0f} statements" if costs["statements"] else ""
    print(
        f"            a page of 1,000 more commits in {costs['median'] * 1000:.0f} ms at the median,"
        f" {costs['longest'] * 1000:.0f} ms at most: {costs['cpu'] * 1000:.0f} ms of CPU{statements}",
        flush=True,
    )
    if costs["data files"]:
        files = " and ".join(
            f"{costs[f'{kind} files']:,} files of {kind} ({costs[f'{kind} bytes'] / 1e6:,.1f} MB)"
            for kind in ("data", "metadata")
        )
        print(f"            the table has {files} now", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--warehouse", choices=WAREHOUSES, action="append")
    parser.add_argument("--pages", type=int, default=50, help="how many more pages are committed one by one")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(globals()[options.child[0]](json.loads(options.child[1]))))
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with ExitStack() as stack:
            sandbox = stack.enter_context(running_sandbox())
            sandbox.patch_account(feed_interval_seconds=0)
            for at in range(0, options.events, 100_000):
                sandbox.add_events(min(100_000, options.events - at))
            print("warehouse   who         events  events/s  CPU s/M   MB above   slot s")
            print("                                                    imports")
            for warehouse in options.warehouse or WAREHOUSES:
                _bench(stack, warehouse, options, folder, sandbox)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("Slot seconds are with the rate limit off; under the feed's minute a page, ours waits without a slot.")


def _bench(stack: ExitStack, warehouse: str, options: argparse.Namespace, folder: Path, sandbox: Sandbox) -> None:
    database = None
    if warehouse == "postgresql":
        from support.postgres import running_server

        database = stack.enter_context(running_server())
    scores = {}
    for who in ("ours", "dlt") if warehouse in PEERS else ("ours",):
        file = str(folder / f"{who}.{warehouse}")
        target = {
            "warehouse": warehouse,
            "events": options.events,
            "pages": options.pages,
            "file": file,
            "folder": str(folder / f"{who}-{warehouse}"),
            "url": database and f"postgresql://postgres:none@localhost/{database.name}?host={database.host}",
            "base_url": sandbox.base_url,
            "event_api_key": sandbox.event_api_key,
        }
        environment = {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "AIRFLOW_CONN_WAREHOUSE": _connection(warehouse, file, database),
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": sandbox.airflow_connection(),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
        }
        scores[who] = _report(who, warehouse, _child("ours" if who == "ours" else "theirs", target, environment))
        if who == "ours":
            _report_page(_child("page", target, environment))
        else:
            print(
                f"            ours: {scores['ours']['rate'] / scores[who]['rate']:.1f} times its events/s,"
                f" {scores[who]['cpu'] / scores['ours']['cpu']:.1f} times less CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
