"""Deliver an expired transfer again, to the recipients who did not pick it up."""

from __future__ import annotations

import hashlib
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from outbound_transfer.exceptions import NotFound
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.operators.redelivery import SUBJECT_PREFIX
from outbound_transfer.triggers.transfer import TransferOutcomeTrigger

log = logging.getLogger(__name__)

#: Folder with the delivered files under their delivered names; the service does not return files.
OUTBOX = Path(os.environ.get("OUTBOUND_TRANSFER_OUTBOX", "/data/outbox"))

POKE_INTERVAL = float(os.environ.get("OUTBOUND_TRANSFER_POKE_INTERVAL", "60"))

EXPIRED = Asset(
    "outbound_transfer_expired",
    watchers=[
        AssetWatcher(name="expired", trigger=TransferOutcomeTrigger(outcomes=["expired"], poke_interval=POKE_INTERVAL))
    ],
)


def files_in_outbox(hook: OutboundTransferHook, transfer_id: str) -> list[str] | None:
    """Return the transfer's files in the outbox, or None if one is missing or has a different size."""
    try:
        files = hook.list_files(transfer_id)
    except NotFound:
        log.warning("Transfer '%s' is not delivered again: the service no longer has it", transfer_id)
        return None
    paths = []
    for file in files:
        path = OUTBOX / file.name
        if path.name != file.name or not path.is_file() or path.stat().st_size != file.size:
            log.warning(
                "Transfer '%s' is not delivered again: '%s' is missing or changed in %s", transfer_id, file.name, OUTBOX
            )
            return None
        paths.append(str(path))
    return paths


def run_id_for(transfer_id: str) -> str:
    """Return one run id for each transfer: Airflow creates no second run with the same id."""
    return f"redelivery__{hashlib.sha256(transfer_id.encode()).hexdigest()[:32]}"


with DAG(
    "redeliver_expired",
    schedule=[EXPIRED],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["outbound transfer", "example"],
    doc_md="""
### Deliver again to recipients who missed the expiry

An example of a DAG that is scheduled on outcomes. For each expired transfer it starts a run of `redeliver_files` that
is named after the transfer, so a repeated event delivers once. Airflow's table of runs is the memory: a deleted run
(`airflow db clean`) is forgotten. A second delivery, which its subject shows, is not followed by a third.

The files come from the folder in `OUTBOUND_TRANSFER_OUTBOX` and must have their delivered names and sizes; otherwise
the transfer is skipped, with a warning in the log.
""",
):

    @task(retries=3)
    def second_deliveries(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Return the runs to start: one for each expired transfer that is not a second delivery itself."""
        expired = [
            transfer for event in triggering_asset_events[EXPIRED] for transfer in event.extra["payload"]["transfers"]
        ]
        with OutboundTransferHook() as hook:
            found = [
                (transfer, files_in_outbox(hook, transfer["id"]))
                for transfer in {transfer["id"]: transfer for transfer in expired}.values()
                if not transfer["subject"].startswith(SUBJECT_PREFIX)
            ]
        return [
            {"trigger_run_id": run_id_for(transfer["id"]), "conf": {"transfer_id": transfer["id"], "files": files}}
            for transfer, files in found
            if files
        ]

    TriggerDagRunOperator.partial(
        task_id="deliver",
        trigger_dag_id="redeliver_files",
        # Without a logical date, because two runs with the same one would exclude each other.
        logical_date=None,
        skip_when_already_exists=True,
        retries=3,
    ).expand_kwargs(second_deliveries())
