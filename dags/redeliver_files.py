"""Deliver the files of a transfer again, to the recipients who have not picked it up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from outbound_transfer.operators.draft import DiscardTransferOperator
from outbound_transfer.operators.redelivery import RedeliverFilesOperator

#: Security option of the second delivery; None is the account's default. The service does not return that of the first.
SECURITY: str | None = None


def files(context: Any, jinja_env: Any) -> list[str]:  # noqa: ARG001  # Airflow passes it
    return list(context["params"]["files"])


with DAG(
    "redeliver_files",
    schedule=None,
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    params={
        "transfer_id": Param("tr_example", title="Transfer", type="string", minLength=1),
        "files": Param(
            ["/path/to/reports/*.pdf"],
            title="Files",
            description="Paths, URIs or globs: with the names and sizes of the transfer's files.",
            type="array",
            minItems=1,
            items={"type": "string", "minLength": 1},
        ),
    },
    tags=["outbound transfer", "example"],
    doc_md="""
### Deliver a transfer again

Delivers the files of a transfer to those of its recipients who have not picked it up, with "Once more: " before its
subject. The task is skipped if everybody has. It fails if the files have other names or sizes than the transfer's.

Deliver only what may be sent with the account's default security, or set `SECURITY` in the Dag file: the service does
not return the security option of a transfer.
""",
):
    deliver = RedeliverFilesOperator(
        task_id="deliver",
        transfer_id="{{ params.transfer_id }}",
        files=files,
        security=SECURITY,
        deferrable=True,
    )
    discard = DiscardTransferOperator(  # for a task whose process was killed; others remove their draft themselves
        task_id="discard_draft",
        transfer_id="{{ ti.xcom_pull('deliver', key='transfer_id') }}",
    )
    deliver >> discard.as_teardown()
