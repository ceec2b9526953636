"""The event feed into each warehouse, beside dlt reading the same feed into the same databases.

The sandbox serves synthetic events with its rate limit off. Each ingest is a process of its own; its CPU time is that
of the process and its children (a database's server is neither's), its memory what it took above the interpreter that
had imported nothing yet, and above the one that had imported Airflow. dlt, with its defaults, reads the feed twice: it
appends without a check for duplicates, and it merges by ``event_id``, so that as with ours no event is there twice.
With ``--in-memory`` neither makes a call: each finds the pages in its memory.
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
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

WAREHOUSES = ("sqlite", "duckdb", "postgresql", "mysql", "iceberg")

#: Those that dlt writes to with its defaults.
PEERS = ("sqlite", "duckdb", "postgresql", "mysql")


# ---------------------------------------------------------------------------------------------------- in the children


def _megabytes(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def _measured(work: Any, bare: float) -> dict[str, Any]:
    idle, wall, cpu = _megabytes("VmRSS"), time.monotonic(), sum(os.times()[:4])
    events = work()
    return {
        "events": events,
        "wall": time.monotonic() - wall,
        "cpu": sum(os.times()[:4]) - cpu,
        "memory": _megabytes("VmHWM") - bare,
        "memory_above_imports": _megabytes("VmHWM") - idle,
    }


def _pages(target: dict[str, Any]) -> dict[int, tuple[bytes, dict[str, str]]]:
    """The feed's answers by cursor: body and headers."""
    pages, cursor = {}, 0
    while cursor < target["events"]:
        request = urllib.request.Request(
            f"{target['base_url'].rstrip('/')}/v1/events?cursor={cursor}&limit=1000",
            headers={"Authorization": f"Bearer {target['event_api_key']}"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            pages[cursor] = answer.read(), {name.lower(): value for name, value in answer.headers.items()}
        cursor = int(pages[cursor][1]["x-next-cursor"])
    return pages


def ours(target: dict[str, Any]) -> dict[str, Any]:
    """The operator, as a worker runs it."""
    bare = _megabytes("VmRSS")
    from airflow.sdk.listener import get_listener_manager

    from outbound_transfer.transfers import feed_ingest

    get_listener_manager()  # Airflow's plugins, which a worker has loaded before its task begins
    feed_ingest.FEED_INTERVAL = 0.0  # the sandbox is told the same
    operator = _operator(target)
    max_pages = target["events"] // 1_000
    operator.max_pages = max_pages
    if target["in_memory"]:
        _serve_from(_pages(target))
    return _measured(lambda: operator.execute({})["new_events"], bare)


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

    from outbound_transfer.warehouse.database import Warehouse
    from outbound_transfer.warehouse.events import EventStore

    return EventStore(Warehouse(BaseHook.get_hook("warehouse")), "bench")


def _serve_from(pages: dict[int, tuple[bytes, dict[str, str]]]) -> None:
    """Let the hook read pages without a call."""
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.protocol.events import Page, read_page
    from outbound_transfer.protocol.messages import Response

    def read_events(self: OutboundTransferHook, *, cursor: int) -> Page:
        body, headers = pages[cursor]
        return read_page(Response(200, headers, body), cursor=cursor)

    OutboundTransferHook.read_events = read_events  # type: ignore[method-assign, assignment]


def theirs(target: dict[str, Any]) -> dict[str, Any]:
    """dlt's REST client and pipeline."""
    bare = _megabytes("VmRSS")
    import dlt
    from dlt.sources.helpers.rest_client import RESTClient
    from dlt.sources.helpers.rest_client.auth import BearerTokenAuth

    limit = target["events"]
    pages = _pages(target) if target["in_memory"] else {}

    @dlt.resource(
        name="events",
        write_disposition=target["disposition"],
        primary_key="event_id" if target["disposition"] == "merge" else None,
        max_table_nesting=0,
        columns={"data": {"data_type": "json"}},
    )
    def events() -> Iterator[list[dict[str, Any]]]:
        client = RESTClient(base_url=target["base_url"], auth=BearerTokenAuth(target["event_api_key"]))
        state = dlt.current.resource_state()
        for body, _ in pages.values():
            yield [json.loads(line) for line in body.splitlines()]
        if pages:
            return
        while state.get("cursor", 0) < limit:
            answer = client.get("/v1/events", params={"cursor": state.get("cursor", 0), "limit": 1_000})
            yield [json.loads(line) for line in answer.content.splitlines()]
            state["cursor"] = int(answer.headers["X-Next-Cursor"])
            if answer.headers["X-Has-More"] != "true":
                return

    destination = {
        "sqlite": lambda: dlt.destinations.sqlalchemy(f"sqlite:///{target['file']}"),
        "duckdb": lambda: dlt.destinations.duckdb(target["file"]),
        "postgresql": lambda: dlt.destinations.postgres(target["url"]),
        "mysql": lambda: dlt.destinations.sqlalchemy(target["url"]),
    }[target["warehouse"]]()
    pipeline = dlt.pipeline(
        "bench", pipelines_dir=target["folder"], destination=destination, dataset_name=f"feed_{target['disposition']}"
    )

    def work() -> int:
        pipeline.run(events())
        with pipeline.sql_client() as client:
            return int(client.execute_sql(f"SELECT count(*) FROM {client.make_qualified_table_name('events')}")[0][0])

    return _measured(work, bare)


def page(target: dict[str, Any]) -> dict[str, Any]:
    """Seconds that each of more pages of 1,000 takes to commit, a connection of its own included."""
    from outbound_transfer.protocol.events import Event, Page

    destination = _destination(target)
    cursor, took = destination.get_or_create_cursor(), []
    for _ in range(target["pages"]):
        last = cursor + 1_000
        events = tuple(
            Event(f"b{n}", "transfer_sent", "2026-01-01T00:00:00Z", '{"synthetic": true}', None, n - cursor)
            for n in range(cursor + 1, last + 1)
        )
        started, cpu = time.monotonic(), sum(os.times()[:4])
        destination.load_page(Page(cursor, last, True, events, ()))
        took.append((time.monotonic() - started, sum(os.times()[:4]) - cpu))
        cursor = last
    parts = {"median": took, "first": took[:50], "last": took[-50:]}
    seconds = {name: statistics.median(wall for wall, _ in part) for name, part in parts.items()}
    cpu_seconds = {f"{name}_cpu": statistics.mean(cpu for _, cpu in part) for name, part in parts.items()}
    return {**seconds, **cpu_seconds, "longest": max(wall for wall, _ in took)}


def objects(target: dict[str, Any]) -> dict[str, Any]:
    """Seconds that each of 50 pages of 1,000 takes as an object, and how long the next run takes to find the cursor."""
    from outbound_transfer.protocol.events import Event, Page
    from support.object_folders import destination, local_store, s3_store

    local = local_store(Path(target["folder"], "objects"))
    store = s3_store(target["endpoint"], target["bucket"]) if target["place"] == "s3" else local
    feed, took, cpu = destination(store), [], []
    cursor = feed.get_or_create_cursor()
    for _ in range(51):
        events = tuple(
            Event(f"b{n}", "transfer_sent", "2026-01-01T00:00:00Z", '{"synthetic": true}', None, n - cursor)
            for n in range(cursor + 1, cursor + 1_001)
        )
        started, cpu_before = time.monotonic(), time.process_time()
        feed.load_page(Page(cursor, cursor + 1_000, True, events, ()))
        took.append(time.monotonic() - started)
        cpu.append(time.process_time() - cpu_before)
        cursor += 1_000
    started = time.monotonic()
    assert destination(store).get_or_create_cursor() == cursor
    found = time.monotonic() - started
    del took[0], cpu[0]  # the first imports
    return {"median": statistics.median(took), "cpu": statistics.median(cpu), "longest": max(took), "cursor": found}


# ----------------------------------------------------------------------------------------------------- in the parent


def _child(what: str, target: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, json.dumps(target)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{what} into {target['warehouse']} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def _sandbox(folder: Path, events: int) -> Iterator[dict[str, str]]:
    ready = folder / "ready.json"
    script = Path(sys.executable).with_name("outbound-transfer-sandbox")
    command = [script, "--port", "0", "--data", folder / "sandbox", "--ready-file", ready]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert process.poll() is None, "the sandbox did not start"
            time.sleep(0.05)
        keys: dict[str, str] = json.loads(ready.read_text())
        _control(keys, "PATCH", "account", {"feed_interval_seconds": 0})
        for at in range(0, events, 100_000):
            _control(keys, "POST", "events", {"count": min(100_000, events - at), "type": "transfer_sent"})
        yield keys
    finally:
        process.terminate()
        process.wait()


def _control(keys: dict[str, str], method: str, path: str, body: Any) -> None:
    request = urllib.request.Request(
        f"{keys['base_url'].rstrip('/')}/_sandbox/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    urllib.request.urlopen(request, timeout=120).close()


def _connection(warehouse: str, file: str, database: Any) -> str:
    if warehouse == "iceberg":
        Path(file).mkdir(exist_ok=True)
        extra = {"type": "sql", "uri": f"sqlite:///{file}/catalog.db", "warehouse": f"file://{file}/lake"}
        return json.dumps({"conn_type": "iceberg", "extra": extra})
    if warehouse == "postgresql":
        return str(database.airflow_connection)
    if warehouse == "mysql":
        return str(database.airflow_connection())
    return json.dumps({"conn_type": warehouse, "host": file})


def _url(warehouse: str, database: Any) -> str:
    if warehouse == "postgresql":
        return f"postgresql://postgres:none@localhost/{database.name}?host={database.host}"
    return str(database.url) if warehouse == "mysql" else ""


@contextmanager
def _servers(warehouses: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The databases of those warehouses that have a server."""
    from support import mariadb, postgres

    servers = {"postgresql": postgres.running_server, "mysql": mariadb.running_server}
    with ExitStack() as stack:
        yield {name: stack.enter_context(servers[name]()) for name in warehouses if name in servers}


def _report(who: str, warehouse: str, result: dict[str, Any]) -> dict[str, float]:
    rate, cpu = result["events"] / result["wall"], result["cpu"] / result["events"] * 1e6
    print(
        f"{warehouse:<11} {who:<10} {result['events']:>9,} {rate:>9,.0f} {cpu:>8,.0f} {result['memory']:>8,.0f}"
        f" {result['memory_above_imports']:>9,.0f} {result['wall']:>8,.0f}",
        flush=True,
    )
    return {"rate": rate, "cpu": cpu}


def _bench_objects(folder: Path) -> None:
    """Pages as objects, on a local disk and on moto's S3 server, which takes a core of its own."""
    from support.object_storage import Bucket, running_s3

    with running_s3() as endpoint:
        for place in ("local", "s3"):
            Bucket(endpoint, "bench").close()
            target = {"place": place, "folder": str(folder), "endpoint": endpoint, "bucket": "bench"}
            took = _child("objects", {"warehouse": f"objects ({place})", **target}, {})
            ms = {name: f"{seconds * 1000:.0f} ms" for name, seconds in took.items()}
            print(
                f"objects, {place:<5} a page of 1,000 in {ms['median']} at the median "
                f"({ms['cpu']} of CPU), {ms['longest']} at most; the cursor is found in {ms['cursor']}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--dlt-events", type=int, help="how many dlt reads; as many where not given")
    parser.add_argument("--warehouse", choices=WAREHOUSES, action="append")
    parser.add_argument("--pages", type=int, default=50, help="how many more pages are committed one by one")
    parser.add_argument("--in-memory", action="store_true", help="both find the pages in their memory")
    parser.add_argument("--objects", action="store_true", help="only pages as objects: local files and an S3 server")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.events, options.dlt_events or options.events) < 1_000:
        parser.error("a page has 1,000 events: read at least one")
    if options.child:
        print(json.dumps(globals()[options.child[0]](json.loads(options.child[1]))))
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    warehouses = options.warehouse or WAREHOUSES
    try:
        if options.objects:
            _bench_objects(folder)
            return
        with _servers(warehouses) as databases, _sandbox(folder, options.events) as keys:
            _bench(options, folder, {name: databases.get(name) for name in warehouses}, keys)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bench(options: argparse.Namespace, folder: Path, databases: dict[str, Any], keys: dict[str, str]) -> None:
    print("warehouse   who           events  events/s  CPU s/M   MB, peak above      slot s")
    print("                                                      bare    imports")
    for warehouse, database in databases.items():
        scores = {}
        dlt_events = options.dlt_events or options.events
        readers = [("ours", options.events), ("dlt append", dlt_events), ("dlt merge", dlt_events)]
        for who, events in readers if warehouse in PEERS else readers[:1]:
            file = str(folder / f"{who}.{warehouse}")
            target = {
                "warehouse": warehouse,
                "events": events,
                "in_memory": options.in_memory,
                "pages": options.pages,
                "file": file,
                "folder": str(folder / f"{who}-{warehouse}"),
                "disposition": who.removeprefix("dlt "),
                "url": _url(warehouse, database),
                **keys,
            }
            extra = {"event_api_key": keys["event_api_key"]}
            account = {"conn_type": "outbound_transfer", "host": keys["base_url"], "extra": extra}
            environment = {
                "AIRFLOW_HOME": str(folder / "airflow"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
                "AIRFLOW__OUTBOUND_TRANSFER__DEFAULT_LEDGER": "False",  # of an airflow.db that the peers' hooks make
                "AIRFLOW_CONN_WAREHOUSE": _connection(warehouse, file, database),
                "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": json.dumps(account),
                "RUNTIME__DLTHUB_TELEMETRY": "false",
            }
            scores[who] = _report(who, warehouse, _child("ours" if who == "ours" else "theirs", target, environment))
            if who == "ours":
                took = _child("page", target, environment)
                print(
                    f"            a page of 1,000 more commits in {took['median'] * 1000:.0f} ms at the median,"
                    f" {took['longest'] * 1000:.0f} ms at most; the first 50 in {took['first'] * 1000:.0f} ms"
                    f" ({took['first_cpu'] * 1000:.0f} ms of CPU), the last 50 in {took['last'] * 1000:.0f} ms"
                    f" ({took['last_cpu'] * 1000:.0f} ms of CPU)",
                    flush=True,
                )
            else:
                print(
                    f"            ours: {scores['ours']['rate'] / scores[who]['rate']:.1f} times its events/s,"
                    f" {scores[who]['cpu'] / scores['ours']['cpu']:.1f} times less CPU",
                    flush=True,
                )
    print("Slot seconds are with the rate limit off; under the feed's minute a page, ours waits without a slot.")


if __name__ == "__main__":
    main()
