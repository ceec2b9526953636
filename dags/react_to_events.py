"""Runs whenever events were landed, and reads just those."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG, BaseHook, task

from outbound_transfer.transfers.common import table_asset

SQL_CONN_ID = "outbound_transfer_warehouse"
EVENTS = table_asset("events", sql_conn_id=SQL_CONN_ID)

with DAG(
    "react_to_events",
    schedule=[EVENTS],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # One at a time and in order: what is landed while a run lasts is the next run's.
    max_active_runs=1,
    tags=["outbound transfer", "example"],
    doc_md="""
### What was downloaded

An example of a DAG that is scheduled on the events' table: the asset event of each ingestion says which pages it
landed, and this DAG reads the rows of those pages.
""",
):

    @task
    def downloads(triggering_asset_events: Any = None) -> dict[str, int]:
        """New events by type, of the pages that woke this run."""
        hook = BaseHook.get_hook(SQL_CONN_ID)
        # One place for each database's mark of a parameter.
        query = (
            "SELECT type, count(*) FROM outbound_transfer_events"
            " WHERE feed = ? AND cursor_from >= ? AND cursor_from < ? GROUP BY type"
        ).replace("?", hook.placeholder)
        counts: dict[str, int] = {}
        for event in triggering_asset_events[EVENTS]:
            landed = event.extra
            for kind, count in hook.get_records(
                query, parameters=(landed["feed"], landed["cursor_from"], landed["cursor_to"])
            ):
                counts[kind] = counts.get(kind, 0) + count
        return counts

    downloads()
