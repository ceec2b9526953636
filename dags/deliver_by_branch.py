"""Deliver to each branch its own rows: one query says which branches there are and for whom, one task delivers each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import DAG, Param, task

from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

SQL_CONN_ID = "sales"  # PostgreSQL: other drivers may write the parameters otherwise
MONTH = "{{ params.month }}"

#: Every branch of the month, with each person who gets its rows. A branch without anybody has a row with NULL.
BRANCHES = """
    SELECT branch, email
    FROM (SELECT DISTINCT branch FROM orders WHERE month = %s) AS active LEFT JOIN branch_contacts USING (branch)
    ORDER BY branch, email
"""
ORDERS = "SELECT * FROM orders WHERE month = %s AND branch = %s ORDER BY id"

with DAG(
    "deliver_by_branch",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={"month": Param("2026-01", type="string", pattern=r"^\d{4}-\d{2}$")},
    tags=["outbound transfer", "example"],
    doc_md="""
### To each branch its rows

`deliveries` fails before anything is sent if nobody is listed for a branch. Each branch is a task and a delivery with a
key: what failed is retried or cleared alone, and a second run sends only to branches that are new.
""",
):

    @task
    def deliveries(month: str, branches: list[Any]) -> list[dict[str, Any]]:
        emails: dict[str | None, list[str | None]] = {}
        for branch, email in branches:
            emails.setdefault(branch, []).append(email)
        if unlisted := [branch for branch, listed in emails.items() if branch is None or None in listed]:
            raise ValueError(f"Nothing is sent: nobody is listed for the branches {unlisted}")
        return [
            {
                "parameters": [month, branch],
                "file_name": f"orders-{month}-{branch}.csv",
                "subject": f"Orders of {month}, branch {branch}",
                "recipients": listed,
                "delivery_key": f"orders-{month}-{branch}",
            }
            for branch, listed in emails.items()
        ]

    @task(trigger_rule="all_done")
    def summary(wanted: list[Any], transfers: Any) -> dict[str, int]:
        sent = list(transfers)
        if len(sent) < len(wanted):  # it alone decides whether the run has failed
            raise ValueError(f"{len(wanted) - len(sent)} of {len(wanted)} branches have not got theirs")
        return {"transfers": len(sent), "bytes": sum(file["size"] for one in sent for file in one["files"])}

    branches = SQLExecuteQueryOperator(task_id="branches", conn_id=SQL_CONN_ID, sql=BRANCHES, parameters=[MONTH])
    wanted = deliveries(MONTH, branches.output)
    deliver = SqlToOutboundTransferOperator.partial(
        task_id="deliver",
        sql_conn_id=SQL_CONN_ID,
        sql=ORDERS,
        map_index_template="{{ task.parameters[1] }}",
        max_active_tis_per_dagrun=4,
        deferrable=True,
        retries=3,
    ).expand_kwargs(wanted)
    summary(wanted, deliver.output)
