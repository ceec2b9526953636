"""Keep the tables of sent transfers and their recipients current, every ten minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from airflow.timetables.trigger import DeltaTriggerTimetable

from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

with DAG(
    "ingest_transfers",
    schedule=DeltaTriggerTimetable(timedelta(minutes=10)),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "outbound_transfer_conn_id": "outbound_transfer_default",
        "sql_conn_id": "outbound_transfer_warehouse",
    },
    default_args={"retries": 3, "retry_delay": timedelta(seconds=70)},
    tags=["outbound transfer", "ingestion"],
    doc_md="""
### Sent transfers to warehouse

Reads `GET /v1/transfers` of the Outbound Transfer Service, newest first, up to where nothing older can have changed,
into `outbound_transfer_transfers` and `outbound_transfer_recipients`: who has picked up, what has expired. The views
and the dbt package need them.

Needs the connections `outbound_transfer_default` and `outbound_transfer_warehouse` (PostgreSQL, SQLite, DuckDB or
another SQL database). Both ids are parameters of the run.
""",
):
    TransfersToSqlOperator(
        task_id="load_transfers",
        outbound_transfer_conn_id="{{ params.outbound_transfer_conn_id }}",
        sql_conn_id="{{ params.sql_conn_id }}",
        deferrable=True,
    )
