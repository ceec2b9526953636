"""Logs and results of delivering tasks. A rehearsal returns its draft, and skips what comes after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import AirflowSkipException, timezone
from outbound_transfer.airflow_compat.run_state import is_test_run
from outbound_transfer.client.errors import Rehearsed
from outbound_transfer.client.models import to_builtins, to_result
from outbound_transfer.links.transfer import link_to
from outbound_transfer.store.rows import REHEARSED
from outbound_transfer.wording import format_bytes, pluralize

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import File, Transfer
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.delivery.row import Memory
    from outbound_transfer.files.attached import Held
    from outbound_transfer.files.sources import Source
    from outbound_transfer.operators.base import OutboundTransferOperator


def announce(task: OutboundTransferOperator, client: Client, context: Context) -> None:
    """Warn about a rehearsal, or about a test run that sends for real; not again after a deferral."""
    account = client.settings.account
    if task.was_deferred:
        return
    if client.settings.rehearses:
        task.log.warning("Rehearsal: nothing is sent to anybody through %s, and the draft is discarded", account)
    elif is_test_run(context):
        task.log.warning(
            "THIS TEST RUN SENDS FOR REAL through %s, as do `airflow dags test`, `airflow tasks test` and "
            "`dag.test()`, once for each run that they create. To leave out the send, set "
            "AIRFLOW__OUTBOUND_TRANSFER__REHEARSE=True",
            account,
        )


@contextmanager
def finishing_rehearsal(delivery: Delivery, context: Context) -> Iterator[None]:
    """Skip the task if the connection rehearses, so that nothing runs after it. Its result is the draft."""
    try:
        yield
    except Rehearsed:
        draft, memory = delivery.client.get_transfer(delivery.memory.transfer_id), delivery.memory
        context["ti"].xcom_push("return_value", {**to_delivery_result(draft, memory), "status": REHEARSED})
        delivery.discard()
        raise AirflowSkipException(
            f"Rehearsal: transfer '{draft.id}' with {pluralize(len(draft.files or ()), 'file')} would be sent to "
            f"{pluralize(len(draft.recipients), 'recipient')} now. Nothing is sent, and the draft is discarded"
        ) from None


def delivery_summary(transfer: Transfer, client: Client, context: Context) -> str:
    """Return one line about a sent transfer; its seconds count from the start of the attempt, including waits."""
    ti = context["ti"]
    # A test's task instance may not have a usable start date, but after the send, this must not fail.
    is_started = getattr(ti.start_date, "tzinfo", None)
    seconds = (timezone.utcnow() - ti.start_date).total_seconds() if is_started else 0.0
    return (
        f"Done: {describe_files(transfer.files or ())} to {pluralize(len(transfer.recipients), 'recipient')} in "
        f"{seconds:.1f} s of attempt {ti.try_number}; transfer {transfer.id}, {link_to(client.settings, transfer.id)}"
    )


def to_delivery_result(transfer: Transfer, memory: Memory) -> dict[str, Any]:
    """Return what every delivering task returns: the transfer, with security, approval and the digests of its files."""
    approval = memory.approval if memory.approval and memory.approval.state == "approved" else None
    return {
        **to_result(transfer),
        "files": to_file_results(transfer.files or (), memory.held),
        "security": memory.security or None,
        "approval": approval and {"by": approval.by, "at": approval.at},
    }


def to_file_results(files: Iterable[File], held: Mapping[str, Held | None]) -> list[dict[str, Any]]:
    """Return the files' records with ``sha256`` in hexadecimal; it is None if the row's digests were erased."""
    known = [
        {"id": file.id, "name": name, "size": file.size, "sha256": file.sha256} for name, file in held.items() if file
    ]
    return known or [{**to_builtins(file), "sha256": None} for file in files]


def describe_files(files: Sequence[Source] | Sequence[File]) -> str:
    return f"{pluralize(len(files), 'file')} ({format_bytes(sum(file.size for file in files))})"
