"""Forget a transfer, so that its task, once it is cleared, sends it again: where nobody has a shell."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

with DAG(
    "forget_delivery",
    schedule=None,
    params={"transfer_id": Param("", type="string", minLength=1, title="Transfer to send again")},
    tags=["outbound transfer", "example"],
    doc_md="""
### Forget a delivery

An example of `outbound-transfer deliveries forget` as a Dag. What was sent stays sent; the task that it names delivers
again when it is cleared, and the account is billed again. If it is not known whether the transfer was sent, look in the
service's web application first.
""",
):

    @task
    def forget(transfer_id: str) -> str:
        """Return the task to clear."""
        from outbound_transfer.delivery.forget import forget_delivery

        return forget_delivery(transfer_id)

    forget("{{ params.transfer_id }}")
