"""Rows of a database into a file, in each format, next to pandas (``read_sql`` and ``to_csv`` in chunks).

Prints rows a second, and what the peak memory of a process grew by and came to. Each measurement is a process of its
own. ``--rows N``, ``--formats csv parquet``, ``--databases sqlite``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

FORMATS = ("csv", "jsonl", "parquet", "xlsx")
QUERY = "SELECT * FROM orders"
CHUNK_ROWS = 10_000

#: Six columns: a number, two texts, a sum, a day and a time.
DUCKDB_ROWS = """
    CREATE TABLE orders AS SELECT
        i AS id, 'customer ' || i % 10000 AS customer, md5(i::text) AS reference,
        ((i % 100000) / 100)::decimal(10, 2) AS total, date '2020-01-01' + (i % 2000)::integer AS day,
        timestamptz '2020-01-01 00:00Z' + to_seconds(i) AS at
    FROM range(1, {rows} + 1) AS numbers (i)
"""
MARIADB_ROWS = """
    CREATE TABLE orders AS SELECT
        seq AS id, CONCAT('customer ', seq % 10000) AS customer, MD5(seq) AS reference,
        CAST((seq % 100000) / 100 AS DECIMAL(10, 2)) AS total, DATE('2020-01-01') + INTERVAL seq % 2000 DAY AS day,
        TIMESTAMP('2020-01-01') + INTERVAL seq SECOND AS at
    FROM seq_1_to_{rows}
"""
POSTGRES_ROWS = """
    CREATE TABLE orders AS SELECT
        i AS id, 'customer ' || i % 10000 AS customer, md5(i::text) AS reference, (i % 100000)::numeric / 100 AS total,
        date '2020-01-01' + i % 2000 AS day, timestamptz '2020-01-01 00:00Z' + i * interval '1 second' AS at
    FROM generate_series(1, {rows}) AS i
"""
SQLITE_ROWS = """
    CREATE TABLE orders AS WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers LIMIT {rows})
    SELECT
        i AS id, 'customer ' || i % 10000 AS customer, printf('%032x', i) AS reference, i % 100000 / 100.0 AS total,
        date('2020-01-01', i % 2000 || ' days') AS day, datetime(1577836800 + i, 'unixepoch') AS at
    FROM numbers
"""


@contextmanager
def duckdb_database(rows: int) -> Iterator[str]:
    import duckdb

    with tempfile.TemporaryDirectory(prefix="bench-query-") as folder:
        file = Path(folder) / "orders.duckdb"
        with closing(duckdb.connect(file)) as connection:
            connection.execute(DUCKDB_ROWS.format(rows=rows))
        yield json.dumps({"conn_type": "duckdb", "host": str(file)})


@contextmanager
def mariadb_database(rows: int) -> Iterator[str]:
    from support.mariadb import running_server

    with running_server() as server:
        with closing(server.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(MARIADB_ROWS.format(rows=rows))
            connection.commit()
        yield server.airflow_connection()


@contextmanager
def postgres_database(rows: int) -> Iterator[str]:
    from support.postgres import running_server

    with running_server() as server:
        with closing(server.connect(autocommit=True)) as connection:
            connection.execute(POSTGRES_ROWS.format(rows=rows))
        yield server.airflow_connection


@contextmanager
def sqlite_database(rows: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-query-") as folder:
        file = Path(folder) / "orders.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(SQLITE_ROWS.format(rows=rows))
            connection.commit()
        yield json.dumps({"conn_type": "sqlite", "host": str(file)})


#: Makes a database with a number of rows, and returns its Airflow connection.
DATABASES: dict[str, Callable[[int], AbstractContextManager[str]]] = {
    "duckdb": duckdb_database,
    "mariadb": mariadb_database,
    "postgres": postgres_database,
    "sqlite": sqlite_database,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--databases", nargs="+", default=list(DATABASES), choices=DATABASES)
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return 0
    print(f"{arguments.rows:,} rows of 6 columns; memory in MiB: growth, and peak with Airflow's imports")
    for name in arguments.databases:
        with DATABASES[name](arguments.rows) as connection:
            for how in (*arguments.formats, "pandas"):
                run = measured(connection, how)
                assert run["rows"] == arguments.rows
                print(
                    f"{name:9} {how:8} {run['rows'] / run['seconds']:>10,.0f} rows/s {run['seconds']:>8.1f} s "
                    f"+{run['grown']:>6,.0f} MiB, peak {run['peak']:>6,.0f} MiB, file {run['size'] / 1e6:>8,.0f} MB",
                    flush=True,
                )
    return 0


def measured(connection: str, how: str) -> dict[str, float]:
    environment = {**os.environ, "AIRFLOW_CONN_ORDERS": connection}
    command = [sys.executable, "-m", "benchmarks.bench_query", "--measure", how]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(how: str) -> dict[str, float]:
    """Write the rows in one way: seconds, rows, bytes, and MiB of memory."""
    write = _with_pandas if how == "pandas" else _with_export
    write(f"{QUERY} WHERE id <= 1", how)  # what is imported on the way is no part of the growth
    before, started = _peak(), time.perf_counter()
    rows, size = write(QUERY, how)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "rows": rows, "size": size, "grown": _peak() - before, "peak": _peak()}


def _with_export(query: str, how: str) -> tuple[int, int]:
    import logging

    from outbound_transfer.queries.export import QueryExport
    from outbound_transfer.queries.spec import QuerySpec

    export: Any = QueryExport("orders", logging.getLogger(__name__))  # type: ignore[arg-type]
    with tempfile.TemporaryFile() as file:
        rows = export.write(QuerySpec(query, f"orders.{how}", how), file)
        return rows, file.seek(0, 2)


def _with_pandas(query: str, how: str) -> tuple[int, int]:
    import pandas as pd
    from airflow.sdk.bases.hook import BaseHook

    hook, rows = BaseHook.get_hook("orders"), 0
    with tempfile.TemporaryFile() as file, ExitStack() as stack:
        if hook.conn_type == "duckdb":  # SQLAlchemy has no dialect of it
            connection = stack.enter_context(closing(hook.get_conn()))
        else:
            engine = hook.get_sqlalchemy_engine()
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect().execution_options(stream_results=True))
        for chunk in pd.read_sql(query, connection, chunksize=CHUNK_ROWS):
            chunk.to_csv(file, index=False, header=not rows)
            rows += len(chunk)
        return rows, file.tell()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
