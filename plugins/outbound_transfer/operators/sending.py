"""What the operators that send have in common: a word before it, a rehearsal in its place, the result after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import AirflowSkipException, timezone
from outbound_transfer.airflow_compat.run_state import is_test_run
from outbound_transfer.client.errors import Rehearsed
from outbound_transfer.client.models import to_result
from outbound_transfer.links.web import link_to
from outbound_transfer.operators.files import describe_files
from outbound_transfer.store.statuses import REHEARSED
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.delivery.row import Memory, Row


class RehearsalFinished(AirflowSkipException):
    """The task has done everything but its send."""


def announce(client: Client, context: Context, log: Logger) -> None:
    """Log whether this attempt sends for real, where somebody may not expect it."""
    account = client.settings.account
    if client.settings.rehearses:
        log.warning("Rehearsal: nothing is sent to anybody through %s, and the draft is discarded", account)
    elif is_test_run(context):
        log.warning(
            "THIS TEST RUN SENDS FOR REAL through %s: so do `airflow dags test`, `airflow tasks test` and "
            "`dag.test()`, once for each run that they make. To leave the send out, set "
            "AIRFLOW__OUTBOUND_TRANSFER__REHEARSE=True",
            account,
        )


@contextmanager
def finishing_rehearsal(client: Client, context: Context, row: Row) -> Iterator[None]:
    """Skip the task if the connection rehearses: what runs after a delivery is not to run. Its result is the draft.

    :raises RehearsalFinished: instead of the send.
    """
    try:
        yield
    except Rehearsed:
        draft = client.get_transfer(row.memory.transfer_id)
        context["ti"].xcom_push("return_value", {**to_delivery_result(draft, row.memory), "status": REHEARSED})
        raise RehearsalFinished(
            f"Rehearsal: transfer '{draft.id}' with {pluralize(len(draft.files or ()), 'file')} would be sent to "
            f"{pluralize(len(draft.recipients), 'recipient')} now. Nothing is sent, and the draft is discarded"
        ) from None


def delivery_summary(transfer: Transfer, ti: Any, settings: Settings) -> str:
    """Return one line about a sent transfer.

    :param ti: the task instance. Its seconds count from the start of the try, with all waits.
    """
    started = ti.start_date
    # A task instance of a test may have no usable start: after the send this must not fail.
    seconds = (timezone.utcnow() - started).total_seconds() if getattr(started, "tzinfo", None) else 0.0
    return (
        f"Done: {describe_files(transfer.files or ())} "
        f"to {pluralize(len(transfer.recipients), 'recipient')} in {seconds:.1f} s of try {ti.try_number}; "
        f"transfer {transfer.id}, {link_to(settings, transfer.id)}"
    )


def to_delivery_result(transfer: Transfer, memory: Memory) -> dict[str, Any]:
    """Convert a transfer to the mapping that every delivering task returns.

    :return: as :func:`.to_result` returns it, with ``security`` (None for the account's default), ``approval``
        (``by`` and ``at``; None if nobody approved it), and the ``sha256`` of each file in hexadecimal; None if the
        row's files were erased.
    """
    result = to_result(transfer)
    files = [
        {"id": held.id, "name": name, "size": held.size, "sha256": held.sha256} for name, held in memory.held.items()
    ]
    unknown = [{**file, "sha256": None} for file in result["files"] or ()]
    approval = memory.approval if memory.approval and memory.approval.state == "approved" else None
    return {
        **result,
        "files": files or unknown,
        "security": memory.security or None,
        "approval": approval and {"by": approval.by, "at": approval.at},
    }
