"""Lands the account's event feed in the warehouse, every 90 seconds."""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, DeltaTriggerTimetable

from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator

with DAG(
    "ingest_event_feed",
    # The interval that the service recommends. A run that drains a backlog may take longer: the next one starts
    # when it has ended, and what was missed in between is not made up for, because one run reads all there is.
    schedule=DeltaTriggerTimetable(timedelta(seconds=90)),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
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

Reads `GET /v1/events` of the Outbound Transfer Service from the cursor that is kept in the warehouse, and lands every
event exactly once in `outbound_transfer_events`. Lines that are no events are kept in
`outbound_transfer_rejected_lines`; a page with more than 100 of them fails the run and is not landed.

Needs two connections: `outbound_transfer_default` with the extra field `event_api_key`, and
`outbound_transfer_warehouse` (PostgreSQL, SQLite, DuckDB or another SQL database). Both ids are parameters of the run.

To read the whole feed again, without duplicates:
`airflow outbound-transfer feed reset --to 0 --sql-conn-id outbound_transfer_warehouse`.
""",
):
    EventFeedToSqlOperator(
        task_id="land_events",
        outbound_transfer_conn_id="{{ params.outbound_transfer_conn_id }}",
        sql_conn_id="{{ params.sql_conn_id }}",
        deferrable=True,
    )
