"""A DAG that is scheduled on the ends of transfers, where a test asks for it."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from outbound_transfer.triggers.transfer import TransferOutcomeTrigger

if interval := os.environ.get("WATCH_INTERVAL"):
    ended = Asset(
        "ended_transfers",
        watchers=[AssetWatcher(name="ended", trigger=TransferOutcomeTrigger(poke_interval=float(interval)))],
    )

    with DAG("outcomes", schedule=[ended], catchup=False):

        @task
        def told(triggering_asset_events: Any = None) -> list[str]:
            """The ends that woke this run."""
            return [
                f"{transfer['id']} {transfer['status']}"
                for event in triggering_asset_events[ended]
                for transfer in event.extra["payload"]["transfers"]
            ]

        told()
