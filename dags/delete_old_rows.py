"""Delete old events and polls from the warehouse, once a week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param, task

with DAG(
    "delete_old_rows",
    schedule="@weekly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={"sql_conn_id": "outbound_transfer_warehouse", "days": Param(365, type="integer", minimum=1)},
    tags=["outbound transfer", "example"],
    doc_md="""
### Delete old rows

An example of `outbound-transfer retention` as a Dag: events and polls that were stored more than `days` ago are
deleted, and the recipients of finished transfers that were sent before that are erased. The
newest page of each feed stays, so that the next ingestion goes on as before.
""",
):

    @task(retries=3, retry_delay=timedelta(minutes=5))
    def delete(sql_conn_id: str, days: int) -> dict[str, int]:
        """Return the number of rows by table."""
        from outbound_transfer.store.personal_data import delete_before
        from outbound_transfer.store.tables import open_tables

        return delete_before(open_tables(sql_conn_id), datetime.now(UTC) - timedelta(days=int(days)), dry_run=False)

    delete("{{ params.sql_conn_id }}", "{{ params.days }}")
