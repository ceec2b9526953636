"""The sandbox as an Airflow connection."""

from __future__ import annotations

from outbound_transfer_sandbox.testing import Sandbox


def connection_json(sandbox: Sandbox, **extra: object) -> str:
    return sandbox.airflow_connection(**extra)
