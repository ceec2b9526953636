"""Deliver a statement of each day's events, once the event feed is loaded beyond it. Airflow 3.2 and newer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

try:
    from airflow.sdk import PartitionedAssetTimetable
except ImportError:  # before Airflow 3.2
    PartitionedAssetTimetable = None

from outbound_transfer.assets.outbound_transfer import days_asset, table_asset
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.loaded_days import LoadedDaysOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

SQL_CONN_ID = "outbound_transfer_warehouse"
EVENTS = table_asset("events", sql_conn_id=SQL_CONN_ID)

if PartitionedAssetTimetable:
    with DAG(
        "ingest_events_by_day",
        schedule=timedelta(minutes=10),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,  # one ingestion of a feed is enough
        default_args={"retries": 3, "retry_delay": timedelta(seconds=70)},
        tags=["outbound transfer", "ingestion"],
        doc_md="""
### Event feed to warehouse, day by day

Instead of `ingest_event_feed`: loads the event feed, and announces each UTC day as a partition of an asset, once it is
loaded. Events that come later, or have no time, are in the table and in no day that was announced.
""",
    ):
        load = EventFeedToSqlOperator(task_id="load_events", sql_conn_id=SQL_CONN_ID, deferrable=True)
        LoadedDaysOperator(task_id="loaded_days", asset=EVENTS, loaded=load.output)

    with DAG(
        "daily_statement",
        schedule=PartitionedAssetTimetable(assets=days_asset(EVENTS)),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        tags=["outbound transfer", "example"],
        doc_md="""
### Statement of a day

Runs once for each day. Should a day be announced again, or its run be cleared, the delivery key prevents a second
statement.
""",
    ):
        SqlToOutboundTransferOperator(
            task_id="deliver",
            sql_conn_id=SQL_CONN_ID,
            # ds_add fails for anything but a day: others may announce partitions, too.
            sql="""
                SELECT type, count(*) AS events FROM outbound_transfer_events
                WHERE occurred_at >= '{{ macros.ds_add(dag_run.partition_key, 0) }}T00:00:00+00:00'
                AND occurred_at < '{{ macros.ds_add(dag_run.partition_key, 1) }}T00:00:00+00:00'
                GROUP BY type ORDER BY type
            """,
            file_name="events-{{ dag_run.partition_key }}.csv",
            subject="Events of {{ dag_run.partition_key }}",
            recipients=["ann@example.com"],
            delivery_key="statement-{{ dag_run.partition_key }}",
            on_empty="send",
            retries=3,
        )
