"""Delivers once more to those who had not collected when a transfer expired, and to nobody else."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pendulum
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.protocol.errors import NotFound
from outbound_transfer.triggers.transfer import TransferOutcomeTrigger

log = logging.getLogger(__name__)

#: Where the files of deliveries stay under the names that they were delivered by: the service gives no file back.
OUTBOX = Path(os.environ.get("OUTBOUND_TRANSFER_OUTBOX", "/data/outbox"))

#: Begins the subject of a second delivery; there is no third.
AGAIN = "Once more: "

#: Of a second delivery. The service does not say what the first one had; None is the account's default.
SECURITY: str | None = None

POKE_INTERVAL = float(os.environ.get("OUTBOUND_TRANSFER_POKE_INTERVAL", "60"))

EXPIRED = Asset(
    "outbound_transfer_expired",
    watchers=[
        AssetWatcher(name="expired", trigger=TransferOutcomeTrigger(outcomes=["expired"], poke_interval=POKE_INTERVAL))
    ],
)


def files_of(hook: OutboundTransferHook, transfer_id: str) -> list[str] | None:
    """The transfer's files in the outbox; None where one is missing there, or is another by its size."""
    try:
        files = hook.list_files(transfer_id)
    except NotFound:
        log.warning("Transfer %s is not delivered again: the service knows it no more", transfer_id)
        return None
    paths = []
    for file in files:
        path = OUTBOX / file.name
        if path.name != file.name or not path.is_file() or path.stat().st_size != file.size:
            log.warning("Transfer %s is not delivered again: %s is not in %s as it was", transfer_id, file.name, OUTBOX)
            return None
        paths.append(str(path))
    return paths


def second_delivery(transfer: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """What ``deliver_files`` is asked for."""
    left = [recipient for recipient in transfer["recipients"] if recipient["picked_up_at"] is None]
    return {
        "files": files,
        "subject": f"{AGAIN}{transfer['subject']}",
        "message": transfer["message"],
        "recipients": [{"email": recipient["email"], "name": recipient["name"]} for recipient in left],
        "security": SECURITY,
    }


def run_of(transfer_id: str) -> str:
    """One name for each transfer: Airflow makes no second run of a name, however often an end is told."""
    return f"again__{hashlib.sha256(transfer_id.encode()).hexdigest()[:32]}"


with DAG(
    "deliver_again",
    schedule=[EXPIRED],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["outbound transfer", "example"],
    doc_md="""
### Once more to those who did not collect

An example of a DAG that is scheduled on outcomes. For each transfer that has expired it starts a run of
`deliver_files` that is named after the transfer, so an end that is told twice delivers once: the runs in Airflow's
database are the memory. A run that is deleted (`airflow db clean`) is forgotten with it.

The files come from the folder that `OUTBOUND_TRANSFER_OUTBOX` names, and must be there as they were delivered, by name
and size; a transfer whose files are not is left alone, with a warning in the log. Put there only what may go out with
the account's default security, or set `SECURITY`: the service does not say which security a transfer had.
""",
):

    @task(retries=3)
    def second_deliveries(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """The runs to start, one for each transfer that has expired and was not a second delivery itself."""
        ended = [one for event in triggering_asset_events[EXPIRED] for one in event.extra["payload"]["transfers"]]
        with OutboundTransferHook() as hook:
            found = [
                (transfer, files_of(hook, transfer["id"]))
                for transfer in {one["id"]: one for one in ended}.values()
                if not transfer["subject"].startswith(AGAIN)
            ]
        return [
            {"trigger_run_id": run_of(transfer["id"]), "conf": {"deliveries": [second_delivery(transfer, files)]}}
            for transfer, files in found
            if files
        ]

    TriggerDagRunOperator.partial(
        task_id="deliver",
        trigger_dag_id="deliver_files",
        # None: runs of one logical date would exclude each other too.
        logical_date=None,
        skip_when_already_exists=True,
        retries=3,
    ).expand_kwargs(second_deliveries())
