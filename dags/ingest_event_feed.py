"""Load the account's event feed into the warehouse, every 90 seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from airflow.timetables.trigger import DeltaTriggerTimetable

from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator

with DAG(
    "ingest_event_feed",
    # The interval that the service recommends. A run with a backlog may take longer; the next one starts after it, and
    # skipped runs are not repeated, because one run reads everything.
    schedule=DeltaTriggerTimetable(timedelta(seconds=90)),
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
### Event feed to warehouse

Reads `GET /v1/events` of the Outbound Transfer Service from the cursor in the warehouse, and loads every event
exactly once into `outbound_transfer_events`. Invalid lines go to `outbound_transfer_rejected_lines`; a page with more
than 100 of them fails the run and is not loaded.

Needs two connections: `outbound_transfer_default` with the extra field `event_api_key`, and
`outbound_transfer_warehouse` (PostgreSQL, SQLite, DuckDB or another SQL database). Both ids are parameters of the run.

To load the whole feed again without duplicates:
`outbound-transfer feed reset --to 0 --sql-conn-id outbound_transfer_warehouse`.
""",
):
    EventFeedToSqlOperator(
        task_id="load_events",
        outbound_transfer_conn_id="{{ params.outbound_transfer_conn_id }}",
        sql_conn_id="{{ params.sql_conn_id }}",
        deferrable=True,
    )
