"""Run whenever events were loaded, and read exactly those."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.sdk import DAG, task

from outbound_transfer.assets.outbound_transfer import table_asset

SQL_CONN_ID = "outbound_transfer_warehouse"
EVENTS = table_asset("events", sql_conn_id=SQL_CONN_ID)

with DAG(
    "process_new_events",
    schedule=[EVENTS],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # One at a time and in order: events that are loaded during a run belong to the next one.
    max_active_runs=1,
    tags=["outbound transfer", "example"],
    doc_md="""
### Process new events

An example of a Dag that is scheduled on the events' table. The asset event of each ingestion contains the cursor
range that it loaded, and this Dag reads the rows in that range.
""",
):

    @task
    def downloads(triggering_asset_events: Any = None) -> dict[str, int]:
        """Count the new events by type."""
        hook = DbApiHook.get_hook(SQL_CONN_ID)
        # Databases differ in the placeholder of a parameter.
        query = (
            "SELECT type, count(*) FROM outbound_transfer_events"
            " WHERE account = ? AND cursor_from >= ? AND cursor_from < ? GROUP BY type"
        ).replace("?", hook.placeholder)
        counts: dict[str, int] = {}
        for event in triggering_asset_events[EVENTS]:
            loaded = event.extra
            for kind, count in hook.get_records(
                query, parameters=(loaded["account"], loaded["cursor_from"], loaded["cursor_to"])
            ):
                counts[kind] = counts.get(kind, 0) + count
        return counts

    downloads()
